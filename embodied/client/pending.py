"""An action chunk that was asked for and may not be there yet."""

from embodied.data import ActionChunk
from embodied.wire.codecs import chunk_from_message
from embodied.wire.endpoint import Requester


class Pending:
    """The answer to one `RemoteClient.submit`, used by the thread that asked."""

    def __init__(self, requester: Requester, id: int) -> None:
        self._requester, self._id = requester, id
        self._chunk: ActionChunk | None = None

    def done(self) -> bool:
        """Tell whether `result` would return, or raise, at once. Never waits."""
        return self._chunk is not None or self._requester.answered(self._id)

    def result(self, timeout_s: float | None = None) -> ActionChunk:
        """The chunk; asked again it returns the same one.

        Args:
            timeout_s: Longest wait here. After it the request goes on: ask again, or `cancel`.

        Raises:
            DeadlineExceeded: No answer in `timeout_s` (its `request` is None), or before the request's own deadline.
            EmbodiedError: As `PolicyClient.act`.
            ValueError: It was cancelled, or raised already.
        """
        if self._chunk is None:
            answer = self._requester.collect((self._id,), timeout_s)
            self._chunk = chunk_from_message(answer.body, answer.arrays)
        return self._chunk

    def cancel(self) -> None:
        """Give it up; its answer is dropped when it comes."""
        self._requester.cancel((self._id,))
