"""Isaac Lab's `utils`: `configclass`, `math`, `noise`, `string`."""

from simulators.isaac.configclass import configclass

__all__ = ["configclass"]
