"""Rows of producer states, as files and snapshots have them: sorted, and put together where one producer has several.

Nothing here does I/O; rows come and go as numpy arrays of `STATE`, or as the bytes of such arrays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy
import numpy.typing

from mainstem.kernel.pure.producer_states import PARTIAL_AT, ProducerState, joined, row_of, states_of

STATE = numpy.dtype([
    ("queue_id", "<u8"), ("producer_id", "<i8"), ("last_timestamp_ms", "<i8"), ("epoch", "<i2"), ("count", "u1"),
    ("zeros", "V3"), ("partial", "u1"), ("zero", "V1"),
    ("batches", [
        ("base_sequence", "<i4"), ("last_sequence", "<i4"), ("base_offset", "<i8"), ("block_index", "<i8"),
    ], 5),
])  # fmt: skip
"""As `ProducerStates.image` and `ProducerStates.changed` have them."""
assert STATE.fields is not None
assert STATE.fields["partial"][1] == PARTIAL_AT

States = numpy.typing.NDArray[numpy.void]

PUT_TOGETHER_PER_TURN = 64
"""Producers whose states lie in several pieces, in one turn of the event loop: some milliseconds."""

Name = tuple[int, int]
"""Queue id, producer id."""


def up_to(rows: States, queue_id: int, producer_id: int) -> int:
    """How many of these sorted rows are at or before a producer."""
    queues = rows["queue_id"]
    return int(((queues < queue_id) | ((queues == queue_id) & (rows["producer_id"] <= producer_id))).sum())


def sorted_states(rows: States) -> States:
    order = numpy.lexsort((rows["producer_id"], rows["queue_id"]))
    found: States = rows[order]
    return found


async def joined_states(parts: Sequence[States]) -> States:
    """Put sorted parts, oldest first, together: of each producer the one state that all of them come to, sorted."""
    rows = numpy.concatenate(parts)
    order = numpy.lexsort((rows["producer_id"], rows["queue_id"]))  # stable: of one producer the oldest comes first
    rows = rows[order]
    again = (rows["queue_id"][1:] == rows["queue_id"][:-1]) & (rows["producer_id"][1:] == rows["producer_id"][:-1])
    last = numpy.append(~again, True) if len(rows) else numpy.zeros(0, bool)
    kept: States = rows[last]
    firsts = numpy.flatnonzero(numpy.insert(~again, 0, True)) if len(rows) else numpy.zeros(0, int)
    lasts = numpy.flatnonzero(last)
    pieces = numpy.flatnonzero((kept["partial"] != 0) & (firsts < lasts)).tolist()
    for count, number in enumerate(pieces, 1):
        kept[number] = _whole(rows[firsts[number] : lasts[number] + 1])
        if count % PUT_TOGETHER_PER_TURN == 0:
            await asyncio.sleep(0)
    return kept


def _whole(rows: States) -> numpy.void:
    """The states of one producer put together, oldest first; partial as far as the oldest that counts is."""
    states = [state for *_key, state in states_of(rows.tobytes())]
    partial = [bool(flag) for flag in rows["partial"].tolist()]
    first = max((place for place, flag in enumerate(partial) if not flag), default=0)
    state = states[first]
    for newer in states[first + 1 :]:
        state = joined(state, newer)
    made = numpy.frombuffer(row_of(int(rows[0]["queue_id"]), int(rows[0]["producer_id"]), state), STATE).copy()
    made["partial"] = partial[first]
    one: numpy.void = made[0]
    return one


def lost_row(name: Name, now_ms: int) -> bytes:
    """The row of a producer of whom nothing is known any more."""
    return row_of(*name, ProducerState(-1, (), now_ms))


def known_at(index: int, image: bytes) -> bytes:
    """Take an image of producers back to what was known at a block: without batches of later ones, and without those
    that have none left. Those of whom nothing is known any more stay so."""
    rows = numpy.frombuffer(image, STATE).copy()
    is_lost = rows["count"] == 0
    batches = rows["batches"]
    places = numpy.arange(batches.shape[1])
    kept = (batches["block_index"] <= index) & (places < rows["count"][:, None])
    for cell in batches.dtype.names or ():
        batches[cell][~kept] = 0
    rows["count"] = kept.sum(axis=1)
    known: States = rows[is_lost | (rows["count"] > 0)]
    return known.tobytes()
