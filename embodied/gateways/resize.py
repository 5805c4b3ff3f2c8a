"""Resizing of images in plain numpy."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MAX_SIDE = 4096


def resize(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resize an image [H, W, C] to [height, width, C]; the aspect ratio may change.

    The filter is a triangle as wide as the step where a side shrinks, and linear interpolation where it grows.

    Args:
        image: [H, W, C], each side at most `MAX_SIDE` pixels.
    """
    if image.shape[:2] == (height, width):
        return image
    tall, wide, channels = image.shape
    rows = _weights(tall, height) @ image.reshape(tall, wide * channels).astype(np.float32)
    columns = _weights(wide, width) @ rows.reshape(height, wide, channels)
    return np.clip(np.rint(columns), 0, 255).astype(np.uint8)


@lru_cache(maxsize=16)
def _weights(given: int, wanted: int) -> NDArray[np.float32]:
    """Weights [wanted, given] of each input pixel in each output pixel; rows sum to one."""
    step = given / wanted
    centres = (np.arange(wanted) + 0.5) * step - 0.5
    distance = np.abs(centres[:, None] - np.arange(given)) / max(step, 1.0)
    shares = np.maximum(1.0 - distance, 0.0)
    return (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)
