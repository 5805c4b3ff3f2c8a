"""Metrics page for Prometheus: a server's snapshot as metrics, by policy."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from embodied.data import Outcome
from embodied.errors import UserError

_COUNTS = {
    "requests": "Requests answered with actions.",
    "rows": "Rows decided.",
    "batches": "Batches computed.",
    "switches": "Switches to another version.",
    "errors": "Messages answered with an error.",
    "busy": "Requests refused since a queue was full.",
    "late": "Requests refused since their answer would have come too late.",
}
_TEXT = 200


class MetricsPage:
    """Renders a server's snapshot in Prometheus' text format, with the process's memory and CPU.

    Args:
        snapshot: See `embodied.serving.health.HealthServer`; missing or malformed values are left out.
        clock: Clock of the times in the snapshot, seconds.

    Raises:
        UserError: The package prometheus-client is missing.
    """

    def __init__(self, snapshot: Callable[[], Mapping[str, Any]], clock: Callable[[], float] = time.monotonic) -> None:
        try:
            import prometheus_client
        except ModuleNotFoundError:
            raise UserError(
                "metrics need the package prometheus-client",
                "this environment",
                "pip install -e '.[serve]' in the clone",
            ) from None
        self._snapshot, self._clock = snapshot, clock
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(self)
        prometheus_client.ProcessCollector(registry=self._registry)

    def render(self) -> tuple[str, bytes]:
        """Content type and text."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return CONTENT_TYPE_LATEST, generate_latest(self._registry)

    def describe(self) -> list[Any]:
        """No metrics before the first snapshot."""
        return []

    def collect(self) -> Iterator[Any]:
        """Metrics of one snapshot."""
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        snapshot, now = self._snapshot(), self._clock()
        yield InfoMetricFamily("embodied_build", "The software that serves.", {"version": _version()})
        taken, since = number(snapshot.get("taken")), number(snapshot.get("computing_since"))
        for name, told, value in (
            ("ready", "Whether it serves.", float(bool(snapshot.get("ready")))),
            ("draining", "Whether it is about to end.", float(bool(snapshot.get("draining")))),
            ("sessions", "Sessions that were heard lately.", number(snapshot.get("sessions"))),
            ("snapshot_age_seconds", "Since the serving thread was heard.", None if taken is None else now - taken),
            ("computing_seconds", "How long it has been at its batch; 0 between batches.",
             0.0 if since is None else now - since),
        ):  # fmt: skip
            if value is not None:
                yield GaugeMetricFamily(f"embodied_{name}", told, value)
        policies = {_text(name): value for name, value in _mapping(snapshot.get("policies")).items()}
        yield from _counters(policies, _mapping(snapshot.get("refused")))
        yield from _gauges(policies)
        yield from _versions(policies)
        yield from _followers(policies)
        yield from _latencies(policies)
        yield from _outcomes(policies)


def number(value: Any) -> float | None:
    """Value as a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:
        return None
    return float(value)


def _counters(policies: Mapping[str, Any], refused: Mapping[str, Any]) -> Iterator[Any]:
    """Counts by policy; under the empty name those of messages that concern none."""
    from prometheus_client.core import CounterMetricFamily

    counts = {name: _mapping(_mapping(state).get("counts")) for name, state in policies.items()}
    for key, told in _COUNTS.items():
        family = CounterMetricFamily(f"embodied_{key}", told, labels=["policy"])
        for name, found in (*counts.items(), ("", refused)):
            if (value := number(found.get(key))) is not None:
                family.add_metric([name], value)
        yield family


def _gauges(policies: Mapping[str, Any]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    for name, told, read in (
        ("queue_requests", "Requests that wait.", lambda state: number(state.get("waiting"))),
        ("batch_seconds", "How long a batch takes, lately.", lambda state: _scaled(state.get("batch_ms"), 1e-3)),
        ("policy_version", "Number of the version served.", lambda state: number(state.get("number"))),
        ("policy_held", "Whether publication is held after a rollback.", lambda state: float(bool(state.get("held")))),
        ("policy_pinned", "Whether a version is pinned.", lambda state: float(bool(state.get("pinned")))),
    ):
        family = GaugeMetricFamily(f"embodied_{name}", told, labels=["policy"])
        for policy, state in policies.items():
            if (value := read(_mapping(state))) is not None:
                family.add_metric([policy], value)
        yield family


def _versions(policies: Mapping[str, Any]) -> Iterator[Any]:
    from prometheus_client.core import InfoMetricFamily

    family = InfoMetricFamily("embodied_policy", "Labels of the version served and the one active.", labels=["policy"])
    for policy, state in policies.items():
        known = _mapping(state)
        served = f"{known.get('number', '')}-{known.get('hash', '')}"
        family.add_metric([policy], {"serving": _text(served), "active": _text(known.get("active") or "")})
    yield family


def _followers(policies: Mapping[str, Any]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    labels = ["policy", "follower"]
    versions = GaugeMetricFamily("embodied_follower_version", "Number of the version a follower serves.", labels=labels)
    ages = GaugeMetricFamily("embodied_follower_age_seconds", "Since a follower was heard.", labels=labels)
    for policy, state in policies.items():
        for name, follower in _mapping(_mapping(state).get("followers")).items():
            said = _mapping(follower)
            serving = str(said.get("serving") or "").partition("-")[0]
            if serving.isascii() and serving.isdecimal():
                versions.add_metric([policy, _text(name)], float(serving[:20]))
            if (age := number(said.get("heard_s"))) is not None:
                ages.add_metric([policy, _text(name)], age)
    yield from (versions, ages)


def _latencies(policies: Mapping[str, Any]) -> Iterator[Any]:
    from prometheus_client.core import HistogramMetricFamily

    told = "From a request's arrival to its answer."
    family = HistogramMetricFamily("embodied_answer_seconds", told, labels=["policy"])
    for policy, state in policies.items():
        found = _mapping(_mapping(state).get("latency"))
        bounds, counts, total = found.get("buckets"), found.get("counts"), number(found.get("sum"))
        if not isinstance(bounds, list) or not isinstance(counts, list) or len(counts) != len(bounds) + 1:
            continue
        if total is None or any(number(value) is None for value in (*bounds, *counts)):
            continue
        so_far, buckets = 0.0, []
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            so_far += count
            buckets.append(("+Inf" if math.isinf(bound) else str(float(bound)), so_far))
        family.add_metric([policy], buckets, total)
    yield family


def _outcomes(policies: Mapping[str, Any]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily

    names = {int(outcome): outcome.name.lower() for outcome in Outcome}
    family = CounterMetricFamily(
        "embodied_outcomes", "Episodes ended, by version.", labels=["policy", "version", "outcome"]
    )
    for policy, state in policies.items():
        for label, counts in _mapping(_mapping(state).get("outcomes")).items():
            for place, count in enumerate(counts if isinstance(counts, list) else []):
                if place in names and (value := number(count)):
                    family.add_metric([policy, _text(label), names[place]], value)
    yield family


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _scaled(value: Any, factor: float) -> float | None:
    found = number(value)
    return None if found is None else found * factor


def _text(value: Any) -> str:
    """Text that is valid as a label's value."""
    return str(value)[:_TEXT].encode("utf-8", "replace").decode()


def _version() -> str:
    try:
        return version("embodied-rl")
    except PackageNotFoundError:
        return "unknown"
