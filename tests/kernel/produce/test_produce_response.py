"""A scan after the scan, in both kernels: a sequence of batches, what stores make of them, and the response."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
from tests.kernel.produce.produce_bodies import (
    EVERYTHING,
    PREFIX,
    TOPIC_ID,
    VERSIONS,
    WireRequest,
    WireTopic,
    body_of,
    good_batch,
    scan,
)

from mainstem.kernel import MalformedProduce, ProduceScan, Verdict, compiled, pure
from mainstem.model import AppendResult, BatchAppend, Outcome, queue_id_of
from mainstem.protocol import codec
from mainstem.protocol.headers import response_frame
from mainstem.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

both = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])

ERRORS = tuple(
    (number - 1, None if number % 3 == 0 else b"m" * (number * 7)) if number else (0, None) for number in range(64)
)
"""An error for every verdict: some with a message, some so long that its length takes two bytes."""


def expected(version: int, correlation_id: int, found: ProduceScan, throttle_ms: int = 0) -> bytes:
    """The frame the codec writes of what the batches of a scan say."""
    rows = iter(found.scanned())
    topics = []
    for key, count in found.topics:
        parts = []
        for _ in range(count):
            row = next(rows)
            code, message = ERRORS[row.verdict]
            parts.append(
                PartitionProduceResponse(
                    index=row.partition,
                    error_code=code,
                    base_offset=row.base_offset,
                    log_append_time_ms=row.log_append_time_ms,
                    log_start_offset=row.log_start_offset,
                    error_message=None if message is None else message.decode(),
                )
            )
        named: dict[str, Any] = {"topic_id": UUID(bytes=key)} if version >= 13 else {"name": key.decode()}
        topics.append(TopicProduceResponse(**named, partition_responses=tuple(parts)))
    body = codec.write_parts(ProduceResponse(throttle_time_ms=throttle_ms, responses=tuple(topics)), version)
    return b"".join(response_frame(correlation_id, 0, version, body))


def results_of(*outcomes: Outcome) -> list[AppendResult]:
    return [
        AppendResult(outcome, 2**40 + number, 1_700_000_000_000 + number, number)
        if outcome is Outcome.OK
        else AppendResult(outcome)
        for number, outcome in enumerate(outcomes)
    ]


@both
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("correlation_id", [0, -1, 2**31 - 1])
def test_the_response_is_the_codecs(kernel: ModuleType, version: int, correlation_id: int) -> None:
    records = [good_batch(), None, good_batch(), b"junk", good_batch(), good_batch()[:-1] + b"?"]
    found = scan(kernel, body_of(version, *records, name="n" * 200), version)
    assert found.response(correlation_id, ERRORS) == expected(version, correlation_id, found)
    assert found.response(correlation_id, ERRORS, 70_000) == expected(version, correlation_id, found, 70_000)
    found.settle(results_of(Outcome.OK, Outcome.OUT_OF_ORDER_SEQUENCE, Outcome.OK))
    assert found.response(correlation_id, ERRORS) == expected(version, correlation_id, found)
    assert [row.verdict for row in found.scanned()] == [
        Verdict.OK,
        Verdict.NO_BATCH,
        Verdict.OUT_OF_ORDER_SEQUENCE,
        Verdict.BAD_LENGTH,
        Verdict.OK,
        Verdict.BAD_CHECKSUM,
    ]


@both
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 300])
def test_the_response_is_the_codecs_for_many(kernel: ModuleType, version: int, count: int) -> None:
    """Counts around those whose lengths change size, of partitions and of topics."""
    many = WireRequest(None, 1, 0, [WireTopic(b"topic", [(n, good_batch()) for n in range(count)])], [])
    spread = WireRequest(None, 1, 0, [WireTopic(b"t" * n, [(n, None)]) for n in range(count)], [])
    for request in (many, spread):
        found = scan(kernel, request.body(version), version)
        found.settle(results_of(*[Outcome.OK] * found.accepted_count))
        assert found.response(7, ERRORS) == expected(version, 7, found)


@both
def test_a_response_for_very_many_partitions(kernel: ModuleType) -> None:
    entry = struct.pack(">ii", 5, -1)
    body = b"\xff\xff" + struct.pack(">hii", 1, 0, 1) + struct.pack(">hi", 0, 99_999) + 99_999 * entry
    found = scan(kernel, body, 3, refusal=Verdict.UNKNOWN_TOPIC)
    answer = struct.pack(">ihqq", 5, ERRORS[Verdict.UNKNOWN_TOPIC][0], -1, -1)
    body = struct.pack(">ihi", 1, 0, 99_999) + 99_999 * answer + bytes(4)
    assert found.response(1, ERRORS) == struct.pack(">ii", 4 + len(body), 1) + body
    assert found.errors(ERRORS) == {ERRORS[Verdict.UNKNOWN_TOPIC][0]: 99_999}


@both
def test_errors_are_the_codes_that_are_not_0(kernel: ModuleType) -> None:
    found = scan(kernel, body_of(9, good_batch(), good_batch()), 9)
    assert found.errors(ERRORS) == {}
    found.settle(results_of(Outcome.FENCED, Outcome.OK))
    assert found.errors(ERRORS) == {ERRORS[Verdict.FENCED][0]: 1}
    silent = [(0, None)] * len(ERRORS)
    assert found.errors(silent) == {}


@both
def test_an_error_table_that_will_not_do(kernel: ModuleType) -> None:
    found = scan(kernel, body_of(9, b"junk"), 9)
    with pytest.raises(IndexError):
        found.response(0, ERRORS[: Verdict.BAD_LENGTH])
    too_long = [(1, b"m" * 32768)] * len(ERRORS)
    with pytest.raises(ValueError, match="32768 bytes"):
        found.response(0, too_long)
    as_long_as_may_be = [(1, b"m" * 32767)] * len(ERRORS)
    assert len(found.response(0, as_long_as_may_be)) > 32767


# --- the accepted batches ---------------------------------------------------------------------------------------


@both
def test_a_scan_is_the_sequence_of_its_accepted_batches(kernel: ModuleType) -> None:
    good = good_batch(producer_id=5, producer_epoch=2, base_sequence=9)
    frame = memoryview(bytearray(PREFIX + body_of(9, b"junk", good, None, good, good[:-1], good)))
    topic = kernel.ProduceTopic(**{**EVERYTHING, "number": 3, "log_append_time": True})
    found: ProduceScan = kernel.scan_produce(frame, len(PREFIX), 9, lambda key: topic)
    assert isinstance(found, Sequence)
    assert len(found) == found.accepted_count == 3
    assert [batch.queue_id for batch in found] == [queue_id_of(3, partition) for partition in (1, 3, 5)]
    for index, batch in enumerate(found):
        assert type(batch) is BatchAppend
        assert bytes(batch.data) == good
        assert batch[2:] == (3, 2, 1002, 5, 2, 9, 0, int.from_bytes(good[17:21], "big"), True)
        assert found[index].queue_id == batch.queue_id
    for index in (2, 0, 1, -1, -3, 1):  # in any order
        assert found[index].queue_id == queue_id_of(3, (1, 3, 5)[index])
    assert [batch.queue_id for batch in found[1:]] == [queue_id_of(3, 3), queue_id_of(3, 5)]
    for index in (3, -4, 2**31):
        with pytest.raises(IndexError):
            found[index]


@both
def test_the_frame_is_free_after_release(kernel: ModuleType) -> None:
    buffer = bytearray(body_of(9, good_batch(), good_batch()))
    topic = kernel.ProduceTopic(**EVERYTHING)
    with memoryview(buffer) as frame:
        found: ProduceScan = kernel.scan_produce(frame, 0, 9, lambda key: topic)
        assert len(list(found)) == 2
        found.release()
        found.release()
    buffer += b"more"  # which cannot be while anybody has a view of it
    with pytest.raises(ValueError, match="released"):
        found[0]
    found.settle(results_of(Outcome.OK, Outcome.OK))
    assert found.response(3, ERRORS) == expected(9, 3, found)


@both
@pytest.mark.parametrize("body", [b"", b"\x00", body_of(9, good_batch())[:-1]])
def test_the_frame_is_free_after_a_failure(kernel: ModuleType, body: bytes) -> None:
    buffer = bytearray(body)
    with memoryview(buffer) as frame, pytest.raises(MalformedProduce):
        kernel.scan_produce(frame, 0, 9, lambda key: kernel.ProduceTopic(**EVERYTHING))
    buffer += b"more"


@both
def test_a_scan_goes_with_its_frame(kernel: ModuleType) -> None:
    buffer = bytearray(body_of(9, good_batch()))
    frame = memoryview(buffer)
    found = kernel.scan_produce(frame, 0, 9, lambda key: kernel.ProduceTopic(**EVERYTHING))
    del found
    frame.release()
    buffer += b"more"


# --- what becomes of them ---------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_a_verdict(kernel: ModuleType, outcome: Outcome) -> None:
    found = scan(kernel, body_of(9, good_batch()), 9)
    found.settle(results_of(outcome))
    (row,) = found.scanned()
    assert Verdict(row.verdict).name == outcome.name


@both
def test_settling_takes_one_result_per_accepted_batch(kernel: ModuleType) -> None:
    found = scan(kernel, body_of(9, good_batch(), None, good_batch()), 9)
    for count in (0, 1, 3):
        with pytest.raises(ValueError, match=f"{count} results for 2 batches"):
            found.settle(results_of(*[Outcome.OK] * count))
    found.settle(results_of(Outcome.OK, Outcome.TOO_LARGE))
    found.settle(results_of(Outcome.TOO_LARGE, Outcome.OK))  # accepted is what the scan accepted
    assert [row.verdict for row in found.scanned()] == [Verdict.TOO_LARGE, Verdict.NO_BATCH, Verdict.OK]
    assert len(found) == 2


@both
def test_failing_takes_back_what_went_well(kernel: ModuleType) -> None:
    found = scan(kernel, body_of(9, good_batch(), None, good_batch(), good_batch()), 9)
    found.settle(results_of(Outcome.OK, Outcome.STALE_PRODUCER_EPOCH, Outcome.OK))
    found.fail(Verdict.STORAGE_FAILED)
    rows = found.scanned()
    failed = Verdict.STORAGE_FAILED
    assert [row.verdict for row in rows] == [failed, Verdict.NO_BATCH, Verdict.STALE_PRODUCER_EPOCH, failed]
    assert {(row.base_offset, row.log_append_time_ms, row.log_start_offset) for row in rows} == {(-1, -1, -1)}
    with pytest.raises(ValueError):
        found.fail(1000)


@both
def test_batches_of_compacted_topics_can_be_refused(kernel: ModuleType) -> None:
    good = good_batch()
    request = WireRequest(
        None,
        1,
        0,
        [
            WireTopic(b"plain", [(0, good), (1, good)]),
            WireTopic(b"compacted", [(0, good), (1, b"junk"), (2, good)]),
            WireTopic(b"plain", [(2, good)]),
        ],
        [],
    )
    frame = memoryview(request.body(9))
    topics = {key: kernel.ProduceTopic(**EVERYTHING, compacted=key == b"compacted") for key in (b"plain", b"compacted")}
    found: ProduceScan = kernel.scan_produce(frame, 0, 9, topics.get)
    assert [(number, bytes(data)) for number, data in found.compacted()] == [(2, good), (4, good)]
    assert found[3].queue_id == queue_id_of(9, 2)
    found.refuse(2, Verdict.KEYLESS)
    assert found.accepted_count == len(found) == len(list(found)) == 4
    assert [batch.queue_id & 0xFF for batch in found] == [0, 1, 2, 2]
    assert found[3].queue_id == queue_id_of(9, 2)
    assert [number for number, _ in found.compacted()] == [4]
    for number in (2, 3):  # not accepted (any longer)
        with pytest.raises(ValueError, match="not accepted"):
            found.refuse(number, Verdict.KEYLESS)
    with pytest.raises(ValueError):
        found.refuse(4, Verdict.OK)
    for number in (-1, 6):
        with pytest.raises(IndexError):
            found.refuse(number, Verdict.KEYLESS)
    found.settle(results_of(*[Outcome.OK] * 4))
    assert [row.verdict for row in found.scanned()] == [0, 0, Verdict.KEYLESS, Verdict.BAD_LENGTH, 0, 0]
    assert [row.base_offset - 2**40 for row in found.scanned() if row.verdict == 0] == [0, 1, 2, 3]
    assert found.response(3, ERRORS) == expected(9, 3, found)


@both
def test_nothing_is_compacted_where_no_topic_is(kernel: ModuleType) -> None:
    found = scan(kernel, body_of(13, good_batch()), 13)
    assert list(found.compacted()) == []
    assert found.topics[0].key == TOPIC_ID.bytes
