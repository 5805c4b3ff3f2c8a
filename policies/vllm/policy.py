"""A token policy whose decoder runs in vLLM; pictures, words, state and critic stay in torch, in this process."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied import noise
from embodied.data import ActionChunk, Observation
from embodied.settings import configured
from embodied.spec import AgentSpec
from policies.base import Mode
from policies.mlp import ACTION_NOISE
from policies.tokens import TokenNetwork, TokenPolicy
from policies.vllm.engine import EngineSettings, VLLMEngine, settings_of


class VLLMPolicy(TokenPolicy):
    """Answers, and is versioned, as the `TokenPolicy` of the same configuration: equal spec, equal tensors, and
    log-probabilities within 1e-4. It serves; it does not learn.

    It samples with vLLM's generators, seeded per row by its noise key: other draws from the same distribution than the
    torch engine's. The decoder's weights are here and in vLLM, and all of them twice here, as the next version's.

    Args:
        engine: Of vLLM.
        name, agent, config: As of `TokenPolicy`.

    Attributes:
        loads_in_place: There is one engine of one version, so no copy of this policy can prepare the next.

    Raises:
        UserError: vLLM is not installed.
        ConfigError, SpecMismatch, CorruptFile, WeightsRefused: As `TokenPolicy`.
    """

    loads_in_place = True
    _next: TokenPolicy | None = None

    def __init__(self, name: str, agent: AgentSpec, engine: EngineSettings, **config: Any) -> None:
        command = engine.command()
        super().__init__(name, agent, **config)
        following = copy.copy(self)
        following.network = copy.deepcopy(self.network)
        self._next = following
        self.engine = VLLMEngine(self.network.decoder_config(), lambda: _decoder(self.network), engine, command)

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: Mode) -> ActionChunk:
        """See `policies.base.Policy`; a row's numbers depend on its batch as `VLLMEngine.generate` says.

        Raises:
            EmbodiedError: As `VLLMEngine.generate`.
        """
        network, block, rows = self.network, self.block, len(observation.rows)
        with torch.inference_mode():
            inputs = self.inputs(observation.streams, rows, -rows % block, critic=False)
            prompts, values = list[Tensor](), list[Tensor]()
            for first in range(0, rows, block):
                part = {name: value[first : first + block] for name, value in inputs.items()}
                prompts.append(network.prompt(part))
                values.append(network.value_of(part, prompts[-1].mean(1)))
            prompt = torch.cat(prompts)[:rows].float().cpu().numpy()
            seeds = noise.integers(noise_keys, ACTION_NOISE)
            given = self.engine.generate(prompt, seeds, network.tokens, mode)
            tokens, log_probs = (torch.from_numpy(array).to(network.device) for array in given)
            decided = network.sampled(tokens, log_probs, torch.cat(values)[:rows])
        return ActionChunk(
            rows=observation.rows,
            actions=decided.actions.float().cpu().numpy(),
            log_probs=decided.log_probs.cpu().numpy(),
            values=decided.values.float().cpu().numpy(),
            versions=np.zeros(rows, np.int64),
            policy=self.spec.name,
        )

    def load(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """See `policies.base.Policy`: torch's part and vLLM's change together, or neither does.

        Raises:
            WeightsRefused: They are not this policy's.
            EmbodiedError: As `VLLMEngine.load`; the version served stays, in a worker that is started anew.
        """
        if self._next is None:  # while it is made, from `base`
            super().load(tensors)
            return
        self._next.load(tensors)
        network = self._next.network
        self.engine.load(_decoder(network))
        self.network, self._next.network = network, self.network

    def close(self) -> None:
        """End vLLM; the next use starts it again."""
        self.engine.close()


def _decoder(network: TokenNetwork) -> dict[str, NDArray[Any]]:
    return {name: tensor.float().cpu().numpy() for name, tensor in network.decoder_state().items()}


def build(agent: AgentSpec, engine: Mapping[str, Any] | None = None, **config: Any) -> VLLMPolicy:
    """Build the policy of `engine=vllm` from a `TokenPolicy`'s configuration; `engine` holds `EngineSettings`."""
    return configured(VLLMPolicy, config, agent=agent, engine=settings_of(engine or {}))
