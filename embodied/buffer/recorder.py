"""A robot's episode, recorded a step at a time: a journal while it runs, one HDF5 file once it is closed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.buffer.container import verify, write_sealed
from embodied.buffer.journal import Frame, JournalWriter, is_recorded, read_journal
from embodied.buffer.layout import check_names, encode
from embodied.buffer.summary import pack_index, summarise
from embodied.data import Episode, Outcome, RewardStatus, Source, Track
from embodied.errors import CorruptFile, DataError, InfrastructureError
from embodied.files import clean_temporaries, fsync_dir
from embodied.spec import EnvSpec

JOURNAL = ".journal"
SET_ASIDE = ".corrupt"


class EpisodeRecorder:
    """Records one episode of one agent. A decision or step is acknowledged when its call returns.

    Args:
        folder: Made if it is not there; the file becomes `<id>.h5`.
        spec: Of the env.
        id, mode, policy, reward_version, seed: As in `Episode`.
        agent: The agent recorded.
        state: [S] float64 initial simulator state; none for a robot.
        drawn: What was randomised.

    Raises:
        FileExistsError: An episode of this id is being recorded.
        DataError: One is stored, or the id or agent is no name.
        InfrastructureError: No disk space.
    """

    def __init__(
        self,
        folder: Path,
        spec: EnvSpec,
        id: str,
        *,
        mode: str,
        policy: str,
        agent: str = "robot",
        reward_version: str = "",
        seed: int = 0,
        state: NDArray[np.float64] | None = None,
        drawn: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        check_names(id, agent)
        self.path = folder / f"{id}.h5"
        if self.path.exists():
            raise DataError(f"episode {id} is stored already", str(self.path), "give each episode its own id")
        self.steps, self.decisions = 0, 0
        meta = {
            "id": id, "mode": mode, "policy": policy, "agent": agent, "task": spec.task, "seed": int(seed),
            "reward_version": reward_version, "spec": spec.to_dict(),
        }  # fmt: skip
        arrays = {"state": np.zeros(0) if state is None else np.asarray(state, np.float64)}
        arrays |= {f"drawn/{name}": np.asarray(value) for name, value in (drawn or {}).items()}
        self._journal = JournalWriter(folder / f"{id}{JOURNAL}")
        try:
            self._journal.append("episode", meta, arrays)
        except InfrastructureError:
            self._journal.close()
            raise

    def decide(
        self, actions: NDArray[np.float32], log_probs: NDArray[np.float32], value: float, version: int, step: int = -1
    ) -> None:
        """Note a decision, which later steps execute.

        Args:
            actions, log_probs: [K, D] as sampled; log-probabilities are NaN where the policy has none.
            value: NaN where the policy has none.
            version: The weights that decided.
            step: The step whose observation it answers; that of the next step if not given.
        """
        meta = {"value": float(value), "version": int(version), "step": self.steps if step < 0 else int(step)}
        arrays = {"actions": np.asarray(actions, np.float32), "log_probs": np.asarray(log_probs, np.float32)}
        self._journal.append("decision", meta, arrays)
        self.decisions += 1

    def step(
        self,
        observation: Mapping[str, NDArray[Any]],
        k: int,
        applied: NDArray[np.float64],
        *,
        reward: float = 0.0,
        reward_status: RewardStatus = RewardStatus.PENDING,
        terminated: bool = False,
        truncated: bool = False,
        source: Source = Source.POLICY,
        trainable: bool = True,
        segment: str = "",
    ) -> None:
        """Note one step.

        Args:
            observation: Stream name to array, what was seen before the step.
            k: Which action of the last decision it executed.
            applied: [U] controls after the safety filter.
            reward, reward_status, terminated, truncated, source, trainable: As in `Segment`.
            segment: Id of the segment that carries the step to a learner; empty for none.

        Raises:
            DataError: No decision was noted before.
            InfrastructureError: No disk space; the step is not recorded.
        """
        if not self.decisions:
            raise DataError("a step without a decision", str(self.path), "call decide before the first step")
        meta = {
            "k": int(k), "decision": self.decisions - 1, "reward": float(reward), "reward_status": int(reward_status),
            "terminated": bool(terminated), "truncated": bool(truncated), "source": int(source),
            "trainable": bool(trainable), "segment": segment,
        }  # fmt: skip
        arrays = {f"obs/{name}": np.asarray(value) for name, value in observation.items()}
        self._journal.append("step", meta, arrays | {"applied": np.asarray(applied, np.float64)})
        self.steps += 1

    def close(self, outcome: Outcome, final: Mapping[str, NDArray[Any]]) -> Path | None:
        """Write the episode's file, then remove the journal.

        Args:
            outcome: How it ended.
            final: The observation after the last step.

        Returns:
            The file, or None for an episode without steps, which leaves none.

        Raises:
            InfrastructureError: No disk space; the journal stays, and `recover` makes the episode of it.
        """
        arrays = {f"obs/{name}": np.asarray(value) for name, value in final.items()}
        try:
            self._journal.append("end", {"outcome": int(outcome)}, arrays)
            return _seal(self._journal.path, self.path)
        finally:
            self._journal.close()

    def abandon(self) -> None:
        """Let go of the journal without closing the episode; `recover` makes a faulted episode of it."""
        self._journal.close()


@dataclass
class Recovered:
    """What `recover` found.

    Attributes:
        episodes: Files made of unfinished journals.
        removed: Temporary files, and journals without a step or whose episode was stored already.
        corrupt: Journals set aside, and why.
    """

    episodes: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    corrupt: list[tuple[Path, str]] = field(default_factory=list)


def recover(folder: Path) -> Recovered:
    """Clean up after killed writers: call it at start, before anything writes to the folder.

    An unfinished journal becomes an episode of outcome `INFRASTRUCTURE_FAULT` with every step acknowledged; its last
    step does not train, and the last observation stands in for the final one. Journals of living recorders stay.

    Raises:
        InfrastructureError: No disk space; the journals stay.
    """
    found = Recovered()
    if not folder.is_dir():
        return found
    found.removed += clean_temporaries(folder)
    for path in sorted(folder.glob(f"*{JOURNAL}")):
        if is_recorded(path):
            continue
        try:
            made = _seal(path, path.with_suffix(".h5"))
        except (CorruptFile, DataError) as error:
            aside = path.with_suffix(JOURNAL + SET_ASIDE)
            path.rename(aside)
            found.corrupt.append((aside, error.line()))
            continue
        if made:
            found.episodes.append(made)
        else:
            found.removed.append(path)
    return found


def _seal(journal: Path, path: Path) -> Path | None:
    """Make `path` of a journal and remove the journal; None where it holds no step or `path` is there already."""
    made = None
    if not _whole(path):
        episode = _episode(read_journal(journal), journal)
        if episode is not None:
            write_sealed(path, pack_index([summarise(episode)]), encode([episode]))
            made = path
    journal.unlink()
    fsync_dir(journal.parent)
    return made


def _whole(path: Path) -> bool:
    try:
        verify(path)
    except (FileNotFoundError, CorruptFile):
        return False
    return True


def _episode(frames: list[Frame], journal: Path) -> Episode | None:
    """The episode that frames tell of, or None without a step."""
    steps = [frame for frame in frames if frame.kind == "step"]
    if not steps:
        return None
    try:
        return _assemble(frames[0], [f for f in frames if f.kind == "decision"], steps, frames[-1])
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise CorruptFile(f"its frames do not make an episode: {error!r}", str(journal), "keep it for a look") from None


def _assemble(head: Frame, decisions: list[Frame], steps: list[Frame], last: Frame) -> Episode:
    ended = last.kind == "end"
    names = [name for name in steps[0].arrays if name.startswith("obs/")]
    final = (last if ended else steps[-1]).arrays
    columns = {name: np.array([frame.meta[name] for frame in steps]) for name in steps[0].meta if name != "segment"}
    # A decision that no step came to execute answers an observation that is not in the episode.
    used = int(columns["decision"].max()) + 1
    decisions = [d for n, d in enumerate(decisions) if n < used or d.meta["step"] < len(steps)]
    segments = list(dict.fromkeys(frame.meta["segment"] for frame in steps if frame.meta["segment"]))
    executed = np.zeros((len(decisions), len(decisions[0].arrays["actions"])), bool)
    executed[columns["decision"], columns["k"]] = True
    if not ended:
        columns["truncated"][-1], columns["trainable"][-1] = True, False
    track = Track(
        observations={n.removeprefix("obs/"): np.stack([*(f.arrays[n] for f in steps), final[n]]) for n in names},
        decision=columns["decision"].astype(np.int32),
        k=columns["k"].astype(np.int32),
        rewards=columns["reward"].astype(np.float32),
        reward_status=columns["reward_status"].astype(np.uint8),
        terminated=columns["terminated"],
        truncated=columns["truncated"],
        source=columns["source"].astype(np.uint8),
        trainable=columns["trainable"],
        applied=np.stack([frame.arrays["applied"] for frame in steps]),
        segment=np.array([_index(segments, frame.meta["segment"]) for frame in steps], np.int32),
        step=np.array([frame.meta["step"] for frame in decisions], np.int32),
        actions=np.stack([frame.arrays["actions"] for frame in decisions]),
        log_probs=np.stack([frame.arrays["log_probs"] for frame in decisions]),
        executed=executed,
        values=np.array([frame.meta["value"] for frame in decisions], np.float32),
        versions=np.array([frame.meta["version"] for frame in decisions], np.int64),
    )
    meta = head.meta
    return Episode(
        **{name: meta[name] for name in ("id", "task", "mode", "policy", "reward_version", "seed", "spec")},
        outcome=Outcome(last.meta["outcome"]) if ended else Outcome.INFRASTRUCTURE_FAULT,
        agents={meta["agent"]: track},
        initial_state=head.arrays["state"],
        drawn={n.removeprefix("drawn/"): v for n, v in head.arrays.items() if n.startswith("drawn/")},
        segments=segments,
    )


def _index(segments: list[str], name: str) -> int:
    return segments.index(name) if name else -1
