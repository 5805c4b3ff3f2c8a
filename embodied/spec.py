"""Specs of what environments sense and obey, and of what policies need and give; the check that they fit.

A `Stream` is a named array with shape, dtype, unit, frame, rotation convention and rate. An environment *offers*
observation streams and *needs* action streams; a policy *needs* observation streams and *offers* action streams.
Matching is field by field, and an error names the stream and the field.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embodied.errors import MessageError, SpecMismatch, nearest

CLIENT_STREAMS = ("action_prefix", "prefix_length")
"""Streams of a policy that its client fills, not the environment: the actions that will be executed before its answer
can be, [K, D] float32, and their number, [] or [1] int32; see `embodied.client.execution.prefix`."""

DEFAULT_AGENT = "robot"
"""Name of the agent of a task that has one, unless the task names it."""

STREAM_DTYPES = ("float32", "uint8", "int32")
MAX_SIZE = 2**31 - 1
"""Most numbers in one row's value of a stream."""
ROTATIONS = ("", "quat_wxyz", "quat_xyzw", "rotvec", "euler_xyz", "rot6d", "matrix")


_ANOTHER = "use a policy trained for this environment, or an environment that fits"
_OPTIONAL = ("control_hz", "range")  # of older specs, which `difference` does not miss


@dataclass(frozen=True)
class Stream:
    """One named array per row and step.

    Attributes:
        name: Name without the agent, such as `joint_pos`.
        shape: Shape of one row's value.
        dtype: One of `STREAM_DTYPES`.
        unit: Physical unit, such as `rad`, `m`, `m/s`; `1` for a ratio; empty for pixels and tokens.
        frame: Frame the numbers are expressed in, such as `base`; empty where none applies.
        rotation: One of `ROTATIONS`; empty where the stream is no rotation.
        rate_hz: Samples per second on the environment's clock; 0 where the stream comes once per step.
        limit: Of an action, the largest magnitude of each number that is obeyed, beyond which an environment clips;
            0 for none. A policy takes it for one unit.
        range: Least and largest number that can be sensed; empty where none is stated. Requests are checked against it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    unit: str = ""
    frame: str = ""
    rotation: str = ""
    rate_hz: float = 0.0
    limit: float = 0.0
    range: tuple[float, float] | tuple[()] = ()

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise SpecMismatch(f"stream name {self.name!r} is empty or holds a slash", "spec", "leave the agent out")
        if self.dtype not in STREAM_DTYPES:
            raise SpecMismatch(f"stream {self.name} has dtype {self.dtype!r}", "spec", f"use one of {STREAM_DTYPES}")
        if self.rotation not in ROTATIONS:
            raise SpecMismatch(f"stream {self.name}: rotation {self.rotation!r}", "spec", f"use one of {ROTATIONS}")
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        if any(n < 0 for n in self.shape) or self.size > MAX_SIZE:
            raise SpecMismatch(f"stream {self.name} has shape {self.shape}", "spec", f"give at most {MAX_SIZE} numbers")
        for name in ("rate_hz", "limit"):
            value = getattr(self, name)
            if isinstance(value, bool) or not 0 <= value < math.inf:
                raise SpecMismatch(f"stream {self.name} has {name} {value!r}", "spec", "give a number, 0 for none")
        object.__setattr__(self, "range", tuple(float(bound) for bound in self.range))
        if self.range and not (len(self.range) == 2 and self.range[0] < self.range[1]):
            raise SpecMismatch(f"stream {self.name} has range {self.range}", "spec", "give least and largest, or none")

    @property
    def size(self) -> int:
        """Number of elements of one row's value."""
        return math.prod(self.shape)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `range` only where it is stated."""
        data = {**asdict(self), "shape": list(self.shape)}
        return data | {"range": list(self.range)} if self.range else {k: v for k, v in data.items() if k != "range"}


Streams = tuple[Stream, ...]


def match(needs: Streams, offers: Streams, needer: str, offerer: str) -> None:
    """Check that every stream in `needs` is in `offers`, field by field; more may be offered than needed.

    A field that `needs` leaves empty (unit, frame, rotation, rate) is not compared, nor a limit that either leaves out.

    Raises:
        SpecMismatch: Names the first stream and field that differ, and both values.
    """
    offered = {stream.name: stream for stream in offers}
    for need in needs:
        if need.name not in offered:
            raise SpecMismatch(
                f"{needer} needs stream {need.name}, which {offerer} does not offer",
                f"stream {need.name}",
                nearest(need.name, offered),
            )
        offer = offered[need.name]
        for name in ("shape", "dtype", "unit", "frame", "rotation", "rate_hz"):
            wanted, given = getattr(need, name), getattr(offer, name)
            optional = name in ("unit", "frame", "rotation", "rate_hz")
            if wanted != given and not (optional and not wanted):
                raise SpecMismatch(
                    f"{needer} needs {need.name} with {name} {wanted!r}, {offerer} offers {given!r}",
                    f"stream {need.name}, field {name}",
                    _ANOTHER,
                )
        if need.limit and offer.limit and not math.isclose(need.limit, offer.limit, rel_tol=1e-6):
            raise SpecMismatch(
                f"{needer} obeys {need.name} up to {need.limit:g}, {offerer} gives up to {offer.limit:g}",
                f"stream {need.name}, field limit",
                _ANOTHER,
            )


@dataclass(frozen=True)
class AgentSpec:
    """One agent's streams.

    Attributes:
        observations: Streams offered by an environment, or needed by a policy.
        actions: Streams needed by an environment, or offered by a policy. An action row is their float32
            concatenation in this order, `action_dim` numbers.
    """

    observations: Streams
    actions: Streams

    @property
    def action_dim(self) -> int:
        return sum(stream.size for stream in self.actions)

    @property
    def action_limits(self) -> NDArray[np.float32]:
        """[D] largest magnitudes that are obeyed, infinite where an action stream states none."""
        limits = [stream.limit or np.inf for stream in self.actions for _ in range(stream.size)]
        return np.array(limits, np.float32)

    def to_dict(self) -> dict[str, Any]:
        return {
            "observations": [stream.to_dict() for stream in self.observations],
            "actions": [stream.to_dict() for stream in self.actions],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_dict`.

        Raises:
            MessageError: A field is missing, unknown or of a wrong type.
        """
        with _foreign("a spec", "AgentSpec"):
            return cls(_streams(data["observations"]), _streams(data["actions"]))

    @property
    def hash(self) -> str:
        """Twelve hex digits that change with any field: a cache key, not the test of a match."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class EnvSpec:
    """Streams that an environment, simulated or real, offers and needs, per agent.

    Attributes:
        task: Name of the task, such as `lift_cube`.
        agents: Agent name to its streams; a task of one agent calls it `DEFAULT_AGENT`. Their order
            is part of the spec: `Rows.agent` is an index into it.
        control_hz: Decisions per second of the environment's control loop.
        instruction: The task in words.
        episode_steps: Time limit in control steps.
        state_size: Length of the simulator's float64 state row; 0 for a robot.
        control_size: Length of the applied float64 control row.
    """

    task: str
    agents: Mapping[str, AgentSpec]
    control_hz: float
    instruction: str = ""
    episode_steps: int = 0
    state_size: int = 0
    control_size: int = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EnvSpec):
            return NotImplemented
        same = all(getattr(self, name) == getattr(other, name) for name in self.__dataclass_fields__)
        return same and list(self.agents) == list(other.agents)

    @property
    def only_agent(self) -> str:
        """Name of the agent of an environment that has one.

        Raises:
            SpecMismatch: It has several, or none.
        """
        if len(self.agents) != 1:
            what = f"task {self.task} has {len(self.agents)} agents"
            raise SpecMismatch(what, "agents", f"name one of {', '.join(self.agents)}"[:200])
        return next(iter(self.agents))

    def to_dict(self) -> dict[str, Any]:
        return {
            **{k: getattr(self, k) for k in self.__dataclass_fields__ if k != "agents"},
            "agents": {name: agent.to_dict() for name, agent in self.agents.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """As `AgentSpec.from_dict`."""
        with _foreign("an environment's spec", "EnvSpec"):
            rest = {k: data[k] for k in cls.__dataclass_fields__ if k != "agents"}
            return cls(agents={name: AgentSpec.from_dict(agent) for name, agent in data["agents"].items()}, **rest)


@dataclass(frozen=True)
class PolicySpec:
    """Streams that a policy needs and gives.

    Attributes:
        name: The policy's name, under which its versions are kept.
        agent: Streams needed (observations) and given (actions).
        chunk: Actions in one chunk, K.
        execute: Actions of a chunk to execute before asking again; 1 to K.
        extra: Other properties that identify the policy (network sizes, tokenizer), compared when a checkpoint is
            loaded.
        stored: Arrays that a sampled decision carries beside its actions, from which a learner evaluates it, such as
            the path of a denoising; one of each per decision.
        critic: Streams that only the critic reads, in training; a request for actions need not have them.
        control_hz: Actions per second for which it was made; 0 where that is unknown, as of older versions.
    """

    name: str
    agent: AgentSpec
    chunk: int = 1
    execute: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
    stored: Streams = ()
    critic: Streams = ()
    control_hz: float = 0.0

    @property
    def whole_agent(self) -> AgentSpec:
        """Streams from which the policy is built: its agent, with the streams that only its critic reads."""
        return AgentSpec((*self.agent.observations, *self.critic), self.agent.actions)

    def check_env(self, env: EnvSpec, agent: str | None = None) -> None:
        """Raise `SpecMismatch` unless this policy can drive `agent` of `env`; None for its only agent."""
        agent = env.only_agent if agent is None else agent
        if agent not in env.agents:
            raise SpecMismatch(f"task {env.task} has no agent {agent}", "agents", nearest(agent, env.agents))
        if self.control_hz and not math.isclose(self.control_hz, env.control_hz, rel_tol=1e-6):
            raise SpecMismatch(
                f"policy {self.name} acts {self.control_hz:g} times a second, task {env.task} {env.control_hz:g} times",
                "control_hz",
                "run the environment at the policy's rate, or use a policy trained at this one",
            )
        theirs = env.agents[agent]
        needs = tuple(stream for stream in self.agent.observations if stream.name not in CLIENT_STREAMS)
        match(needs, theirs.observations, f"policy {self.name}", f"task {env.task}")
        match(theirs.actions, self.agent.actions, f"task {env.task}", f"policy {self.name}")
        if self.agent.action_dim != theirs.action_dim:
            raise SpecMismatch(
                f"policy {self.name} gives {self.agent.action_dim} action numbers, "
                f"{env.task} takes {theirs.action_dim}",
                "actions",
                "use a policy trained for this environment",
            )

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "agent": self.agent.to_dict(),
            "chunk": self.chunk,
            "execute": self.execute,
            "extra": json.loads(json.dumps(dict(self.extra))),
            **{
                name: [stream.to_dict() for stream in streams]
                for name, streams in (("stored", self.stored), ("critic", self.critic))
                if streams
            },
            **({"control_hz": self.control_hz} if self.control_hz else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """As `AgentSpec.from_dict`."""
        with _foreign("a policy's spec", "PolicySpec"):
            return cls(
                str(data["name"]),
                AgentSpec.from_dict(data["agent"]),
                int(data["chunk"]),
                int(data["execute"]),
                dict(data["extra"]),
                stored=_streams(data.get("stored", ())),
                critic=_streams(data.get("critic", ())),
                control_hz=float(data.get("control_hz", 0.0)),
            )


def _streams(data: Any) -> Streams:
    return tuple(Stream(**{**stream, "shape": tuple(stream["shape"])}) for stream in data)


@contextmanager
def _foreign(what: str, maker: str) -> Iterator[None]:
    """Turn whatever goes wrong in reading foreign data into one `MessageError`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, SpecMismatch) as error:
        why = error.what if isinstance(error, SpecMismatch) else repr(error)
        raise MessageError(f"not {what}: {why}"[:500], "spec", f"send what {maker}.to_dict makes") from None


