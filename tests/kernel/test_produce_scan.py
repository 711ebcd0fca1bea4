"""The scan of Produce bodies, against the codec as its oracle, and under hostile bytes."""

from __future__ import annotations

import struct
from uuid import UUID

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem.kernel import ProduceScan, Verdict, scan_produce
from mainstem.kernel.errors import MalformedProduce
from mainstem.protocol import codec
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.records import Compression, NewRecord, build_batch

VERSIONS = range(3, 14)
PREFIX = b"header"


def good_batch(**fields: object) -> bytes:
    records = [NewRecord(timestamp=1000 + n, key=None, value=b"value") for n in range(3)]
    return bytes(build_batch(records, **fields).data)  # type: ignore[arg-type]


def changed(batch: bytes, position: int, format: str, value: int) -> bytes:
    """The batch with one header field overwritten and its checksum made right again."""
    data = bytearray(batch)
    struct.pack_into(format, data, position, value)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return bytes(data)


def body_of(version: int, *parts: bytes | None, name: str = "topic", transactional_id: str | None = None) -> bytes:
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1500,
        topic_data=(
            TopicProduceData(
                name=name if version < 13 else "",
                topic_id=UUID(int=7) if version >= 13 else UUID(int=0),
                partition_data=tuple(
                    PartitionProduceData(index=index, records=part) for index, part in enumerate(parts)
                ),
            ),
        ),
    )
    return codec.write(request, version)


def scan(body: bytes, version: int) -> ProduceScan:
    return scan_produce(memoryview(bytearray(PREFIX + body)), len(PREFIX), version)


def verdict_of(records: bytes | None) -> int:
    (found,) = scan(body_of(9, records), 9).batches
    return found.verdict


@pytest.mark.parametrize("version", VERSIONS)
def test_a_good_request_is_taken_apart(version: int) -> None:
    batch = good_batch(producer_id=5, producer_epoch=2, base_sequence=9)
    body = body_of(version, batch, batch)
    found = scan(body, version)
    assert (found.acks, found.timeout_ms, found.transactional) == (-1, 1500, False)
    ((key, count),) = found.topics
    assert key == (b"topic" if version < 13 else UUID(int=7).bytes)
    assert count == 2
    for index, row in enumerate(found.batches):
        assert row.partition == index
        assert row.verdict == Verdict.OK
        assert (PREFIX + body)[row.start : row.stop] == batch
        assert (row.record_count, row.last_offset_delta, row.max_timestamp) == (3, 2, 1002)
        assert (row.producer_id, row.producer_epoch, row.base_sequence) == (5, 2, 9)
        assert row.crc == google_crc32c.value(batch[21:])


texts = st.text(alphabet="abc.", max_size=20)
topics = st.lists(
    st.builds(
        lambda name, parts: (name, parts),
        texts,
        st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.none() | st.binary(max_size=90)), max_size=4),
    ),
    max_size=4,
)


@given(
    version=st.sampled_from(list(VERSIONS)),
    transactional_id=st.none() | texts,
    acks=st.integers(-(2**15), 2**15 - 1),
    timeout_ms=st.integers(-(2**31), 2**31 - 1),
    topics=topics,
)
@settings(max_examples=60, deadline=None)
def test_the_scan_sees_what_the_codec_wrote(
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
    found = scan(body, version)
    assert found.transactional == (transactional_id is not None)
    assert (found.acks, found.timeout_ms) == (acks, timeout_ms)
    names = [name.encode() if version < 13 else bytes(16) for name, _ in topics]
    assert [topic.key for topic in found.topics] == names
    assert [topic.batch_count for topic in found.topics] == [len(parts) for _, parts in topics]
    wanted = [(index, data or b"") for _, parts in topics for index, data in parts]
    assert [(row.partition, (PREFIX + body)[row.start : row.stop]) for row in found.batches] == wanted


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
        (changed(good_batch(), 0, ">q", 1), Verdict.BAD_FIELD),
        (changed(good_batch(), 43, ">q", -2), Verdict.BAD_FIELD),
        (changed(good_batch(), 43, ">q", 7), Verdict.BAD_FIELD),
        (changed(good_batch(), 21, ">h", 5), Verdict.BAD_COMPRESSION),
        (good_batch(control=True), Verdict.CONTROL),
        (good_batch(transactional=True), Verdict.TRANSACTIONAL),
        (good_batch(compression=Compression.ZSTD), Verdict.OK),
        (changed(good_batch(), 0, ">q", 0), Verdict.OK),
    ],
)
def test_verdicts(records: bytes | None, verdict: Verdict) -> None:
    assert verdict_of(records) == verdict


