"""Size of a policy's tensors, counted before they are allocated."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from embodied.errors import ConfigError

_MAKERS = (torch.empty, torch.empty_like, torch.zeros, torch.ones, torch.full)


class MemoryLimit(TorchFunctionMode):
    """Context that refuses tensors in main memory before all of them together take more than `limit` bytes.

    Args:
        limit: Bytes.
        where: Key of the settings that decide the sizes, for the error.

    Raises:
        ConfigError: The tensors made in the context are too large; says how large, and the limit.
    """

    def __init__(self, limit: float, where: str) -> None:
        super().__init__()
        self.limit, self.where, self.bytes = limit, where, 0.0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _MAKERS:
            try:
                size = func(*args, **(given | {"device": "meta"})).nbytes
            except RuntimeError:  # more bytes than 64 bits count
                size = math.inf
            if size == math.inf or torch.device(given.get("device") or "cpu").type == "cpu":
                self.bytes += size
                check_memory(self.bytes, self.limit, "the weights", self.where, "choose smaller layers")
        if func is torch.Tensor.new_empty:  # of orthogonal weights, which take three such tensors while they are made
            size = 3 * math.prod(args[1]) * args[0].element_size()
            check_memory(self.bytes + size, self.limit, "the weights", self.where, "choose smaller layers")
        return func(*args, **given)


def check_memory(need: float, free: float, what: str, where: str, fix: str) -> None:
    """Raise a `ConfigError` if `need` bytes for `what` are more than the `free` ones."""
    if need > free:
        size = f"{need / 1e9:.1f} GB or more" if need < math.inf else "more than any machine has"
        raise ConfigError(f"{what} take {size}, and {free / 1e9:.1f} GB of memory are free", where, fix)
