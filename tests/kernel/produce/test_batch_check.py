"""Bytes from a disk are right, or are found out: both twins, for any bytes."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.kernel import compiled, pure
from mainstem.model import Buffer

FirstDamaged = Callable[[Buffer, Buffer, Buffer, Buffer, Buffer], int]
Place = tuple[int, int, int, int]
"""Start, length, base offset and leader epoch of a batch."""

TWINS = pytest.mark.parametrize("check", [pure.first_damaged, compiled.first_damaged], ids=["pure", "compiled"])


def batch(base_offset: int, leader_epoch: int, body: bytes) -> bytes:
    return struct.pack(">qiibI", base_offset, 9 + len(body), leader_epoch, 2, google_crc32c.value(body)) + body


def joined(bodies: Sequence[bytes]) -> tuple[bytes, list[Place]]:
    data, places = b"", []
    for number, body in enumerate(bodies):
        made = batch(number * 10, number * 1000, body)
        places.append((len(data), len(made), number * 10, number * 1000))
        data += made
    return data, places


def asked(check: FirstDamaged, data: Buffer, places: Sequence[Place]) -> int:
    columns = (memoryview(array("q", [place[field] for place in places])) for field in range(4))
    return check(data, *columns)


@TWINS
@given(bodies=st.lists(st.binary(max_size=3000), max_size=8), data=st.data())
def test_whole_batches_pass_and_one_changed_byte_is_found(
    check: FirstDamaged, bodies: list[bytes], data: st.DataObject
) -> None:
    content, places = joined(bodies)
    assert asked(check, content, places) == -1
    assert asked(check, memoryview(b"xyz" + content)[3:], places) == -1
    if not places:
        return
    number = data.draw(st.integers(0, len(places) - 1))
    start, length, *_ = places[number]
    at = start + data.draw(st.integers(0, length - 1))
    damaged = bytearray(content)
    damaged[at] ^= data.draw(st.integers(1, 255))
    assert asked(check, damaged, places) == number
    assert asked(check, content[: start + length - 1], places) == number


@TWINS
@pytest.mark.parametrize("place", [
    (-1, 31, 0, 0), (1, 31, 0, 0), (0, 30, 0, 0), (0, 32, 0, 0), (0, 31, 1, 0), (0, 20, 0, 0), (0, -5, 0, 0),
    (0, 2**63 - 1, 0, 0), (2**63 - 1, 31, 0, 0), (-(2**63), 31, 0, 0), (0, 31, 0, 1), (0, 31, 0, 1 << 32),
])  # fmt: skip
def test_a_place_that_is_not_the_batchs_is_refused(check: FirstDamaged, place: Place) -> None:
    content, places = joined([b"0123456789"])
    assert places == [(0, 31, 0, 0)]
    assert asked(check, content, place and [place]) == 0
    assert asked(check, content, [places[0], place]) == 1


@TWINS
def test_columns_of_different_lengths_are_refused(check: FirstDamaged) -> None:
    one, two = memoryview(array("q", [0])), memoryview(array("q", [0, 0]))
    with pytest.raises(ValueError):
        check(b"", one, one, one, two)


@given(st.binary(max_size=200), st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 200)] * 4)))
def test_the_twins_agree_on_anything(content: bytes, places: list[Place]) -> None:
    assert asked(pure.first_damaged, content, places) == asked(compiled.first_damaged, content, places)