def difference(saved: Any, wanted: Any) -> tuple[str, str, str] | None:
    """The first field in which two specs, as dictionaries, differ: its name and both values, shortened; else None.

    A field that is null counts as missing. Fields that specs did not always have count only where both have them.
    Either may come from someone else: plain JSON, of any form.
    """
    return None if saved == wanted else _difference(json.loads(json.dumps(saved)), json.loads(json.dumps(wanted)), "")


def _difference(saved: Any, wanted: Any, at: str) -> tuple[str, str, str] | None:
    if isinstance(saved, dict) and isinstance(wanted, dict):
        pairs = [(f"{at}.{key}" if at else key, saved.get(key), wanted.get(key)) for key in sorted({*saved, *wanted})]
        pairs = [pair for pair in pairs if pair[0].rpartition(".")[2] not in _OPTIONAL or None not in pair]
    elif isinstance(saved, list) and isinstance(wanted, list) and any(isinstance(x, dict) for x in saved + wanted):
        longer = saved if len(saved) > len(wanted) else wanted
        names = [str(x.get("name", i) if isinstance(x, dict) else i) for i, x in enumerate(longer)]
        pad = [None] * len(names)
        pairs = [(f"{at}[{n}]", a, b) for n, a, b in zip(names, saved + pad, wanted + pad, strict=False)]
    else:
        same = saved == wanted or json.dumps(saved, sort_keys=True) == json.dumps(
            wanted, sort_keys=True
        )  # two NaN are not equal
        return None if same else (at[:200], _short(saved), _short(wanted))
    return next((found for name, a, b in pairs if (found := _difference(a, b, name))), None)


def _short(value: Any) -> str:
    return "missing" if value is None else json.dumps(value)[:100]
