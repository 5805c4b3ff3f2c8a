"""Store of episodes in a folder: retention rules, a quota, and verified reading."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from embodied.buffer.container import FIX, verify
from embodied.buffer.reader import Stamp, listed_ids, read_episodes, read_whole, readable, stamp
from embodied.buffer.retention import DEFAULT, EVICTION, check_rules, eviction_rank, is_retained
from embodied.buffer.shards import SHARD_BYTES, ShardWriter
from embodied.buffer.summary import EpisodeSummary, natural_key, summarise
from embodied.episode import Episode
from embodied.errors import CorruptFile, DataError, UserError, nearest
from embodied.files import is_temporary

log = logging.getLogger(__name__)


@dataclass
class _File:
    stamp: Stamp
    summaries: list[EpisodeSummary]
    reason: str = ""
    verified: bool = False

    def __post_init__(self) -> None:
        self.by_id = {summary.id: summary for summary in self.summaries}

        self.rank = max((eviction_rank(summary.mode) for summary in self.summaries), default=0)


class EpisodeStore:
    """Episodes of a run. Any number of processes may read while one writes.

    A reader sees what is sealed. Files that are truncated or altered are listed in `corrupt` and keep no other from
    being read. A truncated file gives the episodes before its cut.

    Args:
        folder: Made when the first episode is sealed.
        keep: Rules of `embodied.buffer.retention`.
        quota_bytes: Size of all episode files. Shards are evicted to keep it, in the order of modes of
            `embodied.buffer.retention.EVICTION`, the oldest of a mode first. Damaged files and recordings stay. New
            episodes for which that makes no room are discarded, and that is logged.
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
        self._told: set[str] = set()
        # Each mode has shards of its own, so that it can be evicted alone; several fit the quota.
        max_bytes = SHARD_BYTES if quota_bytes is None else min(SHARD_BYTES, quota_bytes // 4)
        self._writers = {
            mode: ShardWriter(
                self.folder,
                attempt,
                max_episodes=max_episodes,
                max_bytes=max_bytes,
                make_room=partial(self.make_room, mode=mode),
            )
            for mode in EVICTION
        }

    def add(self, episode: Episode) -> bool:
        """Store an episode if the rules retain it; it is safe once its shard is sealed.

        An episode that is stored already is acknowledged and not stored twice.

        Returns:
            Whether it is retained.

        Raises:
            DataError: Another episode has its id, or it cannot be stored as it stands.
            InfrastructureError: No disk space.
        """
        if not is_retained(episode, self.keep):
            return False
        if not self._looked:
            self.refresh()
        writer = self._writers[EVICTION[eviction_rank(episode.mode)]]
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
        paths = [path for writer in reversed(self._writers.values()) if (path := writer.seal())]
        if paths:
            self.refresh()
        return paths

    def make_room(self, size: int, mode: str) -> bool:
        """Evict shards of `mode` and of modes before it until `size` more bytes fit the quota.

        Returns:
            Whether they fit; nothing is evicted where they cannot.
        """
        if self.quota_bytes is None:
            return True
        self.refresh()
        over = sum(file.stamp[0] for file in self._files.values()) + size - self.quota_bytes
        going: list[Path] = []
        for path in sorted(self._in_order(), key=lambda path: self._files[path].rank):
            file = self._files[path]
            if over <= 0 or file.rank > eviction_rank(mode):
                break
            if path.name.startswith("shard-") and not file.reason:
                going.append(path)
                over -= file.stamp[0]
        if over > 0:
            if mode not in self._told:
                what = "new episodes of mode %s are not stored, the quota of %d bytes is %d too small: %s"
                log.warning(
                    f"{what}: raise episodes.quota_gb, or delete some", mode, self.quota_bytes, over, self.folder
                )
            self._told.add(mode)
            return False
        for path in going:
            path.unlink(missing_ok=True)
            del self._files[path]
        return True

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
                    summaries, damage = readable(path)
                    old = _File(now, summaries, damage.line() if damage else "")
                self._files[path] = old
            except FileNotFoundError:
                continue  # deleted by a writer's quota since it was listed

    @property
    def corrupt(self) -> list[tuple[Path, str]]:
        """Files found truncated or altered so far, and the fault of each."""
        self.refresh()
        return [(path, self._files[path].reason) for path in self._in_order() if self._files[path].reason]

    def verify(self) -> list[tuple[Path, str]]:
        """Check every byte of every file; returns `corrupt`."""
        self.refresh()
        for path in list(self._files):
            self._verified(path)
        return self.corrupt

    def summary(self) -> list[EpisodeSummary]:
        """A line per sealed episode, in the order of file names, without reading arrays."""
        self.refresh()
        return [summary for path in self._in_order() for summary in self._files[path].summaries]

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
            for damaged in (path for path, file in self._files.items() if file.reason and id in listed_ids(path)):
                raise CorruptFile(f"episode {id} is not whole: its file is truncated or altered", str(damaged), FIX)
            near = nearest(id, self.ids())
            fix = near if near.startswith("did") else "`embodied episodes ls` lists them"
            raise UserError(f"no episode {id}", str(self.folder), fix)
        try:
            episode = next(self._episodes(path, [id], raises=True), None)
        except FileNotFoundError:
            episode = None
        if episode is None:
            raise UserError(f"episode {id} was deleted to keep the quota", str(self.folder), "choose another")
        return episode

    def iterate(self, mode: str | None = None, outcome: str | None = None) -> Iterator[Episode]:
        """Sealed episodes of a mode and outcome (lower case), by file name; corrupt files are left out."""
        self.refresh()
        for path in self._in_order():
            file = self._files.get(path)
            ids = (
                [s.id for s in file.summaries if mode in (None, s.mode) and outcome in (None, s.outcome)]
                if file
                else []
            )
            if not ids:
                continue
            try:
                yield from self._episodes(path, ids)
            except CorruptFile as error:
                self._mark(path, error)
            except FileNotFoundError:
                continue

    def _in_order(self) -> list[Path]:
        return sorted(self._files, key=lambda path: natural_key(path.name))

    def _find(self, id: str) -> Path | None:
        return next((p for p, f in self._files.items() if id in f.by_id), None)

    def _summary(self, id: str) -> EpisodeSummary | None:
        """The summary of a sealed or pending episode."""
        for writer in self._writers.values():
            for episode in writer.pending:
                if episode.id == id:
                    return summarise(episode)
        path = self._find(id)
        return self._files[path].by_id[id] if path else None

    def _episodes(self, path: Path, ids: list[str], raises: bool = False) -> Iterator[Episode]:
        """Episodes of one file; none where its bytes are found altered, unless `raises`."""
        if self._files[path].reason:
            yield from read_whole(path, ids)
        elif self._verified(path, raises):
            yield from read_episodes(path, ids, verified=True)

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
