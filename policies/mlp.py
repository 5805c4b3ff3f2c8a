"""A Gaussian policy of two small tanh networks over all one-dimensional float streams."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied import noise
from embodied.data import ActionChunk, Observation
from embodied.errors import ConfigError, SpecMismatch, WeightsRefused, nearest
from embodied.spec import AgentSpec, PolicySpec
from policies.base import Mode
from policies.nn import GaussianActorCritic

BLOCK = 64  # rows of every matrix product in `act`: one shape, so a row's sums never depend on the batch around it
ACTION_NOISE = 1  # `purpose` of the keyed noise


class MLPPolicy:
    """Chunks of one action from the one-dimensional float32 streams, concatenated in the order of `agent.observations`.

    Args:
        name: Name of the policy.
        agent: Streams offered; those that are not float32, or have more dimensions, are left out of `spec`.
        hidden: Widths of the hidden layers of actor and critic each.
        init_std: Standard deviation of raw actions to begin with; 1 is one `action_scale`.
        action_scale: Physical units of one raw unit, for all action streams or by stream name; where not given, the
            stream's limit, or 1 where it has none.
        seed: Draws the initial weights.

    Raises:
        ConfigError: A width, standard deviation or scale is not positive, or a scale names no action stream.
        SpecMismatch: No float observation stream, or an action stream that is not float32.
    """

    def __init__(
        self,
        name: str,
        agent: AgentSpec,
        hidden: Sequence[int] = (128, 128),
        init_std: float = 0.6,
        action_scale: float | Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        observations = tuple(s for s in agent.observations if s.dtype == "float32" and len(s.shape) < 2)
        if not observations:
            raise SpecMismatch(f"policy {name} finds no float32 observation", "spec", "use a policy that takes images")
        for stream in agent.actions:
            if stream.dtype != "float32":
                raise SpecMismatch(f"policy {name} cannot give {stream.dtype}", f"stream {stream.name}", "use float32")
        if not init_std > 0 or any(width < 1 for width in hidden):
            raise ConfigError(f"init_std {init_std}, hidden {tuple(hidden)}", "policy", "both must be positive")
        scale = _scales(agent, action_scale)
        extra = {"kind": "mlp", "hidden": [int(width) for width in hidden], "action_scale": scale}
        self.spec = PolicySpec(name, AgentSpec(observations, agent.actions), extra=extra)
        ends = list(accumulate((stream.size for stream in observations), initial=0))
        self._columns = [(s, slice(a, b)) for s, (a, b) in zip(observations, pairwise(ends), strict=True)]
        self.network = GaussianActorCritic(ends[-1], 1, scale, hidden, init_std, seed)

    def flatten(self, streams: Mapping[str, NDArray[Any]], rows: int, pad: int = 0) -> NDArray[np.float32]:
        """Concatenate the policy's streams, each of `rows` rows in its leading axes, to [rows + pad, F]; zeros below.

        Raises:
            SpecMismatch: A stream is missing or has another size.
        """
        flat = np.zeros((rows + pad, len(self.network.mean)), np.float32)
        for stream, columns in self._columns if rows else ():
            if stream.name not in streams or streams[stream.name].size != rows * stream.size:
                raise SpecMismatch(
                    f"policy {self.spec.name} needs {stream.name} with shape {stream.shape} in {rows} rows",
                    f"stream {stream.name}",
                    nearest(stream.name, streams),
                )
            flat[:rows, columns] = streams[stream.name].reshape(rows, -1)
        return flat

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: Mode) -> ActionChunk:
        """See `policies.base.Policy`; `log_probs` are of the unclipped action in either mode."""
        net, rows = self.network, len(observation.rows)
        flat = self.flatten(observation.streams, rows, pad=-rows % BLOCK)
        with torch.inference_mode():
            blocks = net.normalise(torch.from_numpy(flat).to(net.device)).split(BLOCK)
            mean = _join([net.raw_mean(block) for block in blocks])[:rows]
            values = _join([net.value(block) for block in blocks])[:rows]
            raw = mean
            if mode == "sample":
                draws = torch.from_numpy(noise.normal(noise_keys, net.action_dim, ACTION_NOISE)).to(net.device)
                raw = mean + torch.exp(net.log_std) * draws[:, None]
            actions = raw * net.action_scale
            log_probs = net.log_prob(mean, actions)
        return ActionChunk(
            rows=observation.rows,
            actions=actions.cpu().numpy(),
            log_probs=log_probs.cpu().numpy(),
            values=values.cpu().numpy(),
            versions=np.zeros(rows, np.int64),
            policy=self.spec.name,
        )

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.network.state_dict().items()}

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        mine, where = self.network.state_dict(), f"policy {self.spec.name}"
        for name in sorted(mine.keys() ^ tensors.keys()):
            what = "missing" if name in mine else "unknown"
            raise WeightsRefused(f"tensor {name} is {what}", where, "push every tensor of one version of this policy")
        for name, own in mine.items():
            theirs, mine_is = np.asarray(tensors[name]), (tuple(own.shape), np.dtype(np.float32))
            if (theirs.shape, theirs.dtype) != mine_is:
                what = f"tensor {name} is {theirs.dtype}{list(theirs.shape)}, not float32{list(own.shape)}"
                raise WeightsRefused(what, where, "use weights trained for this spec and these network sizes")
            if not np.isfinite(theirs).all():
                raise WeightsRefused(
                    f"tensor {name} holds numbers that are not finite", where, "publish an older version"
                )
        with torch.no_grad():
            for name, own in mine.items():
                own.copy_(torch.from_numpy(np.require(tensors[name], requirements="W")))


def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _scales(agent: AgentSpec, action_scale: float | Mapping[str, float] | None) -> list[float]:
    """[D] scales from one number, from numbers by stream name, or from the streams' limits."""
    by_name = {stream.name: stream.limit or 1.0 for stream in agent.actions}
    if isinstance(action_scale, Mapping):
        for name in action_scale:
            if name not in by_name:
                raise ConfigError(f"action_scale names {name}", "policy", nearest(name, by_name))
        by_name |= {name: float(value) for name, value in action_scale.items()}
    elif action_scale is not None:
        by_name = dict.fromkeys(by_name, float(action_scale))
    if any(not value > 0 for value in by_name.values()):
        raise ConfigError(f"action_scale {by_name}", "policy", "scales must be positive")
    return [by_name[stream.name] for stream in agent.actions for _ in range(stream.size)]


def build(agent: AgentSpec, **config: Any) -> MLPPolicy:
    """The policy a config's import path points to; `config` holds `name` and any argument of `MLPPolicy`."""
    try:
        return MLPPolicy(agent=agent, **config)
    except TypeError as error:
        raise ConfigError(f"not an MLP policy: {error}", "policy", "see the arguments of MLPPolicy") from None
