"""Isaac Lab's `utils.string`; see `simulators.isaac.names`."""

from simulators.isaac.names import resolve_matching_names, resolve_matching_names_values

__all__ = ["resolve_matching_names", "resolve_matching_names_values"]
