"""Instructions as token numbers: words hashed into a fixed vocabulary, so that no vocabulary file has to travel."""

import re
from dataclasses import field
from hashlib import blake2b
from itertools import islice
from typing import Annotated, Any
from zlib import crc32

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from embodied.errors import DataError
from embodied.settings import AtLeastOne, settings

_WORD = re.compile(r"[^\W_]+")
_CACHED = 4096


@settings("policy.words")
class Words:
    """Lower-case words, each hashed to one of `vocabulary - 1` numbers; 0 fills up.

    A word that was never trained on gets a number of its own all the same, so that a sentence of known words in a new
    order, or with a new word between them, reads as nearly the same.

    Attributes:
        vocabulary: Numbers there are. Two words share one with a chance of about their count / `vocabulary`.
        length: L, words taken of an instruction; what is behind them is left out.
    """

    vocabulary: Annotated[int, Ge(2)] = 1024
    length: AtLeastOne = 16
    _known: dict[bytes, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Identity of the tokenizer in a policy's spec: other tokens need other weights."""
        return f"words/{self.vocabulary}/{self.length}"

    def encode(self, texts: NDArray[np.uint8]) -> NDArray[np.int64]:
        """[N, L] tokens of [N, bytes] instructions in UTF-8, which end with their bytes or at the first zero.

        Raises:
            DataError: An instruction is no UTF-8, or holds no word; names the row.
        """
        tokens = np.zeros((len(texts), self.length), np.int64)
        for row, text in enumerate(np.ascontiguousarray(texts)):
            key = blake2b(text, digest_size=32).digest()  # a text may be long
            found = self._known.get(key)
            if found is None:
                found = self._tokens(text.tobytes(), row)
                if len(self._known) >= _CACHED:
                    self._known.clear()
                self._known[key] = found
            tokens[row] = found
        return tokens

    def _tokens(self, text: bytes, row: int) -> NDArray[np.int64]:
        where, text = f"row {row}, stream instruction", text.partition(b"\0")[0]
        try:
            words = [found[0] for found in islice(_WORD.finditer(text.decode().lower()), self.length)]
        except UnicodeDecodeError as error:
            what = f"the instruction is no UTF-8: byte {error.start} of {len(text)} is {text[error.start]:#04x}"
            raise DataError(what, where, "encode it in UTF-8, and cut it between characters") from None
        if not words:
            raise DataError("the instruction holds no word", where, "say what is to be done")
        tokens = np.zeros(self.length, np.int64)
        tokens[: len(words)] = [1 + crc32(word.encode()) % (self.vocabulary - 1) for word in words]
        return tokens
