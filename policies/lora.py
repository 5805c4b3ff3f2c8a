"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685) on a network whose other weights stand still."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from annotated_types import Len
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from embodied.errors import ConfigError, nearest
from embodied.settings import AtLeastOne, Text, Weight, settings

ADAPTER = "default"


@settings("policy.lora")
class Lora:
    """Settings of the adapters.

    Attributes:
        rank: r of the two factors. alpha: Their product is scaled by alpha / r; twice the rank where 0.
        targets: Last names of the linear layers that are adapted.
    """

    rank: AtLeastOne = 8
    alpha: Weight = 0.0
    targets: Annotated[tuple[Text, ...], Len(1)] = ("q_proj", "v_proj")

    @property
    def identity(self) -> dict[str, Any]:
        """For `PolicySpec.extra`: adapters of another kind do not fit."""
        return {"rank": self.rank, "alpha": self.alpha or 2.0 * self.rank, "targets": list(self.targets)}


def adapt(network: nn.Module, lora: Lora, generator: torch.Generator) -> None:
    """Put adapters into `network` that change nothing yet, and let nothing else of it be trained.

    The first factor is drawn from `generator`, the second is zero, as in section 4.1 of the paper, whose first factor
    is normal where this one is uniform, as in peft.

    Raises:
        ConfigError: A target names no linear layer of it.
    """
    linear = {name.rpartition(".")[2] for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    for target in lora.targets:
        if target not in linear:
            raise ConfigError(f"lora.targets names {target}", "policy.lora", nearest(target, linear))
    settings = LoraConfig(r=lora.rank, lora_alpha=lora.identity["alpha"], target_modules=list(lora.targets))
    network.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(settings, network, ADAPTER)
    for name, parameter in network.named_parameters():
        if f".lora_A.{ADAPTER}." in name:
            nn.init.kaiming_uniform_(parameter, a=5**0.5, generator=generator)


def layers(network: nn.Module) -> dict[str, Any]:
    """The adapted layers by their names."""
    return {name: module for name, module in network.named_modules() if isinstance(module, LoraLayer)}


def merged(network: nn.Module) -> dict[str, Tensor]:
    """The state of `network` without adapters: its own names, with W + (alpha / r) B A for adapted weights.

    Other tensors are shared, not copied.
    """
    state, adapted = network.state_dict(), layers(network)
    for name, layer in adapted.items():
        prefix = f"{name}.base_layer."
        own = {key.removeprefix(prefix): state.pop(key) for key in list(state) if key.startswith(prefix)}
        own["weight"] = own["weight"] + layer.get_delta_weight(ADAPTER).detach()
        for key in [key for key in state if key.startswith(f"{name}.lora_")]:
            del state[key]
        state.update({f"{name}.{key}": tensor for key, tensor in own.items()})
    return state


def frozen(network: nn.Module) -> frozenset[str]:
    """Names of the parameters that are never trained."""
    return frozenset(name for name, parameter in network.named_parameters() if not parameter.requires_grad)


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Sixteen hex digits that change with any name, shape or bit of `tensors`."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
        digest.update(array.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
