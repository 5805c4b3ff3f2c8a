"""Shared-memory transport, server side: images of clients on this machine; see `embodied.wire.shared_memory`."""

import math
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from embodied.errors import MessageError, NotShared
from embodied.weights.shared import open_block
from embodied.wire import shared_memory as layout
from embodied.wire.header import Entry
from embodied.wire.message import Message

_BLOCKS = 128


class SharedMemoryReader:
    """Reads images from memory that messages name. It may change at any time, so copy its contents before use."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()

    def fill(self, message: Message) -> tuple[Entry, ...]:
        """Add the arrays in shared memory to a message, as read-only views; returns their announcement.

        Raises:
            NotShared: This server cannot open the memory; the client must send the arrays.
            MessageError: The message is malformed.
        """
        name, size, at, text = (message.body.get(key) for key in ("block", "block_bytes", "at", "arrays"))
        if type(size) is not int or type(at) is not int or type(name) is not str or type(text) is not str or at < 0:
            raise MessageError(
                "images in memory that is not fully named", "act", "send block, block_bytes, at and arrays"
            )
        entries, starts, end = layout.read(text)
        block = self._blocks.get(name)
        if block is None:
            block = open_block(name, size)
            if block is None:
                raise NotShared("no memory is shared with this client", "act", "send the images")
            self._blocks[name] = block
            if len(self._blocks) > _BLOCKS:
                self._blocks.popitem(last=False)
        if at + end > block.size:
            raise MessageError(f"images up to byte {at + end} of {block.size}", "act", "name what is in the memory")
        for (key, _, shape), start in zip(entries, starts, strict=True):
            if key in message.arrays:
                raise MessageError(f"array {key} is sent and in shared memory", "act", "do one of the two")
            first = at + start
            message.arrays[key] = block[first : first + math.prod(shape)].reshape(shape)
        return entries
