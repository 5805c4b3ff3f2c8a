"""Words as numbers: the same wherever they are, harmless where they are new, refused where there are none."""

import re
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embodied.errors import ConfigError, DataError
from embodied.settings import configured
from policies.words import _WORD, Words

CUT = ("x" * 63 + "é").encode()[:64]


def row(*texts: bytes, size: int = 64) -> NDArray[np.uint8]:
    return np.stack([np.frombuffer(text.ljust(size, b"\0"), np.uint8) for text in texts])


def test_a_word_has_one_number_in_any_sentence_case_and_punctuation():
    plain, other, alone = Words().encode(row(b"reach the red cube", b"Red-CUBE: the, REACH!", b"red"))
    assert plain[:4].tolist() == [other[3], other[2], other[0], other[1]]
    assert alone.tolist() == [plain[2], *[0] * 15]
    assert (plain[4:] == 0).all() and (plain[:4] > 0).all()
    assert len(set(plain[:4].tolist())) == 4


def test_numbers_are_the_same_in_every_process_and_version():
    assert Words(1024, 2).encode(row(b"red"))[0].tolist() == [1 + crc(b"red") % 1023, 0]


def crc(data: bytes) -> int:
    """CRC-32 (ISO 3309), bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


@given(st.text(max_size=16), st.integers(2, 50), st.integers(1, 8))
def test_any_text_gives_numbers_in_range_or_one_line(text: str, vocabulary: int, length: int):
    words = Words(vocabulary, length)
    try:
        tokens = words.encode(row(text.encode()))
    except DataError as error:
        assert "row 0" in error.where and "\n" not in error.line()
        assert not any(c.isalnum() for c in text.partition("\0")[0])
        return
    assert tokens.shape == (1, length) and tokens.dtype == np.int64
    assert 0 < tokens[0, 0] < vocabulary and tokens.min() >= 0 and tokens.max() < vocabulary
    np.testing.assert_array_equal(words.encode(row(text.encode())), tokens)


@pytest.mark.parametrize(
    ("text", "said"),
    [(b"", "no word"), (b"   \t\n", "no word"), (b"?!... _", "no word"), (b"\xff\xfered", "byte 0 of 5 is 0xff"),
     ("naïve".encode("latin-1"), "byte 2 of 5 is 0xef"), (b"\0red", "no word"), (CUT, "byte 63 of 64 is 0xc3")],
)  # fmt: skip
def test_what_is_no_instruction_is_refused_by_row(text: bytes, said: str):
    words = Words()
    for _ in range(2):  # nothing of it is remembered
        with pytest.raises(DataError, match="row 1, stream instruction") as error:
            words.encode(row(b"go", text))
        assert said in error.value.what and error.value.fix


def test_a_text_ends_with_its_bytes_or_at_the_first_zero():
    words = Words(length=2)
    full, short, rest = words.encode(row(b"a " * 31 + b"bc", b"a a", b"a a\0\0 and what was there before"))
    assert full.tolist() == short.tolist() == rest.tolist()
    assert words.encode(row(b"x" * 64))[0, 0] > 0


def test_more_texts_than_are_remembered_read_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("policies.words._CACHED", 3)
    words, texts = Words(), row(*(b"word %d" % i for i in range(10)))
    first = words.encode(texts)
    np.testing.assert_array_equal(words.encode(texts[::-1]), first[::-1])
    assert len(words._known) <= 3


def test_a_long_text_is_read_to_its_last_word_taken_and_not_kept(monkeypatch: pytest.MonkeyPatch):
    looked_at = []

    class Watched:
        @staticmethod
        def finditer(text: str) -> Iterator[re.Match[str]]:
            for found in _WORD.finditer(text):
                looked_at.append(found[0])
                yield found

    monkeypatch.setattr("policies.words._WORD", Watched)
    words, size = Words(length=3), 2**20
    tokens = words.encode(row(b"go " * (size // 3), b"go go go", size=size))
    assert looked_at == ["go"] * 6 and tokens[0].tolist() == tokens[1].tolist()
    assert len(words._known) == 2 and all(len(key) <= 64 for key in words._known)


def test_the_name_tells_what_weights_fit():
    assert Words().name != Words(length=8).name != Words(vocabulary=99).name
    assert Words(99, 8).name == "words/99/8"


@pytest.mark.parametrize("config", [{"vocabulary": 1}, {"length": 0}, {"lenght": 3}])
def test_a_wrong_config_is_refused(config: dict[str, int]):
    with pytest.raises(ConfigError, match=r"policy\.words"):
        configured(Words, config, "policy.words")
