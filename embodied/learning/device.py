"""Devices that networks train on."""

import torch

from embodied.errors import ConfigError


def checked_device(name: str, where: str = "algo.device") -> torch.device:
    """The device called `name`.

    Raises:
        ConfigError: This machine has no such device.
    """
    try:
        torch.ones(1, device=name).cpu()
        return torch.device(name)
    except (RuntimeError, AssertionError):
        raise ConfigError(
            f"no device={name} on this machine", where, "give cpu, or cuda where there is a GPU"
        ) from None
