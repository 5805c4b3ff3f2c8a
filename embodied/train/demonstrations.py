"""Demonstrations of a run: by the task's scripted expert, or from stored episodes."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from embodied.buffer.layout import FORMAT, FORMAT_1
from embodied.buffer.reader import read_summaries
from embodied.buffer.store import EpisodeStore
from embodied.buffer.summary import natural_key
from embodied.data import Observation, Outcome, Rows, Source
from embodied.episode import Episode
from embodied.errors import ConfigError, CorruptFile, DataError, SpecMismatch, UserError, nearest
from embodied.evaluate.cell import BATCH
from embodied.learning.demonstrations import demonstrated
from embodied.rollout.play import Played, by_expert, play
from embodied.runs import run_folder
from embodied.runs.parts import make_env
from embodied.runs.settings import Settings
from embodied.spec import EnvSpec, PolicySpec, Streams, match
from policies.base import Policy
from policies.torch_policy import TorchPolicy

EXPERT = "expert"
EPISODES = "episodes"


@dataclass
class Demonstrated:
    """Episodes to learn from, and a record of those taken so far.

    Attributes:
        source: `EXPERT`, or the folder they are stored in.
        episodes: Read one by one, once.
        count: Episodes taken.
        parts: Names for the record of the update: the segments of this run, or `<folder>/<id>` of stored episodes.
    """

    source: str
    episodes: Iterable[Episode]
    count: int = 0
    parts: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Episode]:
        for episode in self.episodes:
            self.count += 1
            self.parts += episode.segments if self.source == EXPERT else [f"{self.source}/{episode.id}"]
            yield episode


def by_the_expert(
    settings: Settings, policy: PolicySpec, attempt: int, assemble: Callable[[Played], list[Episode]]
) -> tuple[list[Episode], int]:
    """The first successful episodes of the task's expert, by seed, as many as the settings ask for.

    Args:
        attempt: Start of the run.
        assemble: Makes whole episodes.

    Returns:
        The episodes, and the steps of all episodes that were tried.

    Raises:
        ConfigError: The expert hardly ever succeeds.
    """
    count, kept, steps = settings.warm_start.demonstrations, list[Episode](), 0
    spec = dataclasses.replace(policy, chunk=1, execute=1, stored=())  # the expert decides anew at every step
    first = settings.seed * 1_000_000 + 500_000
    last = first + 20 * count + 100
    while len(kept) < count:
        need = min(count - len(kept), BATCH)
        env = make_env(settings.task, settings.env, need, settings.seed, autoreset=False)
        played = play(
            env, by_expert(env, spec), np.arange(first, first + need), spec,
            id=f"{attempt}-demo-{first}", mode="demonstration", source=Source.SCRIPT,
        )  # fmt: skip
        env.close()
        kept += [episode for episode in assemble(played) if episode.outcome == Outcome.SUCCESS]
        steps += int(played.lengths.sum())
        first += need
        if first > last:
            task = settings.task.get("name")
            raise ConfigError(f"the expert of {task} hardly ever succeeds", "warm_start", "mend Task.expert")
    return kept, steps


def forget(folder: Path, attempt: int) -> list[Path]:
    """Delete the demonstrations of earlier attempts of a run that starts anew; the expert gives the same again.

    Whole files are deleted, so an evaluation that was sealed together with a demonstration goes too. Recordings with
    other names than a run's own files stay, and so do unreadable files.

    Args:
        folder: The run's episodes.
        attempt: The start of the run that begins now.

    Returns:
        The files deleted.
    """
    gone = []
    for path in sorted(folder.glob("shard-*.h5")):
        number = path.name.split("-")[1]
        if not number.isdecimal() or int(number) >= attempt:
            continue
        try:
            if any(summary.mode == "demonstration" for summary in read_summaries(path)):
                path.unlink(missing_ok=True)
                gone.append(path)
        except (CorruptFile, FileNotFoundError):
            continue
    return gone


def find_episodes(source: str, runs: Path) -> Path:
    """The folder of episodes that `source` names: a run, its folder, or that folder itself.

    Raises:
        UserError: There is none.
    """
    path = Path(source)
    if run_folder.is_there(path) and any(path.glob("*.h5")):
        return path.resolve()
    if run_folder.is_there(path) and not (run_folder.is_run(path) or run_folder.is_run(runs / source)):
        formats = f"episodes of the formats {FORMAT} and {FORMAT_1} are read: give a run's name, or a folder of them"
        what = "is no folder of episodes" if path.is_file() else "holds no episodes (*.h5)"
        raise UserError(f"{source} {what}", str(path), formats)
    folder = run_folder.resolve(source, runs) / EPISODES
    if not folder.is_dir():
        raise UserError(f"the run {folder.parent.name} has stored no episodes", str(folder), "choose another run")
    return folder


def stored(
    folder: Path,
    policy: Policy,
    count: int,
    memory_bytes: float,
    say: Callable[[str], None],
    agent: str,
) -> Iterator[Episode]:
    """Stored episodes that succeeded and of which a human or a script chose some step, read one by one.

    Episodes are in the order of their ids, so that a copied folder gives the same order.

    Args:
        folder: Of episode files.
        policy: Learns from them.
        count: Most episodes; 0 for all.
        memory_bytes: Most bytes that may be kept of them.
        say: Called with a line for each damaged file that is left out.
        agent: Name of the track to learn from.

    Raises:
        UserError: There are fewer.
        SpecMismatch: One lacks a stream that the policy reads, or has it in another form; names both.
        DataError: One holds numbers that are not finite, or an instruction without a word.
        ConfigError: They do not fit `memory_bytes`; says how many do.
    """
    taken, kept = 0, 0.0
    for episode in _succeeded(folder, say):
        if agent in episode.agents and not demonstrated(episode.agents[agent]).any():
            continue
        check(episode, folder, policy, agent)
        kept += _bytes(episode, policy, agent)
        if kept > memory_bytes:
            what = f"{taken} demonstrations fit in {memory_bytes / 1e9:g} GB, not {taken + 1}"
            fix = "give a larger warm_start.memory_gb" + (f", or warm_start.demonstrations={taken}" if taken else "")
            raise ConfigError(what, str(folder), fix)
        taken += 1
        yield episode
        if taken == count:
            return
    if not taken or taken < count:
        what = f"{taken or 'no'} successful episodes were demonstrated by a human or a script"
        fix = f"give warm_start.demonstrations={taken}, or record more" if taken else "record demonstrations first"
        raise UserError(f"{what}, not {count}" if count else what, str(folder), fix)


def check(episode: Episode, folder: Path, policy: Policy, agent: str) -> None:
    """Raise an error that names the episode unless `policy` can learn from it; see `stored`."""
    who, name = f"policy {policy.spec.name}", f"episode {episode.id}"
    env = EnvSpec.from_dict(episode.spec)
    if agent not in env.agents or agent not in episode.agents:
        raise SpecMismatch(f"no agent {agent} in {name}", str(folder), nearest(agent, episode.agents))
    theirs, track = env.agents[agent], episode.agents[agent]
    reads, critic = _reads(policy)
    offered = {stream.name for stream in theirs.observations} & track.observations.keys()
    if missing := [stream.name for stream in critic if stream.name not in offered]:
        what = f"{name} lacks stream {missing[0]}, which only the critic reads"
        raise SpecMismatch(what, str(folder), "give policy.critic=[]")
    match((*reads, *critic), tuple(s for s in theirs.observations if s.name in offered), who, f"{name} of {folder}")
    match(theirs.actions, policy.spec.agent.actions, f"{name} of {folder}", who)
    steps = demonstrated(track)
    for stream in (*reads, *critic):
        array = track.observations[stream.name]
        if (array.shape[1:], array.dtype.name) != (stream.shape, stream.dtype):
            what = f"{name} holds {stream.name} as {array.dtype} {array.shape[1:]}, not as its spec says"
            raise SpecMismatch(what, str(folder), "record it anew")
        if array.dtype.kind == "f" and not np.isfinite(array[:-1][steps]).all():
            raise DataError(f"stream {stream.name} of {name} is not finite", str(folder), "delete the episode")
    if track.actions.shape[2] != policy.spec.agent.action_dim:
        what = f"{name} holds actions of {track.actions.shape[2]} numbers, {who} gives {policy.spec.agent.action_dim}"
        raise SpecMismatch(what, str(folder), "use a policy for this env")
    if not np.isfinite(track.actions[track.decision, track.k][steps]).all():
        raise DataError(f"an action of {name} is not finite", str(folder), "delete the episode")
    if isinstance(policy, TorchPolicy):
        streams = {s.name: track.observations[s.name][:-1][steps] for s in reads}
        count = int(steps.sum())
        try:
            policy.check(Observation(Rows.of_envs(count), streams, np.zeros(count)))
        except DataError as error:
            raise DataError(f"{name}: {error.what}", f"{folder}, {error.where}", "delete the episode") from None


def _succeeded(folder: Path, say: Callable[[str], None]) -> Iterator[Episode]:
    store = EpisodeStore(folder)
    success = Outcome.SUCCESS.name.lower()
    ids = {summary.id for summary in store.summary() if summary.outcome == success}
    told = set()
    for path, damage in store.corrupt:
        told.add(path)
        say(f"left out: {damage}")
    for id in sorted(ids, key=natural_key):
        try:
            yield store.read(id)
        except CorruptFile as error:
            if Path(error.where) not in told:
                told.add(Path(error.where))
                say(f"left out: {error.line()}")
        except UserError:
            continue  # its writer's quota took it


def _reads(policy: Policy) -> tuple[Streams, Streams]:
    """Streams that a policy reads, and those that its critic alone reads."""
    if isinstance(policy, TorchPolicy):
        return policy.senses.observations, policy.senses.critic
    return policy.spec.agent.observations, ()


def _bytes(episode: Episode, policy: Policy, agent: str) -> int:
    """Bytes that `embodied.learning.demonstrations.gather` keeps of an episode."""
    reads, critic = _reads(policy)
    streams = sum(s.size * np.dtype(s.dtype).itemsize for s in (*reads, *critic))
    chunk = policy.spec.chunk * (4 * policy.spec.agent.action_dim + 1)
    return int(demonstrated(episode.agents[agent]).sum()) * (streams + chunk)
