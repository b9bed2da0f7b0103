"""The write-ahead log that version 0.1 left: whether it ends where it was ended.

SQLite reads a log up to the first page whose checksum is wrong and takes that for the end of what
was written. That is right behind a crash, and silently less than was spent where a bit has flipped.

Rule 1: behind the first wrong page nothing of the same log may follow, and that page itself may
only be cut short; else the log is damaged, and refused.
Source: the file format of SQLite, section 4 (write-ahead log).
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
# The last bit says in which order of bytes the checksums were computed.
_MAGIC = 0x377F0682

Sums = tuple[int, int]


def is_damaged(log: Path) -> bool:
    """Whether a log was changed since it was written (Rule 1); a missing or empty one was not.

    Raises:
        OSError: it cannot be read.
    """
    try:
        data = log.read_bytes()
    except FileNotFoundError:
        return False
    if len(data) < _HEADER.size:
        return False
    magic, _, page, _, *salts, one, two = _HEADER.unpack_from(data)
    order = ">" if magic & 1 else "<"
    sums = _added((0, 0), data[:24], order)
    if magic & ~1 != _MAGIC or sums != (one, two) or not _is_page(page):
        return True
    size = _FRAME.size + page
    ended = False
    for start in range(_HEADER.size, len(data) - size + 1, size):
        *_, salt, other, one, two = _FRAME.unpack_from(data, start)
        ours = salt == salts[0] or other == salts[1]
        if not ended:
            sums = _added(sums, data[start : start + 8], order)
            sums = _added(sums, data[start + _FRAME.size : start + size], order)
            ended = [salt, other] != salts or sums != (one, two)
        # What an older log left behind the end has two other salts.
        if ended and ours:
            return True
    return False


def _is_page(size: int) -> bool:
    return 512 <= size <= 65536 and size & (size - 1) == 0


def _added(sums: Sums, data: bytes, order: str) -> Sums:
    """SQLite's checksum, continued."""
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return one, two
