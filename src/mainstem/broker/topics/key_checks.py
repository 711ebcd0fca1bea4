"""Checks that the records which producers send to compacted topics have keys.

The dispatch of a request walks its plain batches, and compressed ones that inflate to little: a request has
so many bytes for that. Larger batches are checked beside the event loop, and their request waits for the
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from mainstem.kernel import Verdict
from mainstem.ports import SideWork
from mainstem.protocol.records.lookup import Keys, is_compressed, keyless_records, keys_of
from mainstem.side_thread import AtOnce

AT_ONCE_BYTES = 512 * 1024
"""Bytes walked or inflated within the dispatch of one request: two milliseconds with the slowest compression.
A producer's usual batch is 16 KB, and 512 KB hold it thirty times."""

COMPRESSED_AT_ONCE_BYTES = 64 * 1024
"""Bytes of compressed batches: a batch that inflates to nothing costs time, too."""

_VERDICTS = {
    Keys.ALL: Verdict.OK,
    Keys.MISSING: Verdict.KEYLESS,
    Keys.UNREADABLE: Verdict.UNREADABLE,
    Keys.TOO_LARGE: Verdict.UNREADABLE,
}


class KeyRefusal(NamedTuple):
    """A batch that is refused, by its number."""

    batch: int
    verdict: Verdict
    keyless: tuple[int, ...] = ()
    """The numbers of its records without a key, as far as they are told."""


class KeyChecks:
    """Runs the checks. `beside` counts the requests that were checked beside the loop."""

    def __init__(self, side_work: SideWork | None = None) -> None:
        self._side_work = side_work or AtOnce()
        self.beside = 0

    def at_once(self, batches: Sequence[tuple[int, memoryview]], *, inflate: bool) -> list[KeyRefusal] | None:
        """The batches whose records do not all have keys. None: the check takes too long to be done at once, as it
        does for compressed batches unless they may be inflated."""
        refused = []
        room = AT_ONCE_BYTES
        compressed_room = COMPRESSED_AT_ONCE_BYTES if inflate else 0
        for number, data in batches:
            if is_compressed(data):
                compressed_room -= len(data)
            if compressed_room < 0 or len(data) > room:
                return None
            keys, walked = keys_of(data, room)
            room -= max(walked, len(data))
            if keys is Keys.TOO_LARGE:
                return None
            if keys is not Keys.ALL:
                refused.append(_refusal(number, data, keys))
        return refused

    async def beside_the_loop(self, batches: Sequence[tuple[int, memoryview]]) -> list[KeyRefusal]:
        """Check as `at_once` does, however long it takes, in a thread."""
        self.beside += 1
        return await self._side_work.run(partial(_refused, batches))


def _refused(batches: Sequence[tuple[int, memoryview]]) -> list[KeyRefusal]:
    found = [(number, data, keys_of(data)[0]) for number, data in batches]
    return [_refusal(number, data, keys) for number, data, keys in found if keys is not Keys.ALL]


def _refusal(number: int, data: memoryview, keys: Keys) -> KeyRefusal:
    return KeyRefusal(number, _VERDICTS[keys], keyless_records(data) if keys is Keys.MISSING else ())
