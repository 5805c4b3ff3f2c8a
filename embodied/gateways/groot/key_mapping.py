"""Mapping between GR00T's modalities and streams, in both directions and for batches, from an embodiment's config.

The config has this section, which is required where it maps `streams` or `actions`; parts left out are derived from
the streams, each under its own name:

    groot:
      video: {ego_view: front}                          # their camera: our image
      state: {arm: joint_pos, gripper: [hand, [6]]}     # their vector: our stream, or these of its numbers
      action: {arm: [0, 1, 2], gripper: grip}           # their vector: numbers of our action row, or an action stream
      language: annotation.human.coarse_action          # their text: our stream `instruction`
      resize: true                                      # cameras may have any size
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, DataError, SpecMismatch, nearest
from embodied.gateways.embodiment import FIELDS, read_config
from embodied.gateways.groot.frames import LANGUAGE, GrootFrames, flatten
from embodied.gateways.groot.messages import Generation, ModalityConfig
from embodied.gateways.stream_source import ANY_IMAGE
from embodied.gateways.unread_keys import UnreadKeys
from embodied.spec import AgentSpec, PolicySpec, Stream

TEXT_STREAM = "instruction"
_PARTS = ("video", "state", "action", "language", "resize")

Columns = NDArray[np.intp]


@dataclass(frozen=True)
class GrootObservation:
    """Observation of a client.

    Attributes:
        streams: Stream name to [B, *shape].
        nested: Whether it was sent as maps of modalities instead of keys such as `video.front`.
        batched: Whether it had a row axis.
    """

    streams: dict[str, NDArray[Any]]
    nested: bool
    batched: bool

    @property
    def rows(self) -> int:
        return len(next(iter(self.streams.values()), ()))


@dataclass(frozen=True)
class GrootKeys:
    """Mapping between GR00T's keys and streams, checked; made by `for_policy` or `for_env`.

    Attributes:
        name: Name of the embodiment.
        video: Their camera to our image stream.
        state: Their vector to our stream and the indices of its numbers, flattened.
        text: Our stream of their language; None for none.
        language: Key of their language.
        action: Their vector to the columns of our action row.
        action_dim: D, numbers of our action row.
        resize: Whether cameras may have any size.
        unread: Log of the keys that are not read.
    """

    name: str
    video: Mapping[str, Stream]
    state: Mapping[str, tuple[Stream, Columns]]
    text: Stream | None
    language: str
    action: Mapping[str, Columns]
    action_dim: int
    resize: bool
    unread: UnreadKeys = field(default_factory=lambda: UnreadKeys("the gateway's embodiment"), compare=False)

    @classmethod
    def for_policy(cls, config: Mapping[str, Any] | str, spec: PolicySpec) -> Self:
        """Mapping for GR00T's clients and a policy of ours.

        Args:
            config: Embodiment: a mapping, a name in `configs/embodiment`, or the path of a YAML file.
            spec: Spec of the policy.

        Raises:
            ConfigError: The config is wrong; names the field.
            SpecMismatch: A number of a stream comes from no key; names the stream.
        """
        made = cls._of(config, spec.agent)
        given: dict[str, set[int]] = {stream.name: set(range(stream.size)) for stream in made.video.values()}
        for stream, columns in made.state.values():
            given.setdefault(stream.name, set()).update(columns.tolist())
        for stream in spec.agent.observations:
            if stream != made.text and (missing := set(range(stream.size)) - given.get(stream.name, set())):
                raise SpecMismatch(
                    f"policy {spec.name} needs {stream.name}, of which no GR00T key gives {_some(missing)}",
                    f"embodiment {made.name}, groot",
                    "name its keys under video or state",
                )
        return made

    @classmethod
    def for_env(cls, config: Mapping[str, Any] | str, agent: AgentSpec) -> Self:
        """Mapping for a GR00T server and an agent of ours, which may have more streams than are named.

        Raises:
            ConfigError: The config is wrong, or an action number comes from no key.
            SpecMismatch: A named stream is not offered, or of another kind.
        """
        made = cls._of(config, agent)
        given = {int(column) for columns in made.action.values() for column in columns}
        if missing := set(range(agent.action_dim)) - given:
            raise ConfigError(
                f"no GR00T key gives action numbers {_some(missing)}", f"embodiment {made.name}, groot", "name them"
            )
        return made

    @classmethod
    def _of(cls, config: Mapping[str, Any] | str, agent: AgentSpec) -> Self:
        whole = read_config(config)
        name, section = str(whole.get("name", "embodiment")), whole.get("groot") or {}
        where = f"embodiment {name}, groot"
        for key in whole:
            if key not in FIELDS:
                raise ConfigError(f"unknown field {key}", f"embodiment {name}", nearest(key, FIELDS))
        if not section and (whole.get("streams") or whole.get("actions")):
            raise ConfigError(
                "it has no section groot, so which of GR00T's keys is which stream is not known",
                f"embodiment {name}",
                "add one, as configs/embodiment/libero.yaml has, or use embodiment=native",
            )
        if not isinstance(section, Mapping):
            raise ConfigError("it is no mapping", where, f"give {', '.join(_PARTS)}, or leave it out")
        for key in section:
            if key not in _PARTS:
                raise ConfigError(f"unknown field {key}", where, nearest(key, _PARTS))
        for key in _PARTS[:3]:
            if not isinstance(section.get(key, {}), Mapping):
                raise ConfigError(f"{key} is no mapping", where, "map their keys to our streams")
        if not isinstance(section.get("language", ""), str) or type(section.get("resize", False)) is not bool:
            raise ConfigError("language is no text, or resize neither true nor false", where, "mend it")
        ours = {stream.name: stream for stream in agent.observations}
        text = ours.get(TEXT_STREAM)
        if text is not None and not (text.dtype == "uint8" and len(text.shape) == 1):
            text = None
        rest = [stream for stream in agent.observations if stream != text]
        video = section.get("video", {s.name: s.name for s in rest if _is_image(s)})
        state = section.get("state", {s.name: s.name for s in rest if not _is_image(s)})
        cameras = {}
        for key, stream in video.items():
            cameras[str(key)] = found = _named(stream, ours, f"{where}, video.{key}")
            if not _is_image(found):
                raise SpecMismatch(f"stream {stream} is no image", f"{where}, video.{key}", "name it under state")
        vectors = {str(key): _part(entry, ours, f"{where}, state.{key}") for key, entry in state.items()}
        action = _actions(section.get("action"), agent, where)
        language = section.get("language") or LANGUAGE
        return cls(name, cameras, vectors, text, language, action, agent.action_dim, section.get("resize", False))

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Streams that the mapping names."""
        named = (*self.video.values(), *(stream for stream, _ in self.state.values()), self.text)
        return tuple(dict.fromkeys(stream for stream in named if stream))

    @property
    def row_bytes(self) -> int:
        """Expected bytes of one row's frame in a client's observation."""
        images = sum(max(s.size, ANY_IMAGE if self.resize else 0) for s in self.video.values())
        numbers = sum(len(columns) for _, columns in self.state.values())
        return images + 8 * numbers + (4 * self.text.size if self.text else 0)

    def modality(self, chunk: int, generation: Generation) -> dict[str, ModalityConfig]:
        """Answer to `get_modality_config` for a policy of `chunk` actions."""
        keys = {"video": list(self.video), "state": list(self.state), "action": list(self.action)}
        if generation == "n1.5":
            keys = {kind: [f"{kind}.{key}" for key in names] for kind, names in keys.items()}
        now = {kind: ModalityConfig(range(chunk) if kind == "action" else [0], names) for kind, names in keys.items()}
        return {**now, "language": ModalityConfig([0], [self.language] if self.text else [])}

    def observe(self, observation: Any, most: int) -> GrootObservation:
        """Our streams from what a client sent, the last of its frames; owned but for images, which may be views.

        Args:
            most: Rows that are taken at most.

        Raises:
            SpecMismatch: A key is missing, or of another shape or dtype; names it.
        """
        where = f"embodiment {self.name}"
        if not isinstance(observation, Mapping):
            raise SpecMismatch("the observation is no map", where, "send video, state and language")
        flat, nested = flatten(observation)
        frames = GrootFrames(flat, where, most)
        taken = {f"video.{c}": frames.images(f"video.{c}", stream, self.resize) for c, stream in self.video.items()}
        for key, (stream, columns) in self.state.items():
            taken[f"state.{key}"] = frames.numbers(f"state.{key}", stream, len(columns))
        first = next(iter(taken), "")
        rows, batched = (len(taken[first][0]), taken[first][1]) if taken else (1, True)
        for key, (array, its_batched) in taken.items():
            if len(array) != rows or its_batched != batched:
                what = f"{first} has shape {flat[first].shape}, {key} {flat[key].shape}"
                raise SpecMismatch(what, where, "send all with the same rows, or all without")
        self.unread.say(flat.keys() - taken.keys() - {self.language})
        streams = {stream.name: taken[f"video.{camera}"][0] for camera, stream in self.video.items()}
        for key, (stream, columns) in self.state.items():
            whole = streams.setdefault(stream.name, np.zeros((rows, *stream.shape), stream.dtype))
            whole.reshape(rows, -1)[:, columns] = taken[f"state.{key}"][0]
        if self.text is not None:
            streams[self.text.name] = frames.texts(self.language, self.text, rows)
        return GrootObservation(streams, nested, batched)

    def answer(self, actions: NDArray[np.float32], asked: GrootObservation) -> dict[str, NDArray[np.float32]]:
        """Answer for actions [B, K, D]: their keys to float32 [B, K, d], or [K, d] for a request without a row axis."""
        prefix, taken = ("" if asked.nested else "action."), actions if asked.batched else actions[0]
        return {f"{prefix}{key}": np.ascontiguousarray(taken[..., columns]) for key, columns in self.action.items()}

    def request(self, streams: Mapping[str, NDArray[Any]], nested: bool) -> dict[str, Any]:
        """Request to a GR00T server from streams [B, *shape]: one frame per row."""
        video = {camera: streams[stream.name][:, None] for camera, stream in self.video.items()}
        state = {}
        for key, (stream, columns) in self.state.items():
            whole = streams[stream.name]
            state[key] = whole.reshape(len(whole), -1)[:, None, columns]
        language: dict[str, Any] = {}
        if self.text is not None:
            texts = [row.tobytes().rstrip(b"\0").decode("utf-8", "replace") for row in streams[self.text.name]]
            language[self.language] = [[text] for text in texts] if nested else texts
        if nested:
            return {"video": video, "state": state, "language": language}
        flat: dict[str, Any] = {f"video.{key}": array for key, array in video.items()}
        return {**flat, **{f"state.{key}": array for key, array in state.items()}, **language}

    def actions_of(self, answer: Any, rows: int) -> NDArray[np.float32]:
        """Actions [B, K, D] from the action map of a GR00T server's answer.

        Raises:
            DataError: A key is missing, no array of finite numbers, or of another shape.
        """
        where, made = f"embodiment {self.name}, GR00T answer", None
        if not isinstance(answer, Mapping):
            raise DataError("the answer is no map of actions", where, "check that generation fits the server")
        for key, columns in self.action.items():
            value = answer.get(key, answer.get(f"action.{key}"))
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
                raise DataError(f"the answer has no array of numbers {key}", where, nearest(key, map(str, answer)))
            given = value[None] if rows == 1 and value.ndim == 2 else value
            if (
                given.ndim != 3
                or given.shape[::2] != (rows, len(columns))
                or (made is not None and given.shape[1] != made.shape[1])
            ):
                raise DataError(
                    f"{key} has shape {value.shape}, not ({rows}, K, {len(columns)})", where, "map its keys"
                )
            if not np.isfinite(given).all():
                raise DataError(f"{key} is not finite", where, "look at the server's policy")
            if made is None:
                made = np.zeros((rows, given.shape[1], self.action_dim), np.float32)
            made[:, :, columns] = given
        assert made is not None
        return made


