"""A look into a torch policy: what it makes of an observation, step by step."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from embodied.data import ActionChunk, Observation
from policies.base import Mode
from policies.network import Inputs, PolicyNetwork
from policies.senses import Senses

COMPUTE_DTYPE = "compute_dtype"
"""Step whose value is the UTF-8 text of the floating-point types that the network's layers gave."""
NETWORK = "network/"
"""Begins the names of what the network gave; all others but `COMPUTE_DTYPE` are of the preprocessing."""

_LAYERS, _NUMBERS = 1024, 64  # that are shown: of a network, and of a row of a layer


class NetworkPolicy(Protocol):
    """A policy around a network; see `policies.torch_policy.TorchPolicy`."""

    senses: Senses
    network: PolicyNetwork

    def inputs(
        self, streams: Mapping[str, NDArray[Any]], rows: int, pad: int = 0, critic: bool = True, rest: bool = True
    ) -> Inputs: ...

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: Mode) -> ActionChunk: ...


def probe(policy: NetworkPolicy, observation: Observation) -> dict[str, NDArray[Any]]:
    """Intermediate results of the decision on rows of an observation, in mode `mean`; see `policies.base.Probing`.

    `state`, `pictures/<camera>`, `words` and whatever else the network is given, `COMPUTE_DTYPE`, the beginning of
    what each layer gave first, `network/<layer>`, and `network/actions`, `network/log_probs`, `network/values`.
    """
    rows = len(observation.rows)
    with torch.inference_mode():
        inputs = policy.inputs(observation.streams, rows, critic=False)
    cameras = {stream.name for stream in policy.senses.pictures}
    steps = {f"pictures/{name}" if name in cameras else name: _plain(value) for name, value in inputs.items()}
    layers, dtypes = dict[str, NDArray[Any]](), dict[str, None]()

    def watch(name: str, layer: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def note(module: nn.Module, given: Any, result: Any) -> None:
            found = result[0] if isinstance(result, tuple) and result else result
            if not isinstance(found, torch.Tensor) or not found.is_floating_point():
                return
            dtypes[str(found.dtype).removeprefix("torch.")] = None
            if name not in layers and len(layers) < _LAYERS:
                by_row = found.dim() > 1 and len(found) >= rows
                shown = found[:rows].flatten(1)[:, :_NUMBERS] if by_row else found.flatten()[:_NUMBERS]
                layers[name] = _plain(shown)

        return layer.register_forward_hook(note)

    leaves = [(name, layer) for name, layer in policy.network.named_modules() if not any(layer.children())]
    handles = [watch(f"{NETWORK}{name}", layer) for name, layer in leaves]
    try:
        chunk = policy.act(observation, observation.rows.noise_keys(0), "mean")
    finally:
        for handle in handles:
            handle.remove()
    steps[COMPUTE_DTYPE] = np.frombuffer(" and ".join(dtypes).encode(), np.uint8)
    results = {f"{NETWORK}{name}": getattr(chunk, name) for name in ("actions", "log_probs", "values")}
    return steps | layers | results


def _plain(value: torch.Tensor) -> NDArray[Any]:
    value = value.detach().cpu()
    return (value.float() if value.is_floating_point() else value).numpy().copy()
