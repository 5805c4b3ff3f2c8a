"""Mapping between other projects' keys and streams, in both directions, from a small config per embodiment.

A gateway turns a request into streams (`observe`) and an action chunk into a reply (`reply`); a policy that asks
another project's server does the reverse (`request`, `actions_of`). All methods work on one row.

Example of a config, see `configs/embodiment/*.yaml`:

    name: mine
    streams:                     # our stream: their key. Left out: every stream under its own name.
      front: {key: observation/image, layout: chw, resize: true, shape: [3, 224, 224]}
      joint_pos: {key: state, shape: [8], columns: [0, 1, 2, 3, 4, 5, 6]}
      wrist: {key: [images, wrist]}                     # a map within a map
      instruction: {key: prompt, text: true, default: lift the cube}
    actions:                     # their key: our numbers. Left out: the default of the gateway's protocol.
      actions: {columns: [1, 0, 2], size: 3}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, DataError, SpecMismatch, nearest
from embodied.files import open_file
from embodied.gateways.stream_source import StreamSource, check_whole, sources_of
from embodied.search_path import config_files
from embodied.spec import AgentSpec, PolicySpec, Stream

FIELDS = ("name", "streams", "actions", "groot")
"""Fields of a config; `embodied.gateways.groot.key_mapping` reads `groot`."""

_MESSAGE_BYTES = 1 << 26
_SLACK = 1 << 20  # bytes of a message beside the arrays needed


@dataclass(frozen=True)
class Embodiment:
    """Mapping of one embodiment, checked against streams; made by `from_config` or `for_env`.

    Attributes:
        name: Name in the config.
        sources: Source of each observation stream.
        outputs: Their key to the columns of our action row.
        action_dim: D, numbers of our action row.
    """

    name: str
    sources: tuple[StreamSource, ...]
    outputs: Mapping[str, NDArray[np.intp]]
    action_dim: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str, spec: PolicySpec, action_key: str = "actions") -> Self:
        """Mapping for a policy of ours and other projects' clients.

        Args:
            config: A mapping, a name in `configs/embodiment`, or the path of a YAML file.
            spec: Spec of the policy; every observation stream needs a source.
            action_key: Their key of the whole action row where the config leaves `actions` out; empty for one key
                per action stream, of its name.

        Raises:
            ConfigError: The config is wrong; names the field.
            SpecMismatch: A stream has no source or cannot be made from it; names stream and key.
        """
        name, streams, actions = _fields(config)
        sources = sources_of(name, streams, spec.agent.observations, f"policy {spec.name}")
        outputs = _outputs(name, actions, spec.agent, action_key)
        return cls(name, sources, outputs, spec.agent.action_dim)

    @classmethod
    def for_env(cls, config: Mapping[str, Any] | str, agent: AgentSpec, action_key: str = "actions") -> Self:
        """Mapping for another project's server and an agent of ours, which may have more streams than are needed.

        Raises:
            ConfigError: The config is wrong, or an action number comes from no key.
            SpecMismatch: The agent lacks a stream of the config that has no default, or has it in another shape.
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
        sources = sources_of(name, streams, used, "the environment")
        check_whole(name, sources)
        return cls(name, sources, outputs, agent.action_dim)

    @property
    def request_bytes(self) -> int:
        """Approximate bytes of the arrays of the largest expected request."""
        return sum(source.bytes for source in self.sources)

    @property
    def message_bytes(self) -> int:
        """Longest request accepted: with images twice as large as expected, if that is within 64 MiB."""
        images = sum(source.bytes for source in self.sources if source.image)
        numbers = 8 * (self.request_bytes - images)  # they may come as float64 or int64
        return max(min(2 * images, _MESSAGE_BYTES), images) + numbers + _SLACK

    @property
    def keys(self) -> dict[str, dict[str, Any]]:
        """Description of a request: their key (nested ones joined by `/`) to path, stream, shape and dtype."""
        return {"/".join(source.path): source.describe() for source in self.sources}

    def observe(self, request: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Streams of a request, without the row axis.

        Raises:
            SpecMismatch: A key is missing, or of another shape or dtype; names stream, key and the value sent.
        """
        return {source.stream.name: source.take(request) for source in self.sources}

    def unread(self, request: Mapping[str, Any]) -> list[str]:
        """Their keys in a request that no stream reads, nested ones joined by `/`."""
        read = {source.path[: depth + 1] for source in self.sources for depth in range(len(source.path))}
        whole, found = {source.path for source in self.sources}, list[str]()

        def look(node: Mapping[str, Any], above: tuple[str, ...]) -> None:
            for key, value in node.items():
                path = (*above, str(key))
                if path not in read:
                    found.append("/".join(path))
                elif isinstance(value, Mapping) and path not in whole:
                    look(value, path)

        look(request, ())
        return found

    def reply(self, actions: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Reply for actions [K, D]: their keys to [K, d], owned."""
        return {key: actions[:, columns] for key, columns in self.outputs.items()}

    def request(self, streams: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Request to another project's server from one row of streams; a missing text is its default."""
        made: dict[str, Any] = {}
        for source in self.sources:
            source.put(made, streams.get(source.stream.name))
        return made

    def actions_of(self, reply: Mapping[str, Any]) -> NDArray[np.float32]:
        """Actions [K, D] from another project's answer.

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
    """Names of the embodiments in the config folders."""
    return list(config_files("embodiment"))


def read_config(config: Mapping[str, Any] | str) -> dict[str, Any]:
    """Config of an embodiment: the mapping itself, or the contents of the YAML file of that name or path.

    Raises:
        ConfigError: The file does not exist, or holds no mapping.
    """
    if isinstance(config, Mapping):
        return {str(key): value for key, value in config.items()}
    import yaml

    named = config_files("embodiment")
    path = named.get(config) or Path(config)
    try:
        if config not in named and path.suffix not in (".yaml", ".yml"):
            raise FileNotFoundError
        with open_file(path) as file:
            found = yaml.safe_load(file.read())
    except (OSError, UnicodeDecodeError):
        fix = f"{nearest(config, embodiment_names())} Or give the path of a YAML file"
        raise ConfigError("no such embodiment", f"embodiment {config}", fix) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {error}", f"embodiment {config}", "see configs/embodiment") from None
    if not isinstance(found, dict):
        raise ConfigError("the file holds no mapping", f"embodiment {config}", "see configs/embodiment")
    return {"name": path.stem, **found}


def _fields(config: Mapping[str, Any] | str) -> tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Name, `streams` and `actions` of a config, type-checked."""
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
    """Agent's stream of that name, or a stream for the default text."""
    if stream in offered:
        return offered[stream]
    if isinstance(entry, Mapping) and isinstance(entry.get("default"), str):
        return Stream(stream, (max(len(entry["default"].encode()), 1),), "uint8")
    raise SpecMismatch(
        f"embodiment {name} needs stream {stream}, which the environment does not have",
        f"embodiment {name}, stream {stream}",
        nearest(stream, offered),
    )


def _outputs(
    name: str, actions: Mapping[str, Any] | None, agent: AgentSpec, action_key: str
) -> dict[str, NDArray[np.intp]]:
    """Mapping of their keys to columns of our action row."""
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
    """Columns of our action row that an entry of `actions` names."""
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
