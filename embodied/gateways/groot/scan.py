"""Count of a msgpack message's values, from its structure alone, before any of them is allocated.

msgpack bounds the entries of one map or list, but not the memory of nested ones.
"""

from embodied.errors import MessageError

_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}  # numbers
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # width of the length of bytes and texts
_ENTRIES = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # of lists and maps, and values per entry
_PLAIN = frozenset([*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3])  # small numbers, nil, bool


def check_values(data: bytes | memoryview, most: int, where: str) -> None:
    """Raise `MessageError` where `data` holds more than `most` values, keys included, or ends too early.

    Its time grows with the number of values, not of bytes. Extension types are refused; a message that passes may
    still be malformed.
    """
    at, left, seen, size = 0, 1, 0, len(data)
    while left:
        if at >= size:
            raise MessageError("a message that ends too early", where, "send whole msgpack messages")
        seen += 1
        if seen > most:
            raise MessageError(f"a message of more than {most} values", where, "send arrays, not lists of numbers")
        kind = data[at]
        at += 1
        left -= 1
        if kind in _PLAIN:
            continue
        if kind < 0x90:
            left += 2 * (kind & 15)
        elif kind < 0xA0:
            left += kind & 15
        elif kind < 0xC0:
            at += kind & 31
        elif kind in _FIXED:
            at += _FIXED[kind]
        elif kind in _BYTES:
            width = _BYTES[kind]
            at += width + int.from_bytes(data[at : at + width], "big")
        elif kind in _ENTRIES:
            width, values = _ENTRIES[kind]
            left += values * int.from_bytes(data[at : at + width], "big")
            at += width
        else:
            raise MessageError(f"a value of msgpack type {kind:#04x}", where, "send plain values and arrays")
    if at > size:
        raise MessageError("a message that ends too early", where, "send whole msgpack messages")
