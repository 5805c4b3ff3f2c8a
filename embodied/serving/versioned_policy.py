"""Policy with a version of its weights: checks observations, decides, stamps chunks, switches versions. No sockets."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.data import ActionChunk, Observation, Outcome, Rows
from embodied.errors import DataError, MessageError, SpecMismatch, UserError, WeightsRefused, nearest
from embodied.spec import PolicySpec, difference
from embodied.weights.examine import dtype_name, fingerprints
from embodied.weights.manifest import Manifest, Verified, Version
from embodied.wire.probe import PROBE_ROWS, ProbeResult
from policies.base import Checking, Mode, Policy, Probing

_MODES = ("sample", "mean")
_VERSIONS_COUNTED = 64
_NEW_FOLDER = "start the server with a new weights=FOLDER, or without"
_OTHER_RUN = f"another run's versions are served here: {_NEW_FOLDER}"
_IF = f"if another run's versions are served here, {_NEW_FOLDER}"
_HUGE = 1e9  # no sensed quantity in SI units is larger, unless its stream states a range


@dataclass(frozen=True)
class Prepared:
    """A verified version that waits for `VersionedPolicy.commit`; `tensors` is None where the standby holds them."""

    manifest: Manifest
    tensors: Mapping[str, NDArray[Any]] | None
    back: bool


class VersionedPolicy:
    """Policy with the version of its weights. For one thread at a time, except `prepare`.

    Args:
        policy: Its initial weights are served as version 0 without a hash until the first `switch`.
        standby: Another instance of the policy. With it, `prepare` loads weights beside those served and `commit`
            only exchanges the two; without it, `commit` loads.

    Attributes:
        outcomes: Version number to counts [7] of `Outcome`, of the latest 64 versions reported.
    """

    def __init__(self, policy: Policy, standby: Policy | None = None) -> None:
        self._policy, self._standby = policy, standby
        self._checking = isinstance(policy, Checking)
        self._manifest: Manifest | None = None
        spec = policy.spec
        self._bounds = [
            (stream.name, *(stream.range or (-_HUGE, _HUGE)))
            for stream in spec.agent.observations
            if stream.range or stream.dtype == "float32"
        ]
        self._decided = (spec.chunk, spec.agent.action_dim)
        self._stored = {s.name: (s.shape, np.dtype(s.dtype)) for s in spec.stored}
        self._wanted = json.loads(json.dumps(spec.to_dict()))
        self.outcomes: dict[int, NDArray[np.int64]] = {}

    @property
    def spec(self) -> PolicySpec:
        return self._policy.spec

    @property
    def manifest(self) -> Manifest | None:
        """Manifest of the version served; None while it serves its initial weights."""
        return self._manifest

    @property
    def version(self) -> Version:
        return self._manifest.version if self._manifest else Version(0, "")

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """Copies of the weights served. In another thread than `decide`, verify them: a switch may intervene."""
        return self._policy.tensors()

    def layout(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of every tensor of a version, by name. Copies the weights."""
        return {name: (array.shape, dtype_name(array.dtype)) for name, array in self._policy.tensors().items()}

    def check(self, observation: Observation, noise_keys: NDArray[Any], mode: Mode) -> None:
        """Check that the policy can decide on an observation.

        Raises:
            SpecMismatch: A stream is missing, or of another shape or dtype; names stream and field.
            DataError: A number is not finite, an instruction is empty, or row counts differ; names the stream and the
                row.
            UserError: The mode is unknown.
        """
        self.check_form(observation, noise_keys, mode)
        self.check_content(observation)

    def check_form(self, observation: Observation, noise_keys: NDArray[Any], mode: Mode) -> None:
        """Part of `check` that depends only on names, dtypes and shapes of the arrays."""
        if mode not in _MODES:
            raise UserError(f"unknown mode {str(mode)[:20]!r}", "mode", nearest(str(mode), _MODES))
        rows = observation.rows
        count = len(rows)
        where = f"observation for policy {self.spec.name}"
        vectors: tuple[tuple[str, NDArray[Any]], ...] = (
            ("env", rows.env), ("agent", rows.agent), ("episode", rows.episode),
            ("step", rows.step), ("time", observation.time),
            *((f"time of {name}", times) for name, times in observation.times.items()),
        )  # fmt: skip
        for name, vector in vectors:
            if vector.shape != (count,):
                raise DataError(f"{name} has shape {vector.shape} for {count} rows", where, "send one value per row")
        if noise_keys.shape != (count, 5) or noise_keys.dtype != np.int64:
            raise DataError(
                f"noise keys are {noise_keys.dtype} {noise_keys.shape}",
                where,
                f"send int64 ({count}, 5) for {count} rows",
            )
        for stream in self.spec.agent.observations:
            value = observation.streams.get(stream.name)
            if value is None:
                raise SpecMismatch(
                    f"the observation lacks stream {stream.name}",
                    f"stream {stream.name}, policy {self.spec.name}",
                    nearest(stream.name, observation.streams),
                )
            if value.dtype != stream.dtype:
                raise self._mismatch(stream.name, "dtype", value.dtype.name, stream.dtype)
            if value.shape[1:] != stream.shape:
                raise self._mismatch(stream.name, "shape", value.shape[1:], stream.shape)
            if value.shape[:1] != (count,):
                raise DataError(
                    f"stream {stream.name} has shape {value.shape} for {count} rows", where, "send one value per row"
                )

    def check_content(self, observation: Observation) -> None:
        """Part of `check` that depends on numbers and texts, after `check_form`."""
        for name, low, high in self._bounds:
            value = observation.streams[name]
            if value.size and not (value.min() >= low and value.max() <= high):  # NaN is in no range
                flat = value.reshape(len(value), -1)
                row = int(np.flatnonzero(~((flat >= low) & (flat <= high)).all(axis=1))[0])
                what, fix = "is not finite", "end the episode as an infrastructure fault before asking"
                if np.isfinite(flat[row]).all():
                    worst = flat[row][np.argmax(np.maximum(low - flat[row], flat[row] - high))]
                    what, fix = f"holds {worst:g}, beyond {low:g} to {high:g},", "look at the sensor and its unit"
                raise DataError(f"stream {name} {what} in row {row}", _of(observation.rows, row), fix)
        if self._checking:
            self._policy.check(observation)  # type: ignore[attr-defined]

    def _mismatch(self, stream: str, field: str, given: object, wanted: object) -> SpecMismatch:
        return SpecMismatch(
            f"policy {self.spec.name} needs {stream} with {field} {wanted!r}, was sent {given!r}",
            f"stream {stream}, field {field}",
            "send it as the policy's spec says",
        )

    def act(self, observation: Observation, noise_keys: NDArray[np.int64], mode: Mode) -> ActionChunk:
        """Check, then `decide`."""
        self.check(observation, noise_keys, mode)
        return self.decide(observation, noise_keys, mode)

    def decide(self, observation: Observation, noise_keys: NDArray[np.int64], mode: Mode) -> ActionChunk:
        """Decide for rows that `check` has passed; the chunk carries the version and the policy's name.

        Raises:
            DataError: The policy's answer has another shape or dtype than its spec, or an action that is not finite;
                names version and row.
        """
        spec, count = self.spec, len(observation.rows)
        shape = (count, *self._decided)
        versions = np.full(count, self.version.number, np.int64)
        if count == 0:
            nothing = np.zeros(shape, np.float32)
            chunk = ActionChunk(observation.rows, nothing, nothing.copy(), np.zeros(0, np.float32), versions, spec.name)
            if mode == "sample":
                chunk.stored = {s.name: np.zeros((0, *s.shape), s.dtype) for s in spec.stored}
            return chunk
        chunk = self._policy.act(observation, noise_keys, mode)
        for name, wanted in (("actions", shape), ("log_probs", shape), ("values", (count,))):
            array = getattr(chunk, name)
            if array.shape != wanted or array.dtype != np.float32:
                raise DataError(
                    f"the policy gave {name} as {array.dtype} {array.shape}",
                    f"policy {spec.name}",
                    f"its spec says float32 {wanted}",
                )
        finite = np.isfinite(chunk.actions)
        if not finite.all():
            row = int(np.flatnonzero(~finite.reshape(count, -1).all(axis=1))[0])
            raise DataError(
                f"policy {spec.name} gave an action that is not finite in row {row}",
                f"version {self.version.label}, {_of(observation.rows, row)}",
                "serve another version; look for divergence in the training of this one",
            )
        stored = {name: (array.shape[1:], array.dtype) for name, array in chunk.stored.items()}
        if stored != (self._stored if mode == "sample" else {}):
            what = f"the policy stored {stored or 'nothing'} with its actions"
            raise DataError(what, f"policy {spec.name}", f"its spec says {self._stored or 'nothing'}")
        chunk.versions, chunk.policy = versions, spec.name
        return chunk

    def check_probe(self, observation: Observation) -> None:
        """Check that `probed` can handle an observation.

        Raises:
            UserError: There is no row, or more than `PROBE_ROWS`.
            EmbodiedError: As `check`.
        """
        count = len(observation.rows)
        if not 0 < count <= PROBE_ROWS:
            raise UserError(f"a probe of {count} rows", f"policy {self.spec.name}", f"send 1 to {PROBE_ROWS}")
        self.check(observation, observation.rows.noise_keys(0), "mean")

    def probed(self, observation: Observation) -> ProbeResult:
        """Version served, digests of its tensors, and intermediate results for rows that passed `check_probe`."""
        policy, (number, digest) = self._policy, self.version
        steps = policy.probe(observation) if isinstance(policy, Probing) else {}
        return ProbeResult(number, digest, fingerprints(policy.tensors()), steps)

    def probe(self, observation: Observation) -> ProbeResult:
        """Check, then `probed`."""
        self.check_probe(observation)
        return self.probed(observation)

    def warm_up(self, rows: int = 1) -> None:
        """Decide once on `rows` synthetic rows, so that the first client does not wait for one-time work."""
        fill = {"uint8": ord("a")}  # an instruction needs a word
        needed = self.spec.agent.observations
        streams = {s.name: np.full((rows, *s.shape), fill.get(s.dtype, 0), s.dtype) for s in needed}
        seen = Observation(Rows.of_envs(rows), streams, np.zeros(rows))
        self.decide(seen, seen.rows.noise_keys(0), "mean")

    def admit(self, manifest: Manifest, back: bool = False) -> bool:
        """Whether a switch to this version would be a change.

        Args:
            manifest: Manifest of the version.
            back: Accept a version older than the one served, as a rollback does.

        Raises:
            WeightsRefused: It is for another policy or spec, stale, or another content under the number served.
        """
        where = f"policy {self.spec.name}, push of version {manifest.label}"
        if manifest.policy != self.spec.name:
            raise WeightsRefused(
                f"weights of policy {manifest.policy} were pushed to {self.spec.name}",
                where,
                "push them to their own server",
            )
        found = difference(manifest.spec, self._wanted)
        if found:
            field, theirs, ours = found
            raise WeightsRefused(
                f"its spec has {field} {theirs}, the policy served has {ours}",
                where,
                "publish weights of a policy with the same spec, or start a server with theirs",
            )
        if self._manifest is None:
            return True
        if manifest.number == self._manifest.number:
            if manifest.hash == self._manifest.hash:
                return False
            raise WeightsRefused(
                f"another content under a served number: version {self.version.label} is served",
                where,
                _OTHER_RUN,
            )
        if manifest.number < self._manifest.number and not back:
            raise WeightsRefused(f"stale: version {self.version.label} is served", where, f"publish the newest; {_IF}")
        return True

    def prepare(self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], back: bool = False) -> Prepared | None:
        """Verify a version, and load it into the standby where there is one; None if it is served already.

        The version served is untouched, so this may run in another thread than `decide`, one call at a time.

        Raises:
            WeightsRefused: As `admit`, or the weights are partial, altered or unfit; the version served stays.
        """
        if not self.admit(manifest, back):
            return None
        if not (isinstance(tensors, Verified) and tensors.hash == manifest.hash):
            manifest.verify(tensors)
        if self._standby is None:
            return Prepared(manifest, tensors, back)
        self._standby.load(tensors)
        return Prepared(manifest, None, back)

    def commit(self, prepared: Prepared) -> Version:
        """Serve a prepared version from the next decision on; returns the version then served.

        Raises:
            WeightsRefused: As `admit`, since another switch may have intervened.
        """
        if self.admit(prepared.manifest, prepared.back):
            if prepared.tensors is None:
                assert self._standby is not None
                self._policy, self._standby = self._standby, self._policy
            else:
                self._policy.load(prepared.tensors)
            self._manifest = prepared.manifest
        return self.version

    def switch(self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], back: bool = False) -> Version:
        """`prepare` and `commit` at once.

        The version that is served already is accepted without effect.

        Raises:
            WeightsRefused: As `prepare`.
        """
        prepared = self.prepare(manifest, tensors, back)
        return self.version if prepared is None else self.commit(prepared)

    def outcome(self, rows: Rows, outcomes: ArrayLike, versions: ArrayLike | None = None) -> None:
        """Count the outcomes of episodes under the versions that decided, or the one served now.

        Raises:
            MessageError: Counts differ, or a value is no outcome.
        """
        ended = np.asarray(outcomes, np.int64)
        numbers = np.full(len(rows), self.version.number) if versions is None else np.asarray(versions, np.int64)
        if ended.shape != (len(rows),) or numbers.shape != ended.shape:
            raise MessageError(
                f"{ended.shape} outcomes and {numbers.shape} versions for {len(rows)} rows",
                "outcome",
                "send one per row",
            )
        if len(ended) and not (ended.min() >= 0 and ended.max() < len(Outcome)):
            raise MessageError("a value that is no outcome", "outcome", f"send {', '.join(o.name for o in Outcome)}")
        for number in np.unique(numbers).tolist():
            counts = self.outcomes.setdefault(number, np.zeros(len(Outcome), np.int64))
            counts += np.bincount(ended[numbers == number], minlength=len(Outcome))
        for number in sorted(self.outcomes)[:-_VERSIONS_COUNTED]:
            del self.outcomes[number]


def _of(rows: Rows, row: int) -> str:
    return f"env {rows.env[row]}, episode {rows.episode[row]}, step {rows.step[row]}"
