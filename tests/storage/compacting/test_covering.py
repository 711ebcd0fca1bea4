"""Logs of which no batch is left out: one without records stays in the place of each that is emptied."""

from __future__ import annotations

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.storage.compacting.histories import HISTORIES, NOW, content_of, latest, tell
from tests.storage.compacting.test_rewrite import FAR, compact, read_by_others

from mainstem.kernel.batch_header import HEADER_BYTES, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT
from mainstem.protocol.records import StoredBatch, stored_batches, verify_checksum
from mainstem.storage.compacting.covering import cover
from mainstem.storage.compacting.rewrite import Rewritten
from mainstem.storage.compacting.window import Window


def covered(content: bytes, kept: set[int], wanted: list[bool] | None = None) -> Rewritten:
    window = Window.of(content)
    flags = numpy.ones(len(window.batches), numpy.bool_) if wanted is None else numpy.array(wanted, numpy.bool_)
    return cover(window, compact(content, kept), flags)


@given(history=HISTORIES)
@settings(max_examples=examples(200), deadline=None)
def test_every_offset_is_in_a_batch_and_the_records_are_those_that_stay(history: list[StoredBatch]) -> None:
    content = content_of(history)
    kept = latest(content, FAR, NOW)
    made, plain = covered(content, kept), compact(content, kept)
    assert made.batches.tolist() == Window.of(made.content).batches.tolist()
    assert made.sources.tolist() == list(range(len(history)))
    assert made.dropped_records == plain.dropped_records
    left = bytes(made.content)
    assert list(tell(left)) == list(tell(bytes(plain.content)))
    assert read_by_others(left) == read_by_others(bytes(plain.content))
    there = set(plain.sources.tolist())
    for number, (old, new) in enumerate(zip(history, stored_batches(left), strict=True)):
        verify_checksum(new.data, new.header)
        assert (new.header.base_offset, new.header.last_offset) == (old.header.base_offset, old.header.last_offset)
        if number not in there:
            assert new.header == old.header._replace(
                length=HEADER_BYTES - 12,
                checksum=new.header.checksum,
                attributes=old.header.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT),
                base_timestamp=-1,
                record_count=0,
            )
    again = covered(left, kept)
    assert bytes(again.content) == left, "nothing is left to be done"


@given(history=HISTORIES, data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_batches_of_other_queues_are_left_out(history: list[StoredBatch], data: st.DataObject) -> None:
    content = content_of(history)
    wanted = data.draw(st.lists(st.booleans(), min_size=len(history), max_size=len(history)))
    plain = compact(content, set())
    made = covered(content, set(), wanted)
    there = set(plain.sources.tolist())
    assert made.sources.tolist() == [number for number, one in enumerate(wanted) if one or number in there]
    assert made.batches.tolist() == Window.of(made.content).batches.tolist()
    assert list(tell(bytes(made.content))) == list(tell(bytes(plain.content)))
