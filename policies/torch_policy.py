"""A policy around a torch network: streams in, chunks out, versions of weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied.data import ActionChunk, Observation
from embodied.errors import WeightsRefused
from embodied.spec import AgentSpec, PolicySpec, Streams
from embodied.weights.examine import dtype_name
from policies.base import Mode
from policies.network import Inputs, PolicyNetwork
from policies.probing import probe
from policies.senses import Senses


class TorchPolicy:
    """`policies.base.Policy` of a network; what learners train.

    The learner owns the instance it is given: a policy that serves must be another one.

    Args:
        name: Of the policy.
        actions: Action streams.
        senses: Streams that are read.
        network: Decides.
        extra: Further identity of the policy: kind and sizes.
        execute: Actions of a chunk to execute before asking again; all of them where 0.
        block: Rows of every forward pass in `act`: one shape, so that a row's sums never depend on the batch around it.
        stored: As `PolicySpec.stored`.
    """

    def __init__(
        self,
        name: str,
        actions: Streams,
        senses: Senses,
        network: PolicyNetwork,
        extra: Mapping[str, Any],
        execute: int = 0,
        block: int = 16,
        stored: Streams = (),
    ) -> None:
        self.senses, self.network, self.block = senses, network, block
        agent = AgentSpec(senses.observations, actions)
        extra = {**extra, **senses.identity}
        self.spec = PolicySpec(name, agent, network.chunk, execute or network.chunk, extra, stored, senses.critic)

    def flatten(self, streams: Mapping[str, NDArray[Any]], rows: int) -> NDArray[np.float32]:
        """The numbers of `rows` rows that a normaliser learns from, physical, [rows, F + C].

        Raises:
            SpecMismatch: A stream is missing or has another size.
        """
        return self.senses.numbers(streams, rows)

    def inputs(
        self, streams: Mapping[str, NDArray[Any]], rows: int, pad: int = 0, critic: bool = True, rest: bool = True
    ) -> Inputs:
        """Network inputs of `rows` rows in the leading axes of `streams`, and of `pad` empty ones behind them.

        Args:
            critic: Whether what only the critic reads is wanted. rest: Whether pictures and words are.

        Raises:
            SpecMismatch: A stream is missing or has another size.
            DataError: An instruction is empty.
        """
        device = self.network.device
        flat = torch.from_numpy(self.senses.numbers(streams, rows, pad, critic)).to(device)
        made = self.network.normalise(flat)
        for name, array in self.senses.rest(streams, rows, pad).items() if rest else ():
            made[name] = torch.from_numpy(array).to(device)
        return made

    def check(self, observation: Observation) -> None:
        """As `policies.base.Checking`."""
        self.senses.check(observation.streams, len(observation.rows))

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: Mode) -> ActionChunk:
        """See `policies.base.Policy`; `log_probs` are of the unclipped action, NaN where the network cannot say."""
        net, rows = self.network, len(observation.rows)
        pad = -rows % self.block
        with torch.inference_mode():
            inputs = self.inputs(observation.streams, rows, pad, critic=False)
            noise = None
            if mode == "sample":
                noise = net.sample_noise(noise_keys)
                noise = torch.cat([noise, noise.new_zeros(pad, *noise.shape[1:])]) if pad else noise
            made = []
            for first in range(0, rows, self.block):
                part = slice(first, first + self.block)
                block = inputs if rows <= self.block else {name: value[part] for name, value in inputs.items()}
                made.append(net.sample(block, None if noise is None else noise[part]))

        def rows_of(arrays: list[torch.Tensor]) -> NDArray[Any]:
            whole = arrays[0] if len(arrays) == 1 else torch.cat(arrays)
            return whole[:rows].float().cpu().numpy()

        return ActionChunk(
            rows=observation.rows,
            actions=rows_of([d.actions for d in made]),
            log_probs=rows_of([d.log_probs for d in made]),
            values=rows_of([d.values for d in made]),
            versions=np.zeros(rows, np.int64),
            policy=self.spec.name,
            stored={name: rows_of([d.stored[name] for d in made]) for name in made[0].stored},
        )

    def probe(self, observation: Observation) -> dict[str, NDArray[Any]]:
        """As `policies.base.Probing`; see `policies.probing.probe`."""
        return probe(self, observation)

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {name: to_array(tensor) for name, tensor in self._state().items()}

    def check_tensors(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Raise `WeightsRefused` unless `load` can take `tensors`."""
        mine, where = self._state(), f"policy {self.spec.name}"
        for name in sorted(mine.keys() ^ tensors.keys()):
            what = "missing" if name in mine else "unknown"
            raise WeightsRefused(f"tensor {name} is {what}", where, "push every tensor of one version of this policy")
        for name, own in mine.items():
            theirs, dtype = np.asarray(tensors[name]), str(own.dtype).removeprefix("torch.")
            given, shape = dtype_name(theirs.dtype), tuple(own.shape)
            if (given, theirs.shape) != (dtype, shape):
                what = f"tensor {name} is {given}{list(theirs.shape)}, not {dtype}{list(shape)}"
                same = theirs.shape == shape
                fix = f"convert it to {dtype}" if same else "use weights trained for this spec and these network sizes"
                raise WeightsRefused(what, where, fix)
            numbers = to_tensor(theirs)
            if numbers.is_floating_point() and not torch.isfinite(numbers).all():
                raise WeightsRefused(
                    f"tensor {name} holds numbers that are not finite", where, "publish an older version"
                )
        scale, own_scale = to_tensor(tensors["action_scale"]), self.network.action_scale.cpu()
        if (differ := scale != own_scale).any():
            at = int(differ.nonzero()[0])
            what = f"action_scale[{at}] is {scale[at].item():.6g}, and {own_scale[at].item():.6g} in this policy"
            raise WeightsRefused(what, where, "use weights trained with these limits of actions, or give theirs")
        if (to_tensor(tensors["std"]) <= 0).any():
            raise WeightsRefused("tensor std holds numbers that are not above zero", where, "publish an older version")

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        self.check_tensors(tensors)
        with torch.no_grad():
            for name, own in self._state().items():
                own.copy_(to_tensor(tensors[name]))

    def _state(self) -> dict[str, torch.Tensor]:
        """The tensors a version consists of, live."""
        return self.network.state_dict()


def to_array(tensor: torch.Tensor) -> NDArray[Any]:
    """A copy of a tensor; of bfloat16 numbers, which numpy lacks, their bits as uint16."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.uint16).numpy().copy()
    return tensor.numpy().copy()


def to_tensor(array: NDArray[Any]) -> torch.Tensor:
    """The numbers of an array, shared where it is writable; uint16 arrays hold the bits of bfloat16 numbers."""
    native = np.asarray(array).dtype.newbyteorder("=")
    tensor = torch.from_numpy(np.require(array, native, ["C", "W"]))
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
