"""Committed offsets read many at once say what the reader of single records makes of them."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.consumer_groups.logged_state import LoggedState
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.offset_scan import is_todays, offset_in, topic_id_in
from mainstem.broker.consumer_groups.offsets_topic import OffsetsTopicCodec, decode, encode
from mainstem.broker.consumer_groups.step import (
    ConsumerGroupRecord,
    LogRecord,
    MemberRead,
    OffsetRecord,
    ReadRecord,
    WrittenOffset,
)
from mainstem.broker.machines.machine_log import Pause
from mainstem.model import FeatureLevel
from mainstem.protocol.errors import ProtocolError
from mainstem.protocol.messages.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    read_offset_commit_value,
)
from mainstem.protocol.records import Compression, NewRecord, StoredBatch, build_batch, read_records, stored_batches
from mainstem.protocol.schema import ZERO_UUID

TOPIC_ID = UUID(int=7)
names = st.text(min_size=0, max_size=90)
int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
values = st.builds(
    OffsetCommitValue,
    offset=int64,
    leader_epoch=int32,
    metadata=st.text(max_size=140),
    commit_timestamp=int64,
    expire_timestamp=st.just(-1) | st.integers(0, 2**62),
    topic_id=st.sampled_from([TOPIC_ID, ZERO_UUID]),
)
keys = st.builds(OffsetCommitKey, group=names, topic=names, partition=int32)
offsets = st.builds(OffsetRecord, keys, st.none() | values)
metadata = GroupMetadataValue(protocol_type="consumer", generation=3, protocol="range", leader=None, members=())
groups = st.builds(ConsumerGroupRecord, st.builds(GroupMetadataKey, group=names), st.just(metadata))
levels = st.sampled_from([FeatureLevel.newest(), FeatureLevel.HARDENED, FeatureLevel(FeatureLevel.HARDENED - 1)])


def stored(records: list[NewRecord], compression: Compression = Compression.NONE) -> StoredBatch:
    (batch,) = stored_batches(bytes(build_batch(records, compression=compression).data))
    return batch


def as_decoded(record: ReadRecord) -> LogRecord:
    if not isinstance(record, WrittenOffset):
        return record
    key = OffsetCommitKey(group=record.group, topic=record.topic, partition=record.partition)
    return OffsetRecord(key, read_offset_commit_value(record.value))


def read_all(batch: StoredBatch) -> list[ReadRecord]:
    """All that the batch says; the groups are small."""
    found = list(OffsetsTopicCodec().decode_all(batch))
    assert not any(isinstance(one, MemberRead | Pause) for one in found)
    return [one for one in found if not isinstance(one, MemberRead | Pause)]


@given(st.lists(offsets | groups, min_size=1, max_size=12), levels, st.sampled_from(Compression), st.booleans())
def test_all_records_say_the_same(
    records: list[LogRecord], level: FeatureLevel, compression: Compression, with_headers: bool
) -> None:
    written = [encode(record, 5, level) for record in records]
    if with_headers:
        written[0] = replace(written[0], headers=(("a", b"b"),))
    written.append(NewRecord(5, None, b"without a key"))
    batch = stored(written, compression)
    expected = [one for record in read_records(batch) if (one := decode(record)) is not None]
    assert [as_decoded(one) for one in read_all(batch)] == expected


@given(values, st.binary(max_size=3), st.integers(0, 80))
def test_a_value_that_is_kept_unread_can_be_read(value: OffsetCommitValue, more: bytes, cut: int) -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=0)
    content = encode(OffsetRecord(key, value), 0, FeatureLevel.newest()).value
    assert content is not None
    if is_todays(content):
        assert read_offset_commit_value(content) == value
        assert (offset_in(content), topic_id_in(content)) == (value.offset, value.topic_id.bytes)
    for other in (content + more, content[:cut]):
        if is_todays(other):
            assert other == content
    short = value.expire_timestamp < 0 and value.metadata.isascii() and len(value.metadata) < 127
    assert is_todays(content) == (short and value.topic_id != ZERO_UUID)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_value_in_todays_form_are_left_to_the_other_reader(content: bytes) -> None:
    if is_todays(content):
        read_offset_commit_value(content)


@given(st.data())
def test_damaged_batches_are_refused_or_read_as_the_other_reader_does(data: st.DataObject) -> None:
    drawn = data.draw(st.lists(offsets, min_size=1, max_size=3))
    records = [encode(record, 5, FeatureLevel.newest()) for record in drawn]
    content = bytearray(stored(records).data)
    at = data.draw(st.integers(61, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    (batch,) = stored_batches(bytes(content))
    try:
        expected = [one for record in read_records(batch) if (one := decode(record)) is not None]
    except ProtocolError:
        with pytest.raises(ProtocolError):
            [as_decoded(one) for one in read_all(batch)]
    else:
        assert [as_decoded(one) for one in read_all(batch)] == expected


def test_unread_offsets_are_offsets_like_others() -> None:
    states = [LoggedState(Holdings()), LoggedState(Holdings())]
    value = OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=9, topic_id=TOPIC_ID)
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    forms: list[list[ReadRecord]] = [[OffsetRecord(key, value)], _unread(OffsetRecord(key, value))]
    for state, records in zip(states, forms, strict=True):
        for record in records:
            state.replay(record)
        held = state.offsets
        assert held.get("g", "t", 3) == value
        assert held.partitions("g", "t") == [(3, value)]
        assert held.numbers("g", "t") == [(3, 7)]
        assert list(state.snapshot("g")) == records
        assert list(held.of_other_topics(lambda name: TOPIC_ID)) == [None]
        assert list(held.of_other_topics(lambda name: uuid4())) == [(key, value)]
        assert list(held.of_other_topics(lambda name: None)) == [(key, value)]
        held.adopt(key, ZERO_UUID)
        assert held.get("g", "t", 3) == OffsetCommitValue(
            offset=7, leader_epoch=2, metadata="m", commit_timestamp=9, topic_id=ZERO_UUID
        )
        state.replay(OffsetRecord(key, None))
        assert (held.count, held.has("g")) == (0, False)
        assert "g" in state.classic


@given(record=st.builds(OffsetRecord, keys, values), level=levels)
def test_offsets_as_the_log_has_them_are_written_as_others_are(record: OffsetRecord, level: FeatureLevel) -> None:
    for read in read_all(stored([encode(record, 5, FeatureLevel.newest())])):
        assert encode(read, 7, level) == encode(record, 7, level)


def _unread(record: OffsetRecord) -> list[ReadRecord]:
    found = read_all(stored([encode(record, 5, FeatureLevel.newest())]))
    assert isinstance(found[0], WrittenOffset)
    return found
