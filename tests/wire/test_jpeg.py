import io
import subprocess
import sys

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from embodied.data import Observation, Rows
from embodied.errors import MessageError
from embodied.spec import Stream
from embodied.wire import jpeg
from embodied.wire.codecs import observation_from_arrays, observation_to_arrays
from embodied.wire.message import Message, decode, encode

SHAPE = (24, 32, 3)


def pictures(count: int, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> NDArray[np.uint8]:
    """Smooth colours with some noise."""
    draw = np.random.default_rng(seed)
    ramp = np.linspace(0, 200, shape[0] * shape[1] * 3).reshape(shape)
    return (ramp + draw.uniform(0, 55, (count, *shape))).astype(np.uint8)


def packed(*files: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum([len(file) for file in files], dtype=np.int64)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 3), st.integers(1, 40), st.integers(1, 40), st.integers(1, 100), st.integers(0, 2**32))
def test_both_sides_see_the_same_pixels(count: int, height: int, width: int, quality: int, seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)
    files = jpeg.encode(images, quality)
    mine = jpeg.decode(*files, images.shape[1:], "front")
    seen = Observation(Rows.of_envs(count), {"front": images, "x": np.zeros((count, 2), np.float32)}, np.zeros(count))
    message = decode(encode(Message("act", arrays=observation_to_arrays(seen, {"front": files}))))
    theirs = observation_from_arrays(message.arrays, (Stream("front", images.shape[1:], "uint8"),)).streams
    assert set(theirs) == {"front", "x"} and theirs["front"].dtype == np.uint8
    np.testing.assert_array_equal(mine, theirs["front"])
    assert mine.flags.c_contiguous and mine.flags.writeable


def test_pixels_are_close_and_small() -> None:
    images = pictures(2) // 8 * 8
    images[:] = np.linspace(0, 255, SHAPE[0])[:, None, None]
    data, ends = jpeg.encode(images, 95)
    assert len(data) < images.nbytes
    assert np.abs(jpeg.decode(data, ends, SHAPE, "front").astype(int) - images).max() < 12


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_damaged_files_are_refused_or_give_pictures(seed: int) -> None:
    draw = np.random.default_rng(seed)
    data, ends = jpeg.encode(pictures(2, seed=1), 80)
    data = data.copy()
    for _ in range(draw.integers(1, 6)):
        data[draw.integers(len(data))] = draw.integers(256)
    try:
        assert jpeg.decode(data, ends, SHAPE, "front").shape == (2, *SHAPE)
    except MessageError as error:
        assert "front" in error.line() and "\n" not in error.line()


def test_every_truncation_is_refused() -> None:
    file = jpeg.encode(pictures(1), 80)[0].tobytes()
    for length in range(len(file)):
        with pytest.raises(MessageError):
            jpeg.decode(*packed(file[:length]), SHAPE, "front")


def test_pictures_of_another_size_are_refused_before_they_are_decoded() -> None:
    bomb = bytearray(jpeg.encode(pictures(1), 80)[0].tobytes())
    at = bomb.index(b"\xff\xc0")
    bomb[at + 5 : at + 9] = b"\xff\xdc\xff\xdc"  # 65500 x 65500 pixels would take 12 GB
    with pytest.raises(MessageError, match="65500 x 65500 pixels, the policy takes 24 x 32"):
        jpeg.decode(*packed(bytes(bomb)), SHAPE, "front")
    with pytest.raises(MessageError, match="16 x 32 pixels"):
        jpeg.decode(*jpeg.encode(pictures(1, (16, 32, 3)), 80), SHAPE, "front")


def test_many_pictures_are_refused_before_room_is_made() -> None:
    with pytest.raises(MessageError, match="at most"):
        jpeg.decode(np.zeros(0, np.uint8), np.zeros(1 << 20, np.int64), (1024, 1024, 3), "front")


def test_what_is_no_baseline_colour_picture_is_refused() -> None:
    image = pictures(1)[0]
    gray = simplejpeg.encode_jpeg(image, 80, "RGB", "Gray")
    many = bytes(jpeg.encode(pictures(1), 80)[0]) + b"\xff\xda" * 4
    for file, words in ((gray, "colours are Gray"), (many, "scans"), (b"\x89PNG", "cannot be taken")):
        with pytest.raises(MessageError, match=words):
            jpeg.decode(*packed(file), SHAPE, "front")


def test_progressive_pictures_are_refused() -> None:
    images = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    images.fromarray(pictures(1)[0]).save(file, "jpeg", progressive=True)
    with pytest.raises(MessageError, match="scans"):
        jpeg.decode(*packed(file.getvalue()), SHAPE, "front")


@pytest.mark.parametrize("ends", [[10, 5], [0, 300], [-1, 300], [2**62, 300], [100, 400]])
def test_ends_that_make_no_sense(ends: list[int]) -> None:
    with pytest.raises(MessageError, match="end at wrong places"):
        jpeg.decode(np.zeros(300, np.uint8), np.array(ends), SHAPE, "front")


def test_only_pictures_of_the_policy_are_taken() -> None:
    files = {"front": jpeg.encode(pictures(1), 80)}
    seen = Observation(Rows.of_envs(1), {"front": pictures(1)}, np.zeros(1))
    arrays = observation_to_arrays(seen, files)
    for streams in (
        (),
        (Stream("front", (4,)),),
        (Stream("front", (24, 32), "uint8"),),
        (Stream("x", SHAPE, "uint8"),),
    ):
        with pytest.raises(MessageError, match="front"):
            observation_from_arrays(arrays, streams)
    right = (Stream("front", SHAPE, "uint8"),)
    with pytest.raises(MessageError, match="not taken"):
        observation_from_arrays({"stream/front": pictures(1), **arrays}, right)
    del arrays["jpeg_ends/front"]
    with pytest.raises(MessageError, match="jpeg_ends/front is missing"):
        observation_from_arrays(arrays, right)


def test_without_the_package_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['simplejpeg'] = None\n"
        "import numpy as np\nfrom embodied.errors import UserError\nfrom embodied.wire import jpeg\n"
        "try: jpeg.encode(np.zeros((1, 2, 2, 3), np.uint8), 80)\n"
        "except UserError as error: print(error.line())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "embodied-rl[jpeg]" in done.stdout, done.stderr
