"""Client of a policy server behind a socket."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied.client.base import Mode, Version, asked_agents
from embodied.client.pending import Pending
from embodied.client.pushing import push
from embodied.client.shared_memory import SharedMemoryWriter
from embodied.data import ActionChunk, Observation, Rows
from embodied.errors import MessageError, NotShared, SpecMismatch, UserError, nearest
from embodied.spec import EnvSpec, PolicySpec
from embodied.weights.manifest import Manifest
from embodied.weights.shared import SharedBlock
from embodied.wire import jpeg as pictures
from embodied.wire.addresses import is_local
from embodied.wire.codecs import Arrays, chunk_from_message, observation_to_arrays, rows_to_arrays
from embodied.wire.endpoint import Requester, check_seconds
from embodied.wire.message import Message
from embodied.wire.probe import ProbeResult, probe_from_message

Priority = Literal["simulator", "robot", "tool"]

_PUSHED_PER_S = 2**23


class RemoteClient:
    """`PolicyClient` over ZeroMQ. Every method raises `DeadlineExceeded` after `timeout_s`, `push` later.

    After a lost connection, or a restart of the server, what is unanswered is asked again by itself.

    Args:
        address: `tcp://host:port` or `ipc://path`.
        timeout_s: Seconds to wait for an answer, a restart of the server included; for `push` one more per 8 MiB.
        credentials: Folder of CURVE credentials, see `embodied.wire.addresses`.
        priority: Kind of this client; a server answers robots before simulators.
        policy: Name of the policy, where the server has several.
        jpeg: Name of a camera stream to the quality, 1 to 100, at which it is sent as JPEG; the others are sent as
            they are. `act` and `submit` replace these streams in the observation they are given by the pictures that
            the policy sees, so that what is recorded afterwards is what it decided on.

    Attributes:
        served_as: Name under which the server has the policy, known after `hello`.
        build: What the server made the policy of, its configuration group; empty until `hello`.

    Raises:
        UserError: The address is malformed, without its folder, or beyond this machine without credentials, or
            a quality or `timeout_s` is out of range.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float = 10.0,
        credentials: str | Path | None = None,
        *,
        priority: Priority = "simulator",
        policy: str = "",
        jpeg: Mapping[str, int] | None = None,
    ) -> None:
        self._requester = Requester(address, "policy server", timeout_s=timeout_s, credentials=credentials)
        self._priority, self._jpeg = priority, dict(jpeg or {})
        for name, quality in self._jpeg.items():
            if type(quality) is not int or not 1 <= quality <= 100:
                raise UserError(f"JPEG quality {quality!r} of stream {name}", f"jpeg {name}", "give 1 to 100")
        self.served_as, self.build = policy, dict[str, Any]()
        self._streams: frozenset[str] | None = None
        self._block = SharedBlock() if is_local(address) else None
        self._shared_memory = SharedMemoryWriter() if is_local(address) else None

    def hello(self, env: EnvSpec | None = None, agent: str | Sequence[str] | None = None) -> PolicySpec:
        agents = asked_agents(env, agent)
        said = {"env": env.to_dict() if env else None, "agents": agents, "priority": self._priority}
        answer = self._requester.request("hello", policy=self.served_as, body=said)
        spec = PolicySpec.from_dict(_field(answer, "spec", dict))
        self._check_pictures(spec)
        self.served_as = self.served_as or str(answer.body.get("policy") or spec.name)
        self.build = dict(answer.body.get("build") or {})
        self._streams = frozenset(stream.name for stream in spec.agent.observations)
        self._requester.greeting = Message("hello", session=self._requester.session, policy=self.served_as, body=said)
        return spec

    def act(
        self, observation: Observation, noise_keys: NDArray[Any], mode: Mode, deadline_s: float | None = None
    ) -> ActionChunk:
        """As `PolicyClient.act`.

        Args:
            observation: B rows. Streams the policy does not need are not sent, once `hello` told which.
            noise_keys: [B, 5].
            mode: `sample` or `mean`.
            deadline_s: Seconds after which the answer is of no use; the server does not compute what would come
                later. None for the client's `timeout_s`.
        """
        if deadline_s is not None:
            check_seconds(deadline_s, "deadline_s")
        body, arrays = {"mode": mode, "priority": self._priority}, self._encode(observation, noise_keys)
        if self._shared_memory is not None:
            said, rest = self._shared_memory.write(arrays)
            try:
                answer = self._requester.request(
                    "act", policy=self.served_as, body=body | said, arrays=rest, timeout_s=deadline_s
                )
                return chunk_from_message(answer.body, answer.arrays)
            except NotShared:
                self._shared_memory.close()
                self._shared_memory = None
        answer = self._requester.request("act", policy=self.served_as, body=body, arrays=arrays, timeout_s=deadline_s)
        return chunk_from_message(answer.body, answer.arrays)

    def submit(
        self, observation: Observation, noise_keys: NDArray[Any], mode: Mode, deadline_s: float | None = None
    ) -> Pending:
        """Ask as `act` does and return at once, so that the present chunk is executed meanwhile.

        Streams and keys must stay unchanged until the answer is there: they are sent again after a lost connection.

        Raises:
            Busy: `embodied.wire.endpoint.IN_FLIGHT` answers are waited for already.
        """
        if deadline_s is not None:
            check_seconds(deadline_s, "deadline_s")
        body, arrays = {"mode": mode, "priority": self._priority}, self._encode(observation, noise_keys)
        asked = self._requester.submit("act", policy=self.served_as, body=body, arrays=arrays, timeout_s=deadline_s)
        return Pending(self._requester, asked)

    def push(
        self, manifest: Manifest, tensors: Mapping[str, NDArray[Any]], back: bool = False, signature: str = ""
    ) -> Version:
        return push(
            self._requester,
            self.served_as,
            manifest,
            tensors,
            back=back,
            signature=signature,
            shared=self._block,
            timeout_s=self._requester.timeout_s + manifest.nbytes / _PUSHED_PER_S,
        )

    def set_active(self, pointer: str, version: str | int | None = None, note: str = "") -> dict[str, Any]:
        """Move a pointer of the registry behind the server: roll back, pin, unpin, lift a hold.

        Args:
            pointer: `serving` (roll back to `version`, None for the last good one), `pinned` (None unpins) or `held`
                (None lifts the hold).
            version: Label or number.
            note: Why, for the record.

        Returns:
            `wanted`, `held` and `pinned` as they are then.
        """
        body = {"pointer": pointer, "version": version, "note": note}
        return self._requester.request("set_active", policy=self.served_as, body=body).body

    def outcome(self, rows: Rows, outcomes: ArrayLike, versions: ArrayLike | None = None) -> None:
        arrays = {**rows_to_arrays(rows), "outcomes": np.asarray(outcomes, np.uint8)}
        if versions is not None:
            arrays["versions"] = np.asarray(versions, np.int64)
        self._requester.request("outcome", policy=self.served_as, arrays=arrays)

    def version(self) -> Version:
        return _version(self._requester.request("status", policy=self.served_as))

    def probe(self, observation: Observation) -> ProbeResult:
        """As `PolicyClient.probe`; pictures are sent as they are."""
        arrays = observation_to_arrays(self._needed(observation))
        answer = self._requester.request("probe", policy=self.served_as, arrays=arrays)
        return probe_from_message(answer.body, answer.arrays)

    def status(self, follow: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Status of the server: version, sessions, queue, counts, outcomes per version.

        Args:
            follow: What a follower tells of itself, `name` and the label it is `serving`.
        """
        body = {"follow": dict(follow)} if follow is not None else {}
        return self._requester.request("status", policy=self.served_as, body=body).body

    def tick(self) -> None:
        self._requester.tick()

    def fileno(self) -> int:
        """See `Requester.fileno`."""
        return self._requester.fileno()

    def close(self) -> None:
        self._requester.close()
        if self._block is not None:
            self._block.close()
        if self._shared_memory is not None:
            self._shared_memory.close()

    def _encode(self, observation: Observation, noise_keys: NDArray[Any]) -> Arrays:
        if not isinstance(noise_keys, np.ndarray) or noise_keys.dtype != np.int64:
            kind = noise_keys.dtype if isinstance(noise_keys, np.ndarray) else type(noise_keys).__name__
            raise UserError(f"they are a {kind}", "noise_keys", "give an int64 array [B, 5], as Rows.noise_keys does")
        sent = self._needed(observation)
        files = {}
        for name, quality in self._jpeg.items():
            if (array := sent.streams.get(name)) is not None:
                _check_picture(name, array.dtype, array.shape[1:])
                files[name] = pictures.encode(array, quality)
                observation.streams[name] = pictures.decode(*files[name], array.shape[1:], name)
        return {**observation_to_arrays(sent, files), "noise_keys": noise_keys}

    def _needed(self, observation: Observation) -> Observation:
        """The streams the policy needs, once `hello` told which."""
        if self._streams is None:
            return observation
        wanted = {name: array for name, array in observation.streams.items() if name in self._streams}
        times = {name: array for name, array in observation.times.items() if name in wanted}
        return Observation(observation.rows, wanted, observation.time, times)

    def _check_pictures(self, spec: PolicySpec) -> None:
        streams = {stream.name: stream for stream in spec.agent.observations}
        for name in self._jpeg:
            if name not in streams:
                raise UserError(f"policy {spec.name} takes no stream {name}", f"jpeg {name}", nearest(name, streams))
            _check_picture(name, np.dtype(streams[name].dtype), streams[name].shape)


def _check_picture(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if dtype != np.uint8 or len(shape) != 3 or shape[2] != 3:
        raise SpecMismatch(
            f"stream {name} is {dtype} {shape}, and only colour pictures travel as JPEG",
            f"jpeg {name}",
            "leave it out: it is then sent as it is",
        )


def _version(answer: Message) -> Version:
    return _field(answer, "number", int), _field(answer, "hash", str)


def _field(answer: Message, name: str, kind: type) -> Any:
    value = answer.body.get(name)
    if type(value) is not kind:
        raise MessageError(f"an answer without {name}", f"{answer.kind} of the policy server", "run the same version")
    return value
