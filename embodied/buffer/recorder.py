"""Recording of a robot's episode step by step: a journal while it runs, one HDF5 file once it is closed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.buffer.container import verify, write_sealed
from embodied.buffer.encode import encode
from embodied.buffer.journal import JournalWriter, is_recorded, read_journal
from embodied.buffer.journal_episode import build_episode
from embodied.buffer.layout import check_agent, check_id, flat_name
from embodied.buffer.summary import pack_index, summarise
from embodied.data import Outcome, RewardStatus, Rule, Source
from embodied.errors import CorruptFile, DataError, InfrastructureError, nearest
from embodied.files import clean_temporaries, fsync_dir
from embodied.spec import EnvSpec

JOURNAL = ".journal"
SET_ASIDE = ".corrupt"

Picture = bytes
"""A JPEG file, as the policy saw it."""


class EpisodeRecorder:
    """Recorder of one episode. A decision or step is acknowledged when its call returns.

    Calls name the agent that they are about; where one agent is recorded, they may leave it out.

    Args:
        folder: Made if it is not there; the file becomes `<id>.h5`, with `~` for the slashes of the id.
        spec: Of the environment.
        id, mode, reward_version, seed: As in `Episode`.
        policies: Name of each recorded agent to that of the policy that drives it.
        state: [S] float64 initial simulator state; none for a robot.
        drawn: As in `Resets`.

    Raises:
        FileExistsError: An episode of this id is being recorded.
        DataError: One is stored, or the id or an agent is no name of an agent of the spec.
        InfrastructureError: No disk space.
    """

    def __init__(
        self,
        folder: Path,
        spec: EnvSpec,
        id: str,
        *,
        mode: str,
        policies: Mapping[str, str],
        reward_version: str = "",
        seed: int = 0,
        state: NDArray[np.float64] | None = None,
        drawn: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        check_id(id)
        for agent in policies:
            check_agent(id, agent)
            if agent not in spec.agents:
                raise DataError(f"no agent {agent!r}", f"episode {id}", nearest(agent, spec.agents))
        if not policies:
            raise DataError("no agent to record", f"episode {id}", "name the policy of one at least")
        self.path = folder / f"{flat_name(id)}.h5"
        if self.path.exists():
            raise DataError(f"episode {id} is stored already", str(self.path), "give each episode its own id")
        self.steps, self.decisions = dict.fromkeys(policies, 0), dict.fromkeys(policies, 0)
        self._running = set(policies)
        meta = {
            "id": id, "mode": mode, "policies": dict(policies), "task": spec.task, "seed": int(seed),
            "reward_version": reward_version, "spec": spec.to_dict(),
        }  # fmt: skip
        arrays = {"state": np.zeros(0) if state is None else np.asarray(state, np.float64)}
        arrays |= {f"drawn/{name}": np.asarray(value) for name, value in (drawn or {}).items()}
        self._journal = JournalWriter(folder / f"{flat_name(id)}{JOURNAL}")
        try:
            self._journal.append("episode", meta, arrays)
        except InfrastructureError:
            self._journal.close()
            raise

    def decide(
        self,
        actions: NDArray[np.float32],
        log_probs: NDArray[np.float32],
        value: float,
        version: int,
        *,
        step: int = -1,
        agent: str = "",
    ) -> int:
        """Record a decision.

        Args:
            actions, log_probs: [K, D] as sampled; log-probabilities are NaN where the policy has none.
            value: NaN where the policy has none.
            version: The weights that decided.
            step: The step whose observation it answers, earlier than the next one if the answer came late; the next
                step if not given.

        Returns:
            The decision's number, by which steps name it.
        """
        agent = self._agent(agent)
        asked = self.steps[agent] if step < 0 else int(step)
        meta = {"agent": agent, "value": float(value), "version": int(version), "step": asked}
        arrays = {"actions": np.asarray(actions, np.float32), "log_probs": np.asarray(log_probs, np.float32)}
        self._journal.append("decision", meta, arrays)
        self.decisions[agent] += 1
        return self.decisions[agent] - 1

    def step(
        self,
        observation: Mapping[str, NDArray[Any] | Picture],
        decision: int,
        k: int,
        applied: NDArray[np.float64],
        *,
        time: float = float("nan"),
        times: Mapping[str, float] | None = None,
        requested: NDArray[np.float32] | None = None,
        executed: NDArray[np.float32] | None = None,
        rule: Rule = Rule.NONE,
        reward: float = 0.0,
        reward_status: RewardStatus = RewardStatus.PENDING,
        terminated: bool = False,
        truncated: bool = False,
        source: Source = Source.POLICY,
        trainable: bool = True,
        segment: str = "",
        agent: str = "",
    ) -> None:
        """Record one step.

        Args:
            observation: Stream name to array or JPEG file, sensed before the step.
            decision, k: The decision that the step executes, and the index of the action in it; -1 for none.
            applied: [U] controls after the safety filter.
            time: Capture time of the observation in seconds, on the environment's monotonic clock.
            times: Stream name to capture time, of the streams that were not captured at `time`.
            requested: [D] the action that was asked for, where it is not the decision's.
            executed: [D] the action that was executed, where it is not the requested one.
            rule: The rule that changed it.
            reward, reward_status, terminated, truncated, source, trainable: As in `Segment`.
            segment: Id of the segment that carries the step to a learner; empty for none.

        Raises:
            DataError: The decision was not recorded before.
            InfrastructureError: No disk space; the step is not recorded.
        """
        agent = self._agent(agent)
        if not -1 <= decision < self.decisions[agent] or (decision < 0) != (k < 0):
            what = f"a step of {agent} without a decision: {decision} of {self.decisions[agent]}, k {k}"
            raise DataError(what, str(self.path), "call decide before the step, or give -1 for both")
        meta = {
            "agent": agent, "k": int(k), "decision": int(decision), "reward": float(reward),
            "reward_status": int(reward_status), "terminated": bool(terminated), "truncated": bool(truncated),
            "source": int(source), "trainable": bool(trainable), "segment": segment, "time": float(time),
            "times": {name: float(value) for name, value in (times or {}).items()}, "rule": int(rule),
        }  # fmt: skip
        arrays = _sensed(observation) | {"applied": np.asarray(applied, np.float64)}
        if requested is not None:
            arrays["requested"] = np.asarray(requested, np.float32)
        if executed is not None:
            arrays["executed"] = np.asarray(executed, np.float32)
        self._journal.append("step", meta, arrays)
        self.steps[agent] += 1

    def close(
        self,
        outcome: Outcome,
        final: Mapping[str, NDArray[Any] | Picture],
        *,
        time: float = float("nan"),
        times: Mapping[str, float] | None = None,
        agent: str = "",
    ) -> Path | None:
        """End an agent's track. When all agents have ended, write the episode's file, then remove the journal.

        Args:
            outcome: The end of the agent's episode.
            final: The observation after the last step.
            time, times: Capture times of `final`, as in `step`.

        Returns:
            The file; None while agents go on, and for an episode without steps, which leaves none.

        Raises:
            InfrastructureError: No disk space; the journal stays, and `recover` makes the episode of it.
        """
        agent = self._agent(agent)
        meta = {"agent": agent, "outcome": int(outcome), "time": float(time), "times": dict(times or {})}
        self._running.discard(agent)
        try:
            self._journal.append("end", meta, _sensed(final))
            return None if self._running else _seal(self._journal.path, self.path)
        finally:
            if not self._running:
                self._journal.close()

    def abandon(self) -> None:
        """Close the journal without ending the episode; `recover` makes a faulted episode of it."""
        self._journal.close()

    def _agent(self, agent: str) -> str:
        if not agent and len(self.steps) == 1:
            return next(iter(self.steps))
        if agent not in self._running:
            what = f"agent {agent!r} is not recorded, or has ended" if agent else "no agent named"
            raise DataError(what, str(self.path), f"recorded: {', '.join(self.steps)}")
        return agent


def _sensed(observation: Mapping[str, NDArray[Any] | Picture]) -> dict[str, NDArray[Any]]:
    """Arrays of a frame: `obs/<stream>`, and `jpeg/<stream>` for JPEG files."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in observation.items():
        if isinstance(value, bytes):
            arrays[f"jpeg/{name}"] = np.frombuffer(value, np.uint8)
        else:
            arrays[f"obs/{name}"] = np.asarray(value)
    return arrays


@dataclass
class Recovered:
    """Files that `recover` made, removed and set aside.

    Attributes:
        episodes: Files made of unfinished journals.
        removed: Temporary files, and journals without a step or whose episode was stored already.
        corrupt: Journals set aside, and the reason.
    """

    episodes: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    corrupt: list[tuple[Path, str]] = field(default_factory=list)


def recover(folder: Path) -> Recovered:
    """Clean up after killed writers: call it at start, before anything writes to the folder.

    An unfinished journal becomes an episode of outcome `INFRASTRUCTURE_FAULT` with every step acknowledged. The last
    step of a track without an end does not train, and its last observation stands in for the final one. Journals of
    living recorders stay.

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
        episode = build_episode(read_journal(journal), journal)
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
