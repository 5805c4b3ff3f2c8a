"""Streams that a policy reads, and their conversion from physical values to a network's inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError, SpecMismatch, nearest
from embodied.spec import AgentSpec, Stream, Streams
from policies.words import Words

Arrays = dict[str, NDArray[Any]]

_INPUTS = ("state", "critic", "words")  # of `policies.network.Inputs`, beside pictures


@dataclass(frozen=True)
class Senses:
    """The streams of one policy, by what they are.

    Attributes:
        state: float32 numbers, concatenated in this order; F of them.
        pictures: uint8 [H, W, 3].
        instruction: uint8 [bytes] of a text in UTF-8; None where the policy reads no words.
        words: Its tokenizer.
        critic: float32 numbers that only the critic reads, C of them: what a simulator knows and a robot does not
            (asymmetric actor-critic, Pinto et al. 2017, arXiv:1710.06542). A policy asked to act does not need them.
    """

    state: Streams = ()
    pictures: Streams = ()
    instruction: Stream | None = None
    words: Words | None = None
    critic: Streams = ()

    @classmethod
    def choose(
        cls,
        agent: AgentSpec,
        state: Sequence[str] = (),
        pictures: Sequence[str] | None = None,
        instruction: str | None = "instruction",
        words: Words | None = None,
        critic: Sequence[str] = (),
    ) -> Self:
        """The streams of these names, or of one name; `pictures` None takes every picture that the body offers.

        Raises:
            SpecMismatch: The env does not offer one, it is of another kind, it is named twice, or it is a picture
                whose name is another input's.
        """
        offered = {stream.name: stream for stream in agent.observations}

        def take(given: Sequence[str], kind: str, dtype: str, dims: int | None) -> Streams:
            names = [given] if isinstance(given, str) else given
            for name in names:
                if list(names).count(name) > 1:
                    raise SpecMismatch(f"the policy's {kind} names {name} twice", f"stream {name}", "name it once")
                if name not in offered:
                    what = f"the policy's {kind} names {name}, which the env does not offer"
                    fix = nearest(name, offered)
                    if kind == "pictures":
                        fix = f"give env.cameras, such as env.cameras=[front], or {fix}"
                    raise SpecMismatch(what, f"stream {name}", fix)
                stream = offered[name]
                if stream.dtype != dtype or (dims is not None and len(stream.shape) != dims):
                    raise SpecMismatch(
                        f"the policy's {kind} names {name}, which is {stream.dtype} {list(stream.shape)}",
                        f"stream {name}", f"choose a {dtype} stream" + (f" of {dims} dimensions" if dims else ""),
                    )  # fmt: skip
                if kind == "pictures" and name in _INPUTS:
                    what = f"the policy's pictures name {name}, which is what a network calls another input"
                    raise SpecMismatch(what, f"stream {name}", "rename the camera's stream, or leave it out")
            return tuple(offered[name] for name in names)

        if pictures is None:
            pictures = [s.name for s in agent.observations if s.dtype == "uint8" and s.shape[2:] == (3,)]
        text = take([instruction], "instruction", "uint8", 1)[0] if instruction else None
        return cls(
            take(state, "state", "float32", None), take(pictures, "pictures", "uint8", 3), text,
            (words or Words()) if text else None, take(critic, "critic", "float32", None),
        )  # fmt: skip

    @property
    def observations(self) -> Streams:
        """Streams that the policy needs in order to act."""
        return (*self.state, *self.pictures, *((self.instruction,) if self.instruction else ()))

    @property
    def names(self) -> list[str]:
        """Of every stream read, the critic's included."""
        return [stream.name for stream in (*self.observations, *self.critic)]

    @property
    def sizes(self) -> tuple[int, int]:
        """F and C."""
        return sum(s.size for s in self.state), sum(s.size for s in self.critic)

    @property
    def identity(self) -> dict[str, Any]:
        """Part of it that a version of weights depends on, for `PolicySpec.extra`."""
        return {"tokenizer": self.words.name} if self.words else {}

    def numbers(
        self, streams: Mapping[str, NDArray[Any]], rows: int, pad: int = 0, critic: bool = True
    ) -> NDArray[np.float32]:
        """State, and what the critic reads if it is wanted, of `rows` rows in the leading axes: [rows + pad, F (+ C)]
        float32, zeros below.

        Raises:
            SpecMismatch: A stream is missing or has another size.
        """
        wanted = (*self.state, *self.critic) if critic else self.state
        if not (rows and wanted):
            return np.zeros((rows + pad, sum(stream.size for stream in wanted)), np.float32)
        parts = [self._taken(stream, streams, rows).reshape(rows, -1) for stream in wanted]
        return _padded(np.concatenate(parts, axis=1, dtype=np.float32), pad)

    def rest(self, streams: Mapping[str, NDArray[Any]], rows: int, pad: int = 0) -> Arrays:
        """Pictures by their names [rows + pad, H, W, 3] uint8, and `words` [rows + pad, L] int64; zeros below.

        Raises:
            SpecMismatch: As `numbers`.
            DataError: As `check`.
        """
        made: Arrays = {}
        for stream in self.pictures:
            array = self._taken(stream, streams, rows).reshape(rows, *stream.shape)
            made[stream.name] = _padded(array, pad)
        if self.instruction and self.words:
            texts = self._taken(self.instruction, streams, rows).reshape(rows, -1)
            made["words"] = _padded(self.words.encode(texts), pad)
        return made

    def check(self, streams: Mapping[str, NDArray[Any]], rows: int) -> None:
        """Raise `DataError` for an instruction that is no text, or holds no word; names its row."""
        if self.instruction and self.words and rows:
            self.words.encode(self._taken(self.instruction, streams, rows).reshape(rows, -1))

    def _taken(self, stream: Stream, streams: Mapping[str, NDArray[Any]], rows: int) -> NDArray[Any]:
        array = streams.get(stream.name)
        if array is None or array.size != rows * stream.size:
            where, fix = f"stream {stream.name}", nearest(stream.name, streams)
            if stream in self.critic:
                fix = "record it, or give policy.critic=[]"
            raise SpecMismatch(f"stream {stream.name} with shape {stream.shape} is needed in {rows} rows", where, fix)
        return array


def _padded(array: NDArray[Any], pad: int) -> NDArray[Any]:
    return array if not pad else np.concatenate([array, np.zeros((pad, *array.shape[1:]), array.dtype)])


def action_scales(agent: AgentSpec, action_scale: float | Mapping[str, float] | None = None) -> list[float]:
    """[D] physical units of one raw unit, from one number, from numbers by stream name, or from the streams' limits.

    Raises:
        SpecMismatch: An action stream is not float32.
        ConfigError: A scale is not positive, or names no action stream.
    """
    for stream in agent.actions:
        if stream.dtype != "float32":
            raise SpecMismatch(f"a policy cannot give {stream.dtype}", f"stream {stream.name}", "use float32")
    by_name = {stream.name: stream.limit or 1.0 for stream in agent.actions}
    if isinstance(action_scale, Mapping):
        for name in action_scale:
            if name not in by_name:
                raise ConfigError(f"action_scale names {name}", "policy", nearest(name, by_name))
        by_name |= {name: float(value) for name, value in action_scale.items()}
    elif action_scale is not None:
        by_name = dict.fromkeys(by_name, float(action_scale))
    if any(not value > 0 for value in by_name.values()):
        raise ConfigError(f"action_scale {by_name}", "policy", "scales must be positive")
    return [by_name[stream.name] for stream in agent.actions for _ in range(stream.size)]
