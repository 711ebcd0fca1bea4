"""The checksum of bytes of every length that is summed in another way, from places of every alignment, against another
library's."""

from __future__ import annotations

import random

import google_crc32c
import pytest

from mainstem.kernel import crc32c

LONG, SHORT, AHEAD = 3 * 1360, 3 * 168, 4096
"""Bytes of a round of long streams and of short ones, and how far ahead memory is asked for (`crc32c.h`)."""

EDGES = sorted(
    {
        rounds * LONG + shorts * SHORT + ahead + rest
        for rounds in (0, 1, 2, 3, 17)
        for shorts in (0, 1, 7)
        for ahead in (0, AHEAD)
        for rest in (-9, -8, -1, 0, 1, 7, 8)
        if rounds * LONG + shorts * SHORT + ahead + rest >= 0
    }
)


@pytest.mark.parametrize("start", range(9))
def test_it_is_another_librarys(start: int) -> None:
    content = random.Random(70).randbytes(EDGES[-1] + start)
    for size in EDGES:
        part = content[start : start + size]
        assert crc32c(memoryview(content)[start : start + size]) == google_crc32c.value(part), size
