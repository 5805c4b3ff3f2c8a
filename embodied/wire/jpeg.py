"""Images as JPEG on the wire: the files of all rows in one byte array, and the end of each."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.errors import MessageError, UserError

_SCANS = 4  # a baseline image has at most one per colour; each further one costs a pass over all pixels
_SCAN = b"\xff\xda"
_SUBSAMPLING = "420"
_COLORS = ("YCbCr", "RGB")
_BYTES = 1 << 28  # of one stream's decoded images


def encode(images: NDArray[np.uint8], quality: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Encode B images as JPEG files.

    Args:
        images: [B, H, W, 3] uint8, red first.
        quality: 1 to 100.

    Returns:
        Bytes of all files in order, [N] uint8, and the end of each, [B] int64.

    Raises:
        UserError: simplejpeg is not installed.
    """
    codec = _codec()
    files = [
        codec.encode_jpeg(image, quality, "RGB", _SUBSAMPLING, fastdct=False) for image in np.ascontiguousarray(images)
    ]
    ends = np.cumsum([len(file) for file in files], dtype=np.int64)
    return np.frombuffer(bytearray().join(files), np.uint8), ends


def decode(data: NDArray[np.uint8], ends: NDArray[np.int64], shape: tuple[int, ...], name: str) -> NDArray[np.uint8]:
    """Decode the images of `encode`, [B, *shape]; headers are checked before anything is decoded.

    Args:
        data: [N].
        ends: [B].
        shape: H, W and 3, which every image must have.
        name: Name of the stream, for errors.

    Raises:
        MessageError: An image is truncated, no colour JPEG, of another size, or has many scans.
        UserError: simplejpeg is not installed.
    """
    codec = _codec()
    if len(shape) != 3 or shape[2] != 3:
        raise MessageError(f"{name} has shape {shape}, which is no colour image", name, "send it as an array")
    if len(ends) * math.prod(shape) > _BYTES:
        raise MessageError(f"{len(ends)} images of {name} in one message", name, f"at most {_BYTES} bytes of pixels")
    starts = np.concatenate([np.zeros(1, np.int64), ends])
    if (np.diff(starts) <= 0).any() or starts[-1] != len(data):
        raise MessageError(f"the images of {name} end at wrong places", name, "send every file's end")
    for row, (start, end) in enumerate(zip(starts, ends, strict=False)):
        _check(codec, data[start:end].tobytes(), shape, f"{name}, row {row}")
    images = np.empty((len(ends), *shape), np.uint8)
    for row, (start, end) in enumerate(zip(starts, ends, strict=False)):
        try:
            codec.decode_jpeg(data[start:end].tobytes(), "RGB", fastdct=False, fastupsample=False, buffer=images[row])
        except ValueError as error:
            raise _bad(str(error), f"{name}, row {row}") from None
    return images


def _check(codec: Any, file: bytes, shape: tuple[int, ...], where: str) -> None:
    if file.count(_SCAN) > _SCANS:
        raise _bad(f"it has more than {_SCANS} scans", where)
    try:
        height, width, color, _ = codec.decode_jpeg_header(file)
    except ValueError as error:
        raise _bad(str(error), where) from None
    if color not in _COLORS:
        raise _bad(f"its colours are {color}", where)
    if (height, width) != shape[:2]:
        raise _bad(f"it has {height} x {width} pixels, the policy takes {shape[0]} x {shape[1]}", where)


def _bad(what: str, where: str) -> MessageError:
    return MessageError(f"a image cannot be taken: {what}", where, "send whole baseline colour JPEG of the right size")


def _codec() -> Any:
    try:
        import simplejpeg
    except ModuleNotFoundError:
        raise UserError(
            "images as JPEG need simplejpeg", "jpeg", "pip install 'embodied-rl[jpeg]', or send raw images"
        ) from None
    return simplejpeg