def test_one_bad_partition_does_not_concern_the_others() -> None:
    found = scan(body_of(9, good_batch(), b"junk", good_batch()), 9)
    assert [row.verdict for row in found.batches] == [Verdict.OK, Verdict.BAD_LENGTH, Verdict.OK]


@pytest.mark.parametrize("size", [64 * 1024 - 100, 64 * 1024, 300_000])
def test_checksums_of_large_batches_are_checked_in_place(size: int) -> None:
    batch = bytes(build_batch([NewRecord(timestamp=1, key=None, value=b"v" * size)]).data)
    assert verdict_of(batch) == Verdict.OK
    assert verdict_of(batch[:-5] + b"!" + batch[-4:]) == Verdict.BAD_CHECKSUM


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_body_cut_anywhere_is_malformed(version: int) -> None:
    body = body_of(version, good_batch(), good_batch())
    for size in range(len(body)):
        with pytest.raises(MalformedProduce):
            scan(body[:size], version)
    with pytest.raises(MalformedProduce, match="too many"):
        scan(body + b"\0", version)


HEAD = {3: b"\xff\xff" + struct.pack(">hi", 1, 0), 9: b"\x00" + struct.pack(">hi", 1, 0)}


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
        (9, b"\x02\x01\xff\xff\xff\xff\x0f"),
        (9, b"\x02\x01\x02" + struct.pack(">i", 0) + b"\xff\xff\xff\xff\x0f"),
        (9, b"\x02\x01\x02" + struct.pack(">i", 0) + b"\x00\xff\xff\xff\xff\x0f"),  # tags
        (9, b"\x02\x01\x02" + struct.pack(">i", 0) + b"\x00\x01\x00\xff\xff\xff\xff\x0f"),
    ],
)
def test_lengths_that_lie_are_malformed(version: int, rest: bytes) -> None:
    with pytest.raises(MalformedProduce):
        scan(HEAD[version] + rest, version)


@pytest.mark.parametrize(
    "rest",
    [
        struct.pack(">i", 100_001) + 100_001 * struct.pack(">hi", 0, 0),
        struct.pack(">ihi", 1, 0, 100_001) + 100_001 * struct.pack(">ii", 0, -1),
        struct.pack(">i", 2) + 2 * (struct.pack(">hi", 0, 50_000) + 50_000 * struct.pack(">ii", 0, -1)),
    ],
)
def test_entries_beyond_number_are_malformed(rest: bytes) -> None:
    """Well formed, and only made to keep the event loop busy."""
    with pytest.raises(MalformedProduce, match="100000"):
        scan(HEAD[3] + rest, 3)


@given(version=st.sampled_from([3, 8, 9, 13]), body=st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_noise_is_malformed_or_a_scan(version: int, body: bytes) -> None:
    try:
        found = scan(body, version)
    except MalformedProduce:
        return
    assert len(found.batches) * 6 + len(found.topics) * 3 <= len(body)


@given(
    version=st.sampled_from([3, 9, 13]),
    position=st.integers(0, 10_000),
    byte=st.integers(0, 255),
)
@settings(max_examples=60, deadline=None)
def test_one_wrong_byte_never_passes_for_a_good_batch(version: int, position: int, byte: int) -> None:
    body = bytearray(body_of(version, good_batch()))
    position %= len(body)
    if body[position] == byte:
        return
    body[position] = byte
    try:
        found = scan(bytes(body), version)
    except MalformedProduce:
        return
    for row in found.batches:
        if row.verdict == Verdict.OK:  # then the byte was not in the part that is checked
            assert (PREFIX + body)[row.start + 16 : row.stop] == good_batch()[16:]
