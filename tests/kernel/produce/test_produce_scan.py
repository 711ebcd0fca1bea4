"""The scan of Produce bodies by both kernels, against the codec as its oracle, and under hostile bytes."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any
from uuid import UUID

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernel.produce.produce_bodies import (
    PREFIX,
    TOPIC_ID,
    VERSIONS,
    WireRequest,
    WireTopic,
    body_of,
    changed,
    good_batch,
    scan,
)

from mainstem.kernel import MalformedProduce, Verdict, compiled, pure
from mainstem.model import queue_id_of
from mainstem.protocol import codec
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.records import Compression, NewRecord, build_batch

both = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])


def verdict_of(kernel: ModuleType, records: bytes | None, version: int = 9, acks: int = 1, **topic: Any) -> int:
    (found,) = scan(kernel, body_of(version, records, acks=acks), version, **topic).scanned()
    return found.verdict


@both
@pytest.mark.parametrize("version", VERSIONS)
def test_a_good_request_is_taken_apart(kernel: ModuleType, version: int) -> None:
    batch = good_batch(producer_id=5, producer_epoch=2, base_sequence=9)
    body = body_of(version, batch, batch)
    found = scan(kernel, body, version, number=0x87654321)
    assert (found.acks, found.timeout_ms, found.transactional) == (-1, 1500, False)
    ((key, count),) = found.topics
    assert key == (b"topic" if version < 13 else TOPIC_ID.bytes)
    assert count == found.batch_count == found.accepted_count == 2
    for index, row in enumerate(found.scanned()):
        assert row.partition == index
        assert row.verdict == Verdict.OK
        assert row.queue_id == queue_id_of(0x87654321, index)
        assert (PREFIX + body)[row.start : row.start + row.length] == batch
        assert (row.record_count, row.last_offset_delta, row.max_timestamp) == (3, 2, 1002)
        assert (row.producer_id, row.producer_epoch, row.base_sequence) == (5, 2, 9)
        assert row.crc == google_crc32c.value(batch[21:])
        assert (row.base_offset, row.log_append_time_ms, row.log_start_offset) == (-1, -1, -1)


texts = st.text(alphabet="abc.", max_size=20)
topics = st.lists(
    st.tuples(
        texts,
        st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.none() | st.binary(max_size=90)), max_size=4),
    ),
    max_size=4,
)


@both
@given(
    version=st.sampled_from(list(VERSIONS)),
    transactional_id=st.none() | texts,
    acks=st.integers(-(2**15), 2**15 - 1),
    timeout_ms=st.integers(-(2**31), 2**31 - 1),
    topics=topics,
)
@settings(max_examples=60, deadline=None)
def test_the_scan_sees_what_the_codec_wrote(
    kernel: ModuleType,
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: list[tuple[str, list[tuple[int, bytes | None]]]],
) -> None:
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=tuple(
            TopicProduceData(
                name=name if version < 13 else "",
                partition_data=tuple(PartitionProduceData(index=i, records=data) for i, data in parts),
            )
            for name, parts in topics
        ),
    )
    body = codec.write(request, version)
    found = scan(kernel, body, version)
    assert found.transactional == (transactional_id is not None)
    assert (found.acks, found.timeout_ms) == (acks, timeout_ms)
    names = [name.encode() if version < 13 else bytes(16) for name, _ in topics]
    assert [topic.key for topic in found.topics] == names
    assert [topic.batch_count for topic in found.topics] == [len(parts) for _, parts in topics]
    wanted = [(index, data or b"") for _, parts in topics for index, data in parts]
    rows = found.scanned()
    assert [(row.partition, (PREFIX + body)[row.start : row.start + row.length]) for row in rows] == wanted


@both
@pytest.mark.parametrize(
    ("records", "verdict"),
    [
        (None, Verdict.NO_BATCH),
        (b"", Verdict.NO_BATCH),
        (b"x" * 16, Verdict.BAD_LENGTH),
        (b"\0" * 16 + b"\x00" + b"\0" * 30, Verdict.OLD_FORMAT),
        (b"\0" * 16 + b"\x01" + b"\0" * 30, Verdict.OLD_FORMAT),
        (b"\0" * 16 + b"\x02" + b"\0" * 30, Verdict.BAD_LENGTH),
        (good_batch()[:-1], Verdict.BAD_LENGTH),
        (good_batch() + b"\0", Verdict.MANY_BATCHES),
        (good_batch() + good_batch(), Verdict.MANY_BATCHES),
        (changed(good_batch(), 8, ">i", 2**31 - 1), Verdict.BAD_LENGTH),
        (changed(good_batch(), 8, ">i", -5), Verdict.BAD_LENGTH),
        (changed(good_batch(), 8, ">i", 0), Verdict.BAD_LENGTH),
        (changed(good_batch(), 16, ">b", 3), Verdict.BAD_LENGTH),
        (changed(good_batch(), 16, ">b", -1), Verdict.BAD_LENGTH),
        (good_batch()[:-1] + b"?", Verdict.BAD_CHECKSUM),
        (changed(good_batch(), 57, ">i", 4), Verdict.BAD_COUNT),
        (changed(good_batch(), 57, ">i", 0), Verdict.BAD_COUNT),
        (changed(changed(good_batch(), 57, ">i", -1), 23, ">i", -2), Verdict.BAD_COUNT),
        (changed(good_batch(), 23, ">i", 2**31 - 1), Verdict.BAD_COUNT),
        (changed(changed(good_batch(), 23, ">i", 2**31 - 1), 57, ">i", -(2**31)), Verdict.BAD_COUNT),
        (changed(good_batch(), 0, ">q", 1), Verdict.BAD_FIELD),
        (changed(good_batch(), 43, ">q", -2), Verdict.BAD_FIELD),
        (changed(good_batch(), 43, ">q", 7), Verdict.BAD_FIELD),
        (changed(good_batch(), 21, ">h", 5), Verdict.BAD_COMPRESSION),
        (good_batch(control=True), Verdict.CONTROL),
        (good_batch(transactional=True), Verdict.TRANSACTIONAL),
        (good_batch(compression=Compression.ZSTD), Verdict.OK),
        (changed(good_batch(), 21, ">h", 8), Verdict.INVALID_TIMESTAMP),
        (changed(good_batch(), 0, ">q", 0), Verdict.OK),
    ],
)
def test_verdicts_on_the_bytes(kernel: ModuleType, records: bytes | None, verdict: Verdict) -> None:
    assert verdict_of(kernel, records) == verdict


CORRUPT_AND_CONTROL = good_batch(control=True)[:-1] + b"?"


@both
@pytest.mark.parametrize(
    ("records", "topic", "verdict"),
    [
        (good_batch(), {"partitions": 0}, Verdict.UNKNOWN_PARTITION),
        (None, {"partitions": 0}, Verdict.UNKNOWN_PARTITION),
        (good_batch(), {"partitions": 1}, Verdict.OK),
        (good_batch(), {"message_bytes_max": len(good_batch())}, Verdict.OK),
        (good_batch(), {"message_bytes_max": len(good_batch()) - 1}, Verdict.LARGER_THAN_TOPIC_ALLOWS),
        (good_batch() * 2, {"message_bytes_max": len(good_batch())}, Verdict.LARGER_THAN_TOPIC_ALLOWS),
        (changed(good_batch(), 21, ">h", 8), {"log_append_time": True}, Verdict.OK),
        (good_batch(), {"refusal": Verdict.UNKNOWN_TOPIC}, Verdict.UNKNOWN_TOPIC),
        (b"junk", {"refusal": Verdict.INTERNAL_TOPIC, "partitions": 0}, Verdict.INTERNAL_TOPIC),
        (good_batch(), {"refusal_acks_all": Verdict.NOT_ENOUGH_REPLICAS}, Verdict.OK),
        (CORRUPT_AND_CONTROL, {}, Verdict.BAD_CHECKSUM),
        (CORRUPT_AND_CONTROL, {"message_bytes_max": 61}, Verdict.LARGER_THAN_TOPIC_ALLOWS),
    ],
)
def test_verdicts_on_the_topic(
    kernel: ModuleType, records: bytes | None, topic: dict[str, Any], verdict: Verdict
) -> None:
    assert verdict_of(kernel, records, **topic) == verdict


@both
def test_verdicts_on_the_request(kernel: ModuleType) -> None:
    few = {"refusal_acks_all": Verdict.NOT_ENOUGH_REPLICAS}
    both_refuse = {**few, "refusal": Verdict.UNKNOWN_TOPIC}
    assert verdict_of(kernel, good_batch(), acks=-1, **few) == Verdict.NOT_ENOUGH_REPLICAS
    assert verdict_of(kernel, good_batch(), acks=-1, **both_refuse) == Verdict.UNKNOWN_TOPIC
    for acks in (-2, 2, 2**15 - 1):
        assert verdict_of(kernel, good_batch(), acks=acks, **both_refuse) == Verdict.INVALID_ACKS
    body = body_of(9, good_batch(), transactional_id="")
    (row,) = scan(kernel, body, 9, **both_refuse).scanned()
    assert row.verdict == Verdict.UNKNOWN_TOPIC
    unnumbered, numbered = good_batch(transactional=True), good_batch(transactional=True, producer_id=7)
    for version in (3, 9, 12):
        for records, verdict in (
            (good_batch(), Verdict.OK),
            (unnumbered, Verdict.BAD_FIELD),
            (changed(changed(numbered, 51, ">h", 0), 53, ">i", 0), Verdict.OK),
        ):
            found = scan(kernel, body_of(version, records, transactional_id="tx"), version)
            assert [row.verdict for row in found.scanned()] == [verdict]
            assert (found.transactional, found.transactional_id) == (True, b"tx")
    assert scan(kernel, body_of(9, good_batch()), 9).transactional_id is None
    body = body_of(9, good_batch(), transactional_id="tx", acks=7)
    (row,) = scan(kernel, body, 9).scanned()
    assert row.verdict == Verdict.INVALID_ACKS


@both
def test_zstd_is_refused_where_the_version_does_not_know_it(kernel: ModuleType) -> None:
    packed = good_batch(compression=Compression.ZSTD)
    assert [verdict_of(kernel, packed, version) for version in (6, 7)] == [Verdict.ZSTD_TOO_OLD, Verdict.OK]
    assert verdict_of(kernel, packed[:-1] + b"?", 6) == Verdict.BAD_CHECKSUM


@both
def test_one_bad_partition_does_not_concern_the_others(kernel: ModuleType) -> None:
    found = scan(kernel, body_of(9, good_batch(), b"junk", good_batch()), 9)
    assert [row.verdict for row in found.scanned()] == [Verdict.OK, Verdict.BAD_LENGTH, Verdict.OK]
    assert (found.batch_count, found.accepted_count) == (3, 2)


@both
@pytest.mark.parametrize("size", [64 * 1024 - 100, 64 * 1024, 300_000, 5_000_000])
def test_checksums_of_large_batches_are_checked(kernel: ModuleType, size: int) -> None:
    batch = bytes(build_batch([NewRecord(timestamp=1, key=None, value=b"v" * size)]).data)
    assert verdict_of(kernel, batch) == Verdict.OK
    assert verdict_of(kernel, batch[:-5] + b"!" + batch[-4:]) == Verdict.BAD_CHECKSUM


@both
def test_topics_are_looked_up_once_each_by_name_or_id(kernel: ModuleType) -> None:
    topic = kernel.ProduceTopic(number=1, partitions=9, message_bytes_max=1000)
    request = WireRequest(
        None, 1, 0, [WireTopic(name, [(0, good_batch()), (1, None)]) for name in (b"a", b"\xff", b"a")], []
    )
    for version, keys in ((3, [b"a", b"\xff", b"a"]), (13, [b"a" * 16, b"\xff" * 16, b"a" * 16])):
        asked: list[bytes] = []

        def resolve(key: bytes, asked: list[bytes] = asked) -> Any:
            asked.append(key)
            return topic

        kernel.scan_produce(memoryview(request.body(version)), 0, version, resolve)
        assert asked == keys


@both
def test_what_resolve_raises_goes_through(kernel: ModuleType) -> None:
    def resolve(key: bytes) -> Any:
        raise LookupError(key)

    frame = memoryview(bytearray(body_of(9, good_batch())))
    with frame, pytest.raises(LookupError):
        kernel.scan_produce(frame, 0, 9, resolve)


@both
@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_body_cut_anywhere_is_malformed(kernel: ModuleType, version: int) -> None:
    body = body_of(version, good_batch(), good_batch())
    for size in range(len(body)):
        with pytest.raises(MalformedProduce):
            scan(kernel, body[:size], version)
    with pytest.raises(MalformedProduce, match="too many"):
        scan(kernel, body + b"\0", version)


HEAD = {3: b"\xff\xff" + struct.pack(">hi", 1, 0), 9: b"\x00" + struct.pack(">hi", 1, 0)}


@both
@pytest.mark.parametrize(
    ("version", "rest"),
    [
        (3, struct.pack(">i", 2**31 - 1)),  # topics
        (3, struct.pack(">i", -1)),
        (3, struct.pack(">i", -(2**31))),
        (3, struct.pack(">ih", 1, -1) + b"\0" * 40),  # the name
        (3, struct.pack(">ih", 1, 32767) + b"\0" * 40),
        (3, struct.pack(">ihi", 1, 0, 2**30)),  # partitions
        (3, struct.pack(">ihiii", 1, 0, 1, 0, 2**31 - 1) + b"\0" * 40),  # records
        (3, struct.pack(">ihiii", 1, 0, 1, 0, -2) + b"\0" * 40),
        (9, b"\xff\xff\xff\xff\x0f"),
        (9, b"\xff\xff\xff\xff\xff\xff"),
        (9, b"\x02\xff\xff\xff\xff\x0f"),
        (9, b"\x02\x81\x80\x02" + b"n" * 32768 + b"\x01\x00\x00"),  # a name too long for any version
        (9, b"\x02\x01\xff\xff\xff\xff\x0f"),
        (9, b"\x02\x01\x02" + struct.pack(">i", 0) + b"\xff\xff\xff\xff\x0f"),
        (9, b"\x02\x01\x02" + struct.pack(">i", 0) + b"\x00\xff\xff\xff\xff\x0f"),  # tags
        (9, b"\x02\x01\x02" + struct.pack(">i", 0) + b"\x00\x01\x00\xff\xff\xff\xff\x0f"),
    ],
)
def test_lengths_that_lie_are_malformed(kernel: ModuleType, version: int, rest: bytes) -> None:
    with pytest.raises(MalformedProduce):
        scan(kernel, HEAD[version] + rest, version)


@both
@pytest.mark.parametrize(
    "rest",
    [
        struct.pack(">i", 100_001) + 100_001 * struct.pack(">hi", 0, 0),
        struct.pack(">ihi", 1, 0, 100_001) + 100_001 * struct.pack(">ii", 0, -1),
        struct.pack(">i", 2) + 2 * (struct.pack(">hi", 0, 50_000) + 50_000 * struct.pack(">ii", 0, -1)),
    ],
)
def test_entries_beyond_number_are_malformed(kernel: ModuleType, rest: bytes) -> None:
    """Well formed, and only made to keep the event loop busy."""
    with pytest.raises(MalformedProduce, match="100000"):
        scan(kernel, HEAD[3] + rest, 3)


@both
@given(version=st.sampled_from([3, 8, 9, 13]), body=st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_noise_is_malformed_or_a_scan(kernel: ModuleType, version: int, body: bytes) -> None:
    try:
        found = scan(kernel, body, version)
    except MalformedProduce:
        return
    assert found.batch_count * 6 + len(found.topics) * 3 <= len(body)


@both
@given(version=st.sampled_from([3, 9, 13]), position=st.integers(0, 10_000), byte=st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_one_wrong_byte_never_passes_for_a_good_batch(
    kernel: ModuleType, version: int, position: int, byte: int
) -> None:
    body = bytearray(body_of(version, good_batch()))
    position %= len(body)
    if body[position] == byte:
        return
    body[position] = byte
    try:
        found = scan(kernel, bytes(body), version)
    except MalformedProduce:
        return
    for row in found.scanned():
        if row.verdict == Verdict.OK:  # then the byte was not in the part that is checked
            assert (PREFIX + body)[row.start + 16 : row.start + row.length] == good_batch()[16:]


@both
def test_what_is_no_request_is_refused(kernel: ModuleType) -> None:
    body = body_of(9, good_batch())
    for version, position in ((2, 0), (14, 0), (9, -1), (9, len(body) + 1)):
        with pytest.raises(ValueError, match="no Produce body"):
            kernel.scan_produce(memoryview(body), position, version, lambda key: None)
    with pytest.raises(ValueError):
        kernel.ProduceTopic(refusal=-1)
    with pytest.raises(ValueError):
        kernel.ProduceTopic(refusal_acks_all=1000)


def test_the_codec_writes_what_these_tests_write_by_hand() -> None:
    request = WireRequest(None, -1, 1500, [WireTopic(b"topic", [(0, good_batch()), (1, None)])], [])
    for version in range(3, 13):
        assert request.body(version) == body_of(version, good_batch(), None)
    unnamed = WireRequest(None, -1, 1500, [WireTopic(UUID(int=7).bytes, [(0, good_batch())])], [])
    assert unnamed.body(13) == body_of(13, good_batch())
