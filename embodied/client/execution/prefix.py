"""Real-time chunking by prefix: the next chunk is asked for with the actions that will be executed until it comes.

Source: Black et al. 2025, "Training-Time Action Conditioning for Efficient Real-Time Chunking" (arXiv:2512.05964): the
policy is given the first d actions as they are, d the delay in steps, and makes the rest follow them. A policy says
that it can by needing the streams `embodied.spec.CLIENT_STREAMS`, which the client fills.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.client.execution.kept import Floats, Kept, newest
from embodied.errors import ConfigError, SpecMismatch
from embodied.settings import AtLeastOne, Count, settings
from embodied.spec import CLIENT_STREAMS, PolicySpec

_PREFIX, _LENGTH = CLIENT_STREAMS


@settings()
class RealTime:
    """Each step executes the newest chunk's action for it; chunks continue the actions executed before them.

    Attributes:
        execute: Actions of a chunk to execute before asking again. What is left of K after them has to last until the
            answer is there.
        delay: Steps an answer is expected to take before any has been measured.
    """

    execute: AtLeastOne
    delay: Count = 0
    on_policy = False
    prefixed = True

    def kept(self, chunk: int) -> int:
        return 1

    def choose(self, kept: Kept) -> Floats:
        return newest(kept)


def prefix(actions: Floats, k: NDArray[np.int32], delay: NDArray[np.int32]) -> tuple[Floats, NDArray[np.int32]]:
    """Actions of each row's chunk that will be executed until the answer to the present observation comes.

    Args:
        actions: [B, K, D] the chunks being executed.
        k: [B] index of the action for the present step; K or more where there is none.
        delay: [B] steps until the answer.

    Returns:
        The actions from k on, [B, K, D], zeros beyond their number, and that number, [B] int32, at most `delay`.
    """
    count, chunk, _ = actions.shape
    length = np.minimum(np.maximum(chunk - k, 0), delay).astype(np.int32)
    step = np.arange(chunk)
    index = np.minimum(k[:, None] + step, chunk - 1)
    shifted = actions[np.arange(count)[:, None], index]
    return np.where(step[None, :, None] < length[:, None, None], shifted, np.float32(0)), length


def merge(actions: Floats, given: Floats, length: NDArray[np.int32]) -> Floats:
    """[B, K, D] the answer `actions` with the prefix it was `given` in its first `length` [B] places.

    So that what was promised is executed, even where the answer comes early or the policy does not repeat it exactly.
    """
    step = np.arange(actions.shape[1])
    return np.where(step[None, :, None] < length[:, None, None], given, actions)


def supported(policy: PolicySpec) -> bool:
    """Whether a policy takes prefixes."""
    return any(stream.name in CLIENT_STREAMS for stream in policy.agent.observations)


def check(policy: PolicySpec) -> None:
    """Raise unless a policy takes prefixes of its own chunks.

    Raises:
        ConfigError: It does not take prefixes.
        SpecMismatch: Its two streams are not [K, D] float32 and [] or [1] int32.
    """
    streams = {stream.name: stream for stream in policy.agent.observations}
    if not any(name in streams for name in CLIENT_STREAMS):
        raise ConfigError(
            f"policy {policy.name} takes no action prefix, which real-time chunking needs",
            "chunk execution",
            "use receding horizon or ensembling, or a policy trained with prefixes",
        )
    wanted = ((_PREFIX, "float32", ((policy.chunk, policy.agent.action_dim),)), (_LENGTH, "int32", ((), (1,))))
    for name, dtype, shapes in wanted:
        if name not in streams or streams[name].dtype != dtype or streams[name].shape not in shapes:
            given = f"{streams[name].dtype} {streams[name].shape}" if name in streams else "nothing"
            raise SpecMismatch(
                f"policy {policy.name} has {given} as {name}", f"stream {name}", f"it has to be {dtype} {shapes[0]}"
            )


def streams(policy: PolicySpec, given: Floats, length: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """Prefixes as the streams that the policy needs; none where it takes none."""
    shapes: Mapping[str, tuple[int, ...]] = {stream.name: stream.shape for stream in policy.agent.observations}
    filled: dict[str, NDArray[Any]] = {}
    if _PREFIX in shapes:
        filled[_PREFIX] = given
    if _LENGTH in shapes:
        filled[_LENGTH] = length.reshape(len(length), *shapes[_LENGTH])
    return filled


def no_prefix(policy: PolicySpec, rows: int) -> dict[str, NDArray[Any]]:
    """Streams that say "nothing is being executed" for B rows; none where the policy takes no prefix."""
    nothing = np.zeros((rows, policy.chunk, policy.agent.action_dim), np.float32)
    return streams(policy, nothing, np.zeros(rows, np.int32)) if supported(policy) else {}