def _named(name: Any, ours: Mapping[str, Stream], where: str) -> Stream:
    if name not in ours:
        raise SpecMismatch(f"there is no stream {name}", where, nearest(name, ours))
    return ours[name]


def _part(entry: Any, ours: Mapping[str, Stream], where: str) -> tuple[Stream, Columns]:
    """Stream and columns of an entry: a stream, or `[stream, columns]`."""
    pair = entry if isinstance(entry, list | tuple) else [entry, None]
    if len(pair) != 2 or not isinstance(pair[0], str):
        raise ConfigError(f"{entry!r}", where, "write a stream, or [stream, [columns]]")
    stream = _named(pair[0], ours, where)
    return stream, _counts(pair[1], stream.size, where) if pair[1] is not None else np.arange(stream.size)


def _actions(entries: Mapping[str, Any] | None, agent: AgentSpec, where: str) -> dict[str, Columns]:
    named: dict[str, Columns] = {}
    start = 0
    for stream in agent.actions:
        named[stream.name] = np.arange(start, start + stream.size)
        start += stream.size
    if not entries:
        return named
    made = {}
    for key, entry in entries.items():
        at = f"{where}, action.{key}"
        if isinstance(entry, str):
            if entry not in named:
                raise SpecMismatch(f"there is no action stream {entry}", at, nearest(entry, named))
            made[str(key)] = named[entry]
        else:
            made[str(key)] = _counts(entry, start, at)
    return made


def _counts(entry: Any, size: int, where: str) -> Columns:
    listed = list(entry) if isinstance(entry, list | tuple) else [entry]
    if not listed or not all(type(column) is int and 0 <= column < size for column in listed):
        raise ConfigError(f"columns {entry!r}", where, f"list some of 0 to {size - 1}")
    return np.array(listed, np.intp)


def _some(numbers: set[int]) -> str:
    return ", ".join(map(str, sorted(numbers)[:8])) + (" and more" if len(numbers) > 8 else "")


def _is_image(stream: Stream) -> bool:
    return stream.dtype == "uint8" and len(stream.shape) == 3
