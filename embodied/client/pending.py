"""Pending action chunk of a submitted request."""

from embodied.data import ActionChunk
from embodied.wire.codecs import chunk_from_message
from embodied.wire.endpoint import Requester


class Pending:
    """Pending answer to `RemoteClient.submit`, for the thread that asked."""

    def __init__(self, requester: Requester, id: int) -> None:
        self._requester, self._id = requester, id
        self._chunk: ActionChunk | None = None

    def done(self) -> bool:
        """Tell whether `result` would return, or raise, at once. Never waits."""
        return self._chunk is not None or self._requester.answered(self._id)

    def result(self, timeout_s: float | None = None) -> ActionChunk:
        """Wait for the chunk; later calls return the same one.

        Args:
            timeout_s: Longest wait of this call; the request stays in flight after it.

        Raises:
            DeadlineExceeded: No answer in `timeout_s` (its `request` is None), or before the request's own deadline.
            EmbodiedError: As `PolicyClient.act`.
            ValueError: The request was cancelled, or raised already.
        """
        if self._chunk is None:
            answer = self._requester.collect((self._id,), timeout_s)
            self._chunk = chunk_from_message(answer.body, answer.arrays)
        return self._chunk

    def cancel(self) -> None:
        """Cancel the request; a later answer is dropped."""
        self._requester.cancel((self._id,))
