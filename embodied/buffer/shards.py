"""Many short episodes sealed into one file at a time: one fsync for a hundred instead of one each."""

from collections.abc import Callable
from pathlib import Path

from embodied.buffer.container import sealed_size, write_sealed
from embodied.buffer.encode import encode
from embodied.buffer.layout import check
from embodied.buffer.summary import pack_index, summarise
from embodied.episode import Episode
from embodied.files import disk_errors

SHARD_BYTES = 64 * 2**20


class ShardWriter:
    """Collects episodes and seals them into `shard-<attempt>-<number>.h5`. An episode is acknowledged once sealed.

    Args:
        folder: Made if it is not there.
        attempt: Which start of the run this is; no two processes at work share one.
        max_episodes, max_bytes: Seal as soon as either is reached.
        make_room: Called with the bytes of a shard before it is written; False discards the pending episodes.
    """

    def __init__(
        self,
        folder: Path,
        attempt: int,
        *,
        max_episodes: int = 128,
        max_bytes: int = SHARD_BYTES,
        make_room: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self.folder, self.attempt = folder, attempt
        self.max_episodes, self.max_bytes, self.make_room = max_episodes, max_bytes, make_room
        self.pending: list[Episode] = []
        self._bytes = 0
        self._number = 0

    def add(self, episode: Episode) -> Path | None:
        """Take an episode; the path of the shard if this one filled it.

        Raises:
            DataError: The episode cannot be stored as it stands.
            InfrastructureError: As `seal`.
        """
        check(episode)
        self.pending.append(episode)
        self._bytes += sum(track.nbytes for track in episode.agents.values())
        full = len(self.pending) >= self.max_episodes or self._bytes >= self.max_bytes
        return self.seal() if full else None

    def seal(self) -> Path | None:
        """Write the pending episodes; the path of the shard, or None where nothing was pending or there is no room.

        Raises:
            InfrastructureError: No disk space. Nothing of the shard is left on disk; the episodes stay pending.
        """
        if not self.pending:
            return None
        body = encode(self.pending)
        index = pack_index([summarise(episode) for episode in self.pending])
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        path = self._next() if self.make_room(sealed_size(index, body)) else None
        if path is not None:
            write_sealed(path, index, body)
        self.pending, self._bytes = [], 0
        return path

    def _next(self) -> Path:
        while (path := self.folder / f"shard-{self.attempt}-{self._number:06d}.h5").exists():
            self._number += 1
        return path
