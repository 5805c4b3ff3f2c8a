"""Whether rollouts were made with the weights the learner has, and if not, what differs between the two."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied.client import PolicyClient
from embodied.client.execution import no_prefix
from embodied.data import Observation, Segment, Source
from embodied.errors import EmbodiedError, RolloutMismatch
from embodied.learning.losses import approximate_kl, masked_mean
from embodied.spec import CLIENT_STREAMS, PolicySpec
from embodied.weights.examine import fingerprints
from embodied.wire.probe import PROBE_ROWS, ProbeResult
from policies.base import Policy, Probing
from policies.probing import COMPUTE_DTYPE, NETWORK

ROWS = 32
"""Decisions of a segment that are looked at for what differs."""

_PREPROCESSING, _NETWORK = 1e-4, 1e-3  # differences of equal computations, as shares of the largest number or of 1


@torch.no_grad()
def measure(log_ratio: Tensor, mask: Tensor) -> dict[str, float]:
    """Distance of recomputed log-probabilities from those that came with the data; at equal weights not at all.

    Args:
        log_ratio: [...] learner's less rollout's.
        mask: [...] bool, what counts.

    Returns:
        `drift`, the mean of exp(|log ratio|) less 1; `ratio`, the mean ratio; `kl`, by `approximate_kl`; `ess`, the
        effective sample size (sum w)^2 / (N sum w^2) (Kong 1992) as a share; `max_log_ratio`. NaN where nothing counts.
    """
    if not mask.any():
        return dict.fromkeys(("drift", "ratio", "kl", "ess", "max_log_ratio"), float("nan"))
    log_ratio = torch.where(mask, log_ratio, 0.0).double()
    weights = torch.where(mask, torch.exp(log_ratio), 0.0)
    ess = weights.sum().square() / (mask.sum() * weights.square().sum())
    return {
        "drift": masked_mean(torch.expm1(log_ratio.abs()), mask).item(),
        "ratio": masked_mean(weights, mask).item(),
        "kl": approximate_kl(log_ratio, mask).item(),
        "ess": ess.item(),
        "max_log_ratio": log_ratio.abs().amax().item(),
    }


def check_drift(found: Mapping[str, float], bound: float, version: int) -> None:
    """Raise `RolloutMismatch` where what `measure` found at equal weights is beyond a bound, or no number.

    Args:
        found: Of decisions of the learner's own version; NaN where there were none is for the caller to leave out.
        bound: Largest `drift`; 0 does not check.
        version: Of the weights.
    """
    drift = found["drift"]
    if bound and not drift <= bound:
        error = RolloutMismatch(
            f"log-probabilities of rollouts drift by {drift:.3g} from the learner's at the same weights, "
            f"allowed are {bound:g}",
            f"version {version}",
            "nothing was learned from them",
        )
        error.version = version
        raise error


def explain(
    error: RolloutMismatch, policy: Policy, client: PolicyClient, segments: Sequence[Segment], newest: int, remedy: str
) -> RolloutMismatch:
    """The same error, with the first difference between the learner's policy and the server's.

    Both are compared on observations on which the version that drifts decided. Both have the newest weights by then.

    Args:
        error: As `check_drift` raised it; the policy is still as it was then.
        policy: The learner's.
        client: Of the server that decided.
        segments: Those of the update.
        newest: Version of the learner's weights.
        remedy: Advice for the user.
    """
    segment = next((s for s in segments if (s.versions == error.version).any()), segments[0])
    differs = diagnose(policy, client, decided(segment, policy.spec, error.version), newest)
    return RolloutMismatch(error.what, f"{error.where}, segment {segment.id}", f"{differs}; {remedy}")


def decided(segment: Segment, spec: PolicySpec, version: int, rows: int = ROWS) -> Observation:
    """At most `rows` of the observations on which a version decided, from all over a segment; the times are zeros."""
    t, b = np.nonzero((segment.k == 0) & (segment.versions == version) & (segment.source == Source.POLICY))
    chosen = np.unique(np.linspace(0, len(t) - 1, min(rows, len(t))).astype(int)) if len(t) else np.zeros(0, int)
    at = t[chosen], b[chosen]
    names = [stream.name for stream in spec.agent.observations if stream.name not in CLIENT_STREAMS]
    streams = {name: segment.observations[name][at] for name in names} | no_prefix(spec, len(chosen))
    return Observation(segment.rows.take(at), streams, np.zeros(len(chosen)))


def diagnose(policy: Policy, client: PolicyClient, observation: Observation, version: int | None = None) -> str:
    """The first difference between a learner's policy and the one a client's host serves, in one clause.

    Looked at in this order: versions, dtypes of tensors and of what is computed, tensors, preprocessing, the network's
    layers and results.

    Args:
        policy: The learner's.
        client: Of the host.
        observation: Rows that both are to see.
        version: Number the learner gave its weights; None does not compare it.
    """
    mine = fingerprints(policy.tensors())
    found: list[tuple[int, str]] = []
    probed: ProbeResult | None = None
    for first in range(0, len(observation.rows), PROBE_ROWS):
        part = observation.take(slice(first, first + PROBE_ROWS))
        try:
            probed = client.probe(part)
        except EmbodiedError as error:
            return f"what differs cannot be seen: {error.line()}"
        if first == 0:
            differs = _versions(probed.number, version) or _tensors(mine, probed.tensors)
            if differs:
                return differs
        if not probed.steps or not isinstance(policy, Probing):
            whose = "served" if isinstance(policy, Probing) else "trained"
            return f"the tensors are equal, and the policy {whose} does not show its preprocessing"
        differing = _steps(policy.probe(part), probed.steps)
        found += [differing] if differing else []
    if probed is None:
        return "what differs cannot be seen: no decision of this version is at hand"
    if found:
        return min(found)[1]
    return "nothing differs that can be seen; the rollout's data were altered on the way"


def _versions(served: int, mine: int | None) -> str:
    return "" if mine in (None, served) else f"the server answers with version {served}, the learner has {mine}"


def _tensors(mine: Mapping[str, tuple[str, str]], theirs: Mapping[str, tuple[str, str]]) -> str:
    for name in [*mine, *theirs]:
        if name not in theirs or name not in mine:
            return f"parameter {name} is missing {'on the server' if name in mine else 'in the learner'}"
    for name, (dtype, _) in mine.items():
        if theirs[name][0] != dtype:
            return f"the dtype of parameter {name} is {theirs[name][0]} on the server, {dtype} in the learner"
    differing = [name for name in mine if theirs[name] != mine[name]]
    if not differing:
        return ""
    count = f", and so do {len(differing) - 1} more" if len(differing) > 1 else ", and no other"
    return f"parameter {differing[0]} differs on the server{count} of {len(mine)}"


def _steps(mine: Mapping[str, NDArray[Any]], theirs: Mapping[str, NDArray[Any]]) -> tuple[int, str] | None:
    """Place in the order and words of the first step that differs."""
    ours, served = (_text(steps.get(COMPUTE_DTYPE)) for steps in (mine, theirs))
    if ours != served:
        return -1, f"the dtype of computation is {served} on the server, {ours} in the learner"
    for place, name in enumerate([*mine, *theirs]):
        network = name.startswith(NETWORK)
        kind = f"the network's {name.removeprefix(NETWORK)}" if network else f"preprocessing step {name}"
        if name not in theirs or name not in mine:
            return place, f"{kind} is missing {'on the server' if name in mine else 'in the learner'}"
        one, two = mine[name], theirs[name]
        if (one.dtype, one.shape) != (two.dtype, two.shape):
            forms = f"{two.dtype}{list(two.shape)} on the server, {one.dtype}{list(one.shape)} in the learner"
            return place, f"{kind} is {forms}"
        far = _difference(one, two, _NETWORK if network else _PREPROCESSING)
        if far:
            equal = ", though parameters and preprocessing are equal" if network else ""
            return place, f"{kind} differs, by up to {far:.3g}{equal}"
    return None


def _difference(one: NDArray[Any], two: NDArray[Any], share: float) -> float:
    """The largest difference, 0 where it is within a share of the largest number or both are NaN."""
    if not one.size or np.array_equal(one, two, equal_nan=one.dtype.kind == "f"):
        return 0.0
    one, two = one.astype(np.float64), two.astype(np.float64)
    if not np.array_equal(np.isfinite(one), np.isfinite(two)):
        return float("inf")
    sound = np.isfinite(one)
    far = float(np.abs(one - two)[sound].max(initial=0.0))
    return far if far > share * max(1.0, float(np.abs(one)[sound].max(initial=0.0))) else 0.0


def _text(step: NDArray[Any] | None) -> str:
    return step.astype(np.uint8).tobytes().decode(errors="replace")[:100] if step is not None else "unknown"
