"""Store of episodes in a folder: retention rules, a quota, and verified reading."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from embodied.buffer.container import verify
from embodied.buffer.reader import Stamp, read_episodes, read_summaries, stamp
from embodied.buffer.retention import DEFAULT, TRAINING, check_rules, is_retained
from embodied.buffer.shards import ShardWriter
from embodied.buffer.summary import EpisodeSummary, summarise
from embodied.episode import Episode
from embodied.errors import CorruptFile, DataError, InfrastructureError, UserError, nearest
from embodied.files import is_temporary


@dataclass
class _File:
    stamp: Stamp
    summaries: list[EpisodeSummary]
    reason: str = ""
    verified: bool = False

    def __post_init__(self) -> None:
        self.by_id = {summary.id: summary for summary in self.summaries}

    @property
    def evictable(self) -> bool:
        """Whether it holds nothing but training episodes; an unreadable file is never deleted."""
        return not self.reason and all(summary.mode == TRAINING for summary in self.summaries)


class EpisodeStore:
    """Episodes of a run. Any number of processes may read while one writes.

    A reader sees what is sealed. Files that are truncated or altered are listed in `corrupt` and keep no other from
    being read.

    Args:
        folder: Made when the first episode is sealed.
        keep: Rules of `embodied.buffer.retention`.
        quota_bytes: Size of all episode files. The oldest training files go first; evaluations and demonstrations stay.
        attempt: Which start of the run this is.
        max_episodes: Episodes after which a shard is sealed.
    """

    def __init__(
        self,
        folder: Path | str,
        keep: Iterable[str] = DEFAULT,
        quota_bytes: int | None = None,
        *,
        attempt: int = 0,
        max_episodes: int = 128,
    ) -> None:
        self.folder = Path(folder)
        self.keep = check_rules(keep)
        self.quota_bytes = quota_bytes
        self._files: dict[Path, _File] = {}
        self._looked = False
        # Training episodes have shards of their own, so that the quota can delete them alone.
        self._training, self._protected = (
            ShardWriter(self.folder, attempt, max_episodes=max_episodes, make_room=self.make_room) for _ in range(2)
        )

    def add(self, episode: Episode) -> bool:
        """Store an episode if the rules retain it; it is safe once its shard is sealed.

        An episode that is stored already is acknowledged and not stored twice.

        Returns:
            Whether it is retained.

        Raises:
            DataError: Another episode has its id, or it cannot be stored as it stands.
            InfrastructureError: No disk space, or the quota is spent on evaluations and demonstrations.
        """
        if not is_retained(episode, self.keep):
            return False
        if not self._looked:
            self.refresh()
        writer = self._training if episode.mode == TRAINING else self._protected
        stored = self._summary(episode.id)
        if stored is not None:
            if stored == summarise(episode):
                return True
            what = f"another episode is stored as {episode.id}"
            raise DataError(what, str(self.folder), "give each origin its own name, and each episode its own id")
        if writer.add(episode):
            self.refresh()
        return True

    def seal(self) -> list[Path]:
        """Write the pending episodes; returns the new files. Raises InfrastructureError as `add`."""
        paths = [path for writer in (self._protected, self._training) if (path := writer.seal())]
        if paths:
            self.refresh()
        return paths

    def make_room(self, size: int) -> None:
        """Delete the oldest training files until `size` more bytes fit the quota.

        Raises:
            InfrastructureError: They cannot, without deleting evaluations or demonstrations; nothing is deleted then.
        """
        if self.quota_bytes is None:
            return
        self.refresh()
        over = sum(file.stamp[0] for file in self._files.values()) + size - self.quota_bytes
        going: list[Path] = []
        for path in self._by_age():
            if over <= 0:
                break
            if self._files[path].evictable:
                going.append(path)
                over -= self._files[path].stamp[0]
        if over > 0:
            raise InfrastructureError(
                f"the quota of {self.quota_bytes} bytes is {over} too small to keep every evaluation and demonstration",
                str(self.folder),
                "raise episodes.quota_gb, keep fewer kinds of episodes, or delete some",
            )
        for path in going:
            path.unlink(missing_ok=True)
            del self._files[path]

    def refresh(self) -> None:
        """Update the list of files: new, deleted and changed ones."""
        known, self._files, self._looked = self._files, {}, True
        paths = self.folder.glob("*.h5") if self.folder.is_dir() else ()
        for path in paths:
            if is_temporary(path):
                continue
            try:
                now = stamp(path)
                old = known.get(path)
                if old is None or old.stamp != now:
                    old = _File(now, read_summaries(path))
                self._files[path] = old
            except CorruptFile as error:
                self._files[path] = _File(now, [], error.line())
            except FileNotFoundError:
                continue  # deleted by a writer's quota since it was listed

    @property
    def corrupt(self) -> list[tuple[Path, str]]:
        """Files found truncated or altered so far, and the fault of each."""
        self.refresh()
        return [(path, self._files[path].reason) for path in self._by_age() if self._files[path].reason]

    def verify(self) -> list[tuple[Path, str]]:
        """Check every byte of every file; returns `corrupt`."""
        self.refresh()
        for path in list(self._files):
            self._verified(path)
        return self.corrupt

    def summary(self) -> list[EpisodeSummary]:
        """A line per sealed episode, oldest file first, without reading arrays."""
        self.refresh()
        return [summary for path in self._by_age() for summary in self._files[path].summaries]

    def ids(self) -> list[str]:
        """Ids of the sealed episodes, in the order of `summary`."""
        return [summary.id for summary in self.summary()]

    def __len__(self) -> int:
        return len(self.summary())

    def read(self, id: str) -> Episode:
        """One sealed episode.

        Raises:
            UserError: There is none of this id.
            CorruptFile: Its file is altered.
        """
        path = self._find(id)
        if path is None:
            self.refresh()
            path = self._find(id)
        if path is None:
            near = nearest(id, self.ids())
            fix = near if near.startswith("did") else "`embodied episodes ls` lists them"
            raise UserError(f"no episode {id}", str(self.folder), fix)
        try:
            [episode] = read_episodes(path, [id], self._verified(path, raises=True))
        except FileNotFoundError:
            raise UserError(f"episode {id} was deleted to keep the quota", str(self.folder), "choose another") from None
        return episode

    def iterate(self, mode: str | None = None, outcome: str | None = None) -> Iterator[Episode]:
        """Sealed episodes of a mode and outcome (lower case), oldest file first; corrupt files are left out."""
        self.refresh()
        for path in self._by_age():
            file = self._files.get(path)
            ids = (
                [s.id for s in file.summaries if mode in (None, s.mode) and outcome in (None, s.outcome)]
                if file
                else []
            )
            if not ids or not self._verified(path):
                continue
            try:
                yield from read_episodes(path, ids, verified=True)
            except CorruptFile as error:
                self._mark(path, error)
            except FileNotFoundError:
                continue

    def _by_age(self) -> list[Path]:
        return sorted(self._files, key=lambda path: (self._files[path].stamp[1], path.name))

    def _find(self, id: str) -> Path | None:
        return next((p for p, f in self._files.items() if id in f.by_id), None)

    def _summary(self, id: str) -> EpisodeSummary | None:
        """The summary of a sealed or pending episode."""
        for writer in (self._training, self._protected):
            for episode in writer.pending:
                if episode.id == id:
                    return summarise(episode)
        path = self._find(id)
        return self._files[path].by_id[id] if path else None

    def _verified(self, path: Path, raises: bool = False) -> bool:
        file = self._files.get(path)
        if file is None or file.reason:
            return False
        try:
            if not (file.verified and stamp(path) == file.stamp):
                verify(path)
                file.verified = True
        except CorruptFile as error:
            self._mark(path, error)
            if raises:
                raise
        except FileNotFoundError:
            del self._files[path]
        return file.verified

    def _mark(self, path: Path, error: CorruptFile) -> None:
        if path in self._files:
            self._files[path] = _File(self._files[path].stamp, [], error.line())
