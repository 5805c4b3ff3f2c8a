"""Errors of the façade, which code written for Isaac Lab catches as the built-in ones that are raised there."""

from embodied import errors
from embodied.errors import nearest

__all__ = ["ConfigError", "SpecMismatch", "nearest"]


class ConfigError(errors.ConfigError, ValueError, TypeError, KeyError):
    """A wrong configuration, name or argument."""

    __str__ = errors.ConfigError.line


class SpecMismatch(errors.SpecMismatch, ValueError, TypeError):
    """A value of another shape, order or kind than it should have."""
