"""Pictures that were recorded as JPEG files."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied.errors import UserError

PICTURE_BYTES = 2**28
"""Bytes of one decoded picture at most."""


def jpeg_shape(file: bytes, name: str) -> tuple[int, int, int]:
    """Height, width and 3 of a JPEG file, by its header.

    Raises:
        ValueError: It is no JPEG file, or its picture is beyond reason large.
        UserError: The package that reads JPEG is not installed.
    """
    height, width, _, _ = _codec().decode_jpeg_header(file)
    if height * width * 3 > PICTURE_BYTES:
        raise ValueError(f"a picture of {name} has {height} x {width} pixels")
    return height, width, 3


def decode_jpeg(files: list[bytes], name: str) -> NDArray[np.uint8]:
    """[L, H, W, 3] pictures of JPEG files, red first.

    Raises:
        ValueError: A file is no JPEG, or of another size than the first.
        UserError: The package that reads JPEG is not installed.
    """
    shape = jpeg_shape(files[0], name)
    if any(jpeg_shape(file, name) != shape for file in files):
        raise ValueError(f"pictures of {name} differ in size")
    pictures = np.empty((len(files), *shape), np.uint8)
    for picture, file in zip(pictures, files, strict=True):
        _codec().decode_jpeg(file, "RGB", fastdct=False, fastupsample=False, buffer=picture)
    return pictures


def _codec() -> Any:
    try:
        import simplejpeg
    except ImportError:
        raise UserError("JPEG pictures need the package simplejpeg", "pip", "install embodied-rl[jpeg]") from None
    return simplejpeg
