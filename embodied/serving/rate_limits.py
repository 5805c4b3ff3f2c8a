"""Rate limits of one connection: a token bucket of messages and one of bytes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Rate limits of one connection, averaged over a second; a burst of one second's worth is free.

    Attributes:
        messages: Per second; 0 for no limit.
        bytes: Per second, pushes of weights not counted; 0 for no limit.
    """

    messages: float = 20000.0
    bytes: float = 2e9


class Bucket:
    """Token bucket: tokens grow back with time, up to `rate` of them.

    A cost beyond the tokens makes a debt, which later messages wait for, so that one large message always passes.

    Args:
        rate: Tokens per second; 0 for no limit.
        now: Seconds.
    """

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: float, now: float) -> None:
        self._rate, self._tokens, self._at = rate, rate, now

    def spend(self, cost: float, now: float) -> float:
        """Spend tokens unless there is a debt; returns the seconds until it is paid off, 0 if `cost` was spent."""
        if self._rate <= 0:
            return 0.0
        self._tokens = min(self._tokens + (now - self._at) * self._rate, self._rate)
        self._at = now
        if self._tokens <= 0:
            return (1.0 - self._tokens) / self._rate
        self._tokens -= cost
        return 0.0
