"""Order of a quaternion's components: explicit in configurations; two that differ are refused by name."""

from contextvars import ContextVar, Token
from typing import Literal

from simulators.isaac.errors import ConfigError, SpecMismatch, nearest

Order = Literal["xyzw", "wxyz"]
ORDERS: tuple[Order, Order] = ("xyzw", "wxyz")
_present: ContextVar[Order] = ContextVar("quaternion_order", default="xyzw")


def check_order(order: str, where: str) -> Order:
    """Check an order; returns it.

    Raises:
        ConfigError: It is neither `xyzw` nor `wxyz`.
    """
    if order not in ORDERS:
        raise ConfigError(f"quaternion order {order!r} is unknown", where, nearest(order, ORDERS))
    return order


def check_quaternion(expected: str, given: str, where: str) -> None:
    """Refuse data made with quaternions in another order; `where` names it, such as a checkpoint's path.

    Raises:
        SpecMismatch: The orders differ.
        ConfigError: One of them is unknown.
    """
    if check_order(expected, where) != check_order(given, where):
        raise SpecMismatch(
            f"quaternions are {given} there and {expected} here", where, f"set quaternion: {given} in the configuration"
        )


def present_order() -> Order:
    """Order of the environment that is being stepped or reset, `xyzw` outside of one."""
    return _present.get()


class quaternion_order:
    """Context in which `simulators.isaac.math` takes quaternions in this order, so that terms need not name it."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def __enter__(self) -> None:
        self._token: Token[Order] = _present.set(self._order)

    def __exit__(self, *error: object) -> None:
        _present.reset(self._token)
