"""What a record of the latency measurement carries: whose it is, which it is, and when it was due.

The clock is this process's own, so that the time from one end to the other needs no second clock to agree with it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_LAYOUT = struct.Struct(">8sQQ")
STAMP_BYTES = _LAYOUT.size
RUN_BYTES = 8


class Stamp(NamedTuple):
    run: bytes
    """Eight random bytes: what others send to the topic is none of ours."""
    number: int
    due_ns: int

    def on(self, filling: bytes) -> bytes:
        """A record of the filling's length, at least `STAMP_BYTES`, that begins with this."""
        return _LAYOUT.pack(*self) + filling[STAMP_BYTES:]


def stamp_of(record: bytes | None) -> Stamp | None:
    """The stamp a record begins with, if it is long enough for one; whose it is, the caller has to see."""
    if record is None or len(record) < STAMP_BYTES:
        return None
    return Stamp(*_LAYOUT.unpack_from(record))
