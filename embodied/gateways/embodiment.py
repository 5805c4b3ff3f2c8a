"""Other projects' keys and our streams: a small config per embodiment maps one to the other, in both directions.

A gateway turns a request into streams (`observe`) and an action chunk into a reply (`reply`); a policy that asks
another project's server does the reverse (`request`, `actions_of`). All work on one row.

The config, as `configs/embodiment/*.yaml` show it:

    name: mine
    streams:                     # ours: what is theirs. Left out: every stream under its own name.
      front: {key: observation/image, layout: chw, resize: true, shape: [3, 224, 224]}
      joint_pos: {key: state, shape: [8], columns: [0, 1, 2, 3, 4, 5, 6]}
      wrist: {key: [images, wrist]}                     # a map within a map
      instruction: {key: prompt, text: true, default: lift the cube}
    actions:                     # their key: which of our numbers. Left out: what the gateway's protocol is used to.
      actions: {columns: [1, 0, 2], size: 3}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, DataError, SpecMismatch, nearest
from embodied.gateways.stream_source import Source, check_whole, sources_of
from embodied.spec import AgentSpec, PolicySpec, Stream

FIELDS = ("name", "streams", "actions", "groot")
"""Of a config; `groot` is for `embodied.gateways.groot.key_mapping`."""

_MESSAGE_BYTES = 1 << 26
_SLACK = 1 << 20  # bytes of a message beside the arrays that are needed
_FOLDER = Path(__file__).parent.parent / "configs" / "embodiment"


@dataclass(frozen=True)
class Embodiment:
    """One embodiment, checked against the streams it is used for; made by `from_config`.

    Attributes:
        name: As in the config.
        sources: One per observation stream.
        outputs: Their key to the columns of our action row.
        action_dim: D, numbers of our action row.
    """

    name: str
    sources: tuple[Source, ...]
    outputs: Mapping[str, NDArray[np.intp]]
    action_dim: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str, spec: PolicySpec, action_key: str = "actions") -> Self:
        """For a policy of ours that others ask.

        Args:
            config: The mapping, the name of one in `configs/embodiment`, or the path of a YAML file.
            spec: Every observation stream needs a source.
            action_key: Their key of the whole action row where the config leaves `actions` out; empty for one key
                per action stream, of its name.

        Raises:
            ConfigError: The config itself is wrong; names the field.
            SpecMismatch: A stream has no source or cannot be made from it; names stream, key and what is known.
        """
        name, streams, actions = _fields(config)
        sources = sources_of(name, streams, spec.agent.observations, f"policy {spec.name}")
        outputs = _outputs(name, actions, spec.agent, action_key)
        return cls(name, sources, outputs, spec.agent.action_dim)

    @classmethod
    def for_body(cls, config: Mapping[str, Any] | str, agent: AgentSpec, action_key: str = "actions") -> Self:
        """For a policy of others that a body of ours asks; `agent` offers streams, more than are needed perhaps.

        Raises:
            ConfigError: The config itself is wrong, or an action number comes from no key.
            SpecMismatch: The body does not offer a stream of the config that has no default, or of another shape.
        """
        name, streams, actions = _fields(config)
        offered = {stream.name: stream for stream in agent.observations}
        used = (
            list(offered.values()) if streams is None else [_offered(name, s, e, offered) for s, e in streams.items()]
        )
        outputs = _outputs(name, actions, agent, action_key)
        given = {int(column) for columns in outputs.values() for column in columns}
        if missing := sorted(set(range(agent.action_dim)) - given):
            raise ConfigError(
                f"no key gives action numbers {missing[:8]} of {agent.action_dim}",
                f"embodiment {name}, actions",
                "name every column",
            )
        sources = sources_of(name, streams, used, "the body")
        check_whole(name, sources)
        return cls(name, sources, outputs, agent.action_dim)

    @property
    def request_bytes(self) -> int:
        """Bytes of the arrays of the largest request to be expected, about."""
        return sum(source.bytes for source in self.sources)

    @property
    def message_bytes(self) -> int:
        """Longest request that is taken: with images twice as large as expected, if that is within 64 MiB."""
        images = sum(source.bytes for source in self.sources if source.image)
        numbers = 8 * (self.request_bytes - images)  # they may come as float64 or int64
        return max(min(2 * images, _MESSAGE_BYTES), images) + numbers + _SLACK

    @property
    def keys(self) -> dict[str, dict[str, Any]]:
        """What a client sends, as plain values: their key (`/` between nested ones) to path, stream, shape, dtype."""
        return {"/".join(source.path): source.describe() for source in self.sources}

    def observe(self, request: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Our streams, without the row axis, from what a client sent.

        Raises:
            SpecMismatch: A key is missing, or of another shape or dtype; names stream, key and what was sent.
        """
        return {source.stream.name: source.take(request) for source in self.sources}

    def reply(self, actions: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Their keys to [K, d], from [K, D]; owned."""
        return {key: actions[:, columns] for key, columns in self.outputs.items()}

    def request(self, streams: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """What a server of theirs is sent, from one row of our streams; a text not given is its default."""
        made: dict[str, Any] = {}
        for source in self.sources:
            source.put(made, streams.get(source.stream.name))
        return made

    def actions_of(self, reply: Mapping[str, Any]) -> NDArray[np.float32]:
        """[K, D] from what a server of theirs answered.

        Raises:
            DataError: A key is missing, no array of finite numbers, or of another shape.
        """
        where, made = f"embodiment {self.name}", None
        for key, columns in self.outputs.items():
            value = reply.get(key)
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
                raise DataError(f"the answer has no array of numbers {key}", where, nearest(key, map(str, reply)))
            if value.ndim != 2 or value.shape[1] != len(columns) or (made is not None and len(made) != len(value)):
                raise DataError(f"{key} has shape {value.shape}, not [K, {len(columns)}]", where, "name its columns")
            if not np.isfinite(value).all():
                raise DataError(f"{key} is not finite", where, "look at the server's policy")
            if made is None:
                made = np.zeros((len(value), self.action_dim), np.float32)
            made[:, columns] = value
        assert made is not None
        return made


def embodiment_names() -> list[str]:
    """The embodiments that ship with the project."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def read_config(config: Mapping[str, Any] | str) -> dict[str, Any]:
    """The mapping itself, or what the YAML file of that name or path holds.

    Raises:
        ConfigError: There is no such file, or it holds no mapping.
    """
    if isinstance(config, Mapping):
        return {str(key): value for key, value in config.items()}
    import yaml

    path = Path(config) if config.endswith((".yaml", ".yml")) else _FOLDER / f"{config}.yaml"
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError):
        fix = f"{nearest(config, embodiment_names())} Or give the path of a YAML file"
        raise ConfigError("no such embodiment", f"embodiment {config}", fix) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {error}", f"embodiment {config}", "see configs/embodiment") from None
    if not isinstance(found, dict):
        raise ConfigError("the file holds no mapping", f"embodiment {config}", "see configs/embodiment")
    return {"name": path.stem, **found}


