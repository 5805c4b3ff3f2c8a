"""Pictures that clients on this machine leave in shared memory; see `embodied.wire.shared_memory`."""

import math
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from embodied.errors import MessageError, NotShared
from embodied.weights.shared import open_block
from embodied.wire import shared_memory as lent
from embodied.wire.header import Entry
from embodied.wire.message import Message

_BLOCKS = 128


class SharedMemoryReader:
    """Finds the memory that messages name. What is in it may change at any time, so it is copied before it is used."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()

    def fill(self, message: Message) -> tuple[Entry, ...]:
        """Add the arrays a message lends to those it carries, as read-only views; returns what they are.

        Raises:
            NotShared: There is no such memory here: the client is to send them.
            MessageError: The message is malformed.
        """
        name, size, at, text = (message.body.get(key) for key in ("block", "block_bytes", "at", "lent"))
        if type(size) is not int or type(at) is not int or type(name) is not str or type(text) is not str or at < 0:
            raise MessageError("pictures in memory that is not named whole", "act", "send block, its size, at and lent")
        entries, starts, end = lent.read(text)
        block = self._blocks.get(name)
        if block is None:
            block = open_block(name, size)
            if block is None:
                raise NotShared("no memory is shared with this client", "act", "send the pictures")
            self._blocks[name] = block
            if len(self._blocks) > _BLOCKS:
                self._blocks.popitem(last=False)
        if at + end > block.size:
            raise MessageError(f"pictures up to byte {at + end} of {block.size}", "act", "name what is in the memory")
        for (key, _, shape), start in zip(entries, starts, strict=True):
            if key in message.arrays:
                raise MessageError(f"array {key} is sent and lent", "act", "do one of the two")
            first = at + start
            message.arrays[key] = block[first : first + math.prod(shape)].reshape(shape)
        return entries