def _fields(config: Mapping[str, Any] | str) -> tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Name, `streams` and `actions` of a config, of their types."""
    data = read_config(config)
    name = str(data.get("name", "embodiment"))
    for key in data:
        if key not in FIELDS:
            raise ConfigError(f"unknown field {key}", f"embodiment {name}", nearest(key, FIELDS))
    parts = (data.get("streams"), data.get("actions"))
    for key, value in zip(FIELDS[1:3], parts, strict=True):
        if value is not None and (not isinstance(value, Mapping) or not value):
            raise ConfigError(f"{key} is no mapping", f"embodiment {name}", "see configs/embodiment, or leave it out")
    return name, *parts


def _offered(name: str, stream: str, entry: Any, offered: Mapping[str, Stream]) -> Stream:
    """The body's stream of that name, or one for the default text."""
    if stream in offered:
        return offered[stream]
    if isinstance(entry, Mapping) and isinstance(entry.get("default"), str):
        return Stream(stream, (max(len(entry["default"].encode()), 1),), "uint8")
    raise SpecMismatch(
        f"embodiment {name} needs stream {stream}, which the body does not offer",
        f"embodiment {name}, stream {stream}",
        nearest(stream, offered),
    )


def _outputs(
    name: str, actions: Mapping[str, Any] | None, agent: AgentSpec, action_key: str
) -> dict[str, NDArray[np.intp]]:
    """Their keys to columns of our action row."""
    named, start = {}, 0
    for stream in agent.actions:
        named[stream.name] = range(start, start + stream.size)
        start += stream.size
    if actions is None:
        everything = {action_key: range(start)} if action_key else named
        return {key: np.array(columns, np.intp) for key, columns in everything.items()}
    made = {}
    for key, entry in actions.items():
        made[str(key)] = _columns(entry, named, start, f"embodiment {name}, action {key}")
    return made


def _columns(entry: Any, named: Mapping[str, range], dim: int, where: str) -> NDArray[np.intp]:
    """What an entry of `actions` takes of our action row."""
    known = ("columns", "streams", "size")
    if not isinstance(entry, Mapping):
        raise ConfigError("it is no mapping", where, f"give {', '.join(known)}, or {{}} for the whole action")
    for key in entry:
        if key not in known:
            raise ConfigError(f"unknown field {key}", where, nearest(key, known))
    for key in known[:2]:
        if key in entry and (isinstance(entry[key], str) or not isinstance(entry[key], Sequence) or not entry[key]):
            raise ConfigError(f"{key} is {entry[key]!r}", where, "give a list")
    columns: list[Any] = list(range(dim))
    if "streams" in entry:
        for stream in entry["streams"]:
            if stream not in named:
                raise SpecMismatch(f"there is no action stream {stream}", where, nearest(stream, named))
        columns = [column for stream in entry["streams"] for column in named[stream]]
    elif "columns" in entry:
        columns = list(entry["columns"])
        if not all(type(column) is int and 0 <= column < dim for column in columns):
            raise SpecMismatch(f"columns {columns}", where, f"the action row has columns 0 to {dim - 1}")
    if (size := entry.get("size", len(columns))) != len(columns):
        have = ", ".join(f"{stream} ({len(part)})" for stream, part in named.items())
        raise SpecMismatch(
            f"it takes {size} action numbers and would get {len(columns)}; there are {have}",
            where,
            "name the columns, or use a policy made for this embodiment",
        )
    return np.array(columns, np.intp)
