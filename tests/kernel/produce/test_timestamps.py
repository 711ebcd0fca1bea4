"""The settings of topics for timestamps, judged by the header of a batch: both kernels, and the broker's answer."""

from __future__ import annotations

import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.broker.handlers.produce import ERRORS
from mainstem.kernel import ProduceScan, Verdict, compiled, pure
from mainstem.kernel.layout import NO_TIMESTAMP, TIMESTAMP_DISTANCE_MAX
from mainstem.protocol.error_codes import ErrorCode

NOW = 1_700_000_000_000
HOUR = 3_600_000
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1

both_kernels = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])


def scanned(
    kernel: ModuleType,
    base: int,
    highest: int,
    *,
    before: int = TIMESTAMP_DISTANCE_MAX,
    after: int = TIMESTAMP_DISTANCE_MAX,
    log_append_time: bool = False,
    now_ms: int = NOW,
    producer_id: int = -1,
    burst: bool = False,
    damaged: bool = False,
) -> int:
    """The verdict on a batch with this first and this highest timestamp."""
    producer = (producer_id, 0, 0) if producer_id >= 0 else (-1, -1, -1)
    rest = struct.pack(">hiqqqhii", 0, 0, base, highest, *producer, 1) + b"x" * 20
    checksum = compiled.crc32c(rest) ^ damaged
    data = struct.pack(">qiibI", 0, len(rest) + 9, -1, 2, checksum) + rest
    body = struct.pack(">hhiihsiii", -1, -1, 1000, 1, 1, b"t", 1, 0, len(data)) + data
    topic = kernel.ProduceTopic(
        number=1, partitions=1, message_bytes_max=1000, log_append_time=log_append_time,
        timestamp_before_ms_max=before, timestamp_after_ms_max=after,
    )  # fmt: skip
    scan: ProduceScan | None
    if burst:
        head = struct.pack(">hhih", 0, 7, 1, -1)
        frames = memoryview(struct.pack(">i", len(head) + len(body)) + head + body)
        scan = kernel.scan_burst(frames, 0, len(frames), 9, 1 << 20, lambda key: topic, lambda key: topic, now_ms)
        assert scan is not None
    else:
        scan = kernel.scan_produce(memoryview(body), 0, 7, lambda key: topic, now_ms)
    (batch,) = scan.scanned()
    assert (batch.record_count > 0) == (batch.verdict == Verdict.OK)
    return batch.verdict


REFUSED, TAKEN = Verdict.TIMESTAMP_OUT_OF_RANGE, Verdict.OK


@both_kernels
@pytest.mark.parametrize("burst", [False, True], ids=["alone", "in a burst"])
@pytest.mark.parametrize("producer_id", [-1, 7])
@pytest.mark.parametrize(
    ("base", "highest", "before", "after", "wanted"),
    [
        (NOW, NOW + HOUR, TIMESTAMP_DISTANCE_MAX, HOUR, TAKEN),
        (NOW, NOW + HOUR + 1, TIMESTAMP_DISTANCE_MAX, HOUR, REFUSED),
        (0, 253_370_764_800_000, TIMESTAMP_DISTANCE_MAX, HOUR, REFUSED),
        (0, HIGHEST, TIMESTAMP_DISTANCE_MAX, TIMESTAMP_DISTANCE_MAX, TAKEN),
        (LOWEST, NOW, TIMESTAMP_DISTANCE_MAX, HOUR, TAKEN),
        (NOW - HOUR, NOW, HOUR, HOUR, TAKEN),
        (NOW - HOUR - 1, NOW, HOUR, HOUR, REFUSED),
        (0, 0, HOUR, HOUR, REFUSED),
        (NO_TIMESTAMP, NO_TIMESTAMP, 0, 0, TAKEN),
        (NOW, NOW, 0, 0, TAKEN),
        (NOW, NOW + 1, 0, 0, REFUSED),
    ],
)
def test_headers_out_of_range_are_refused(
    kernel: ModuleType, burst: bool, producer_id: int, base: int, highest: int, before: int, after: int, wanted: Verdict
) -> None:
    found = scanned(kernel, base, highest, before=before, after=after, producer_id=producer_id, burst=burst)
    assert found == wanted


@both_kernels
def test_topics_that_stamp_their_own_time_take_any(kernel: ModuleType) -> None:
    assert scanned(kernel, 0, HIGHEST, before=0, after=0, log_append_time=True) == TAKEN


@both_kernels
def test_damage_is_told_before(kernel: ModuleType) -> None:
    assert scanned(kernel, 0, HIGHEST, after=0, damaged=True) == Verdict.BAD_CHECKSUM


def test_clients_are_told_so() -> None:
    error, message = ERRORS[REFUSED]
    assert error == ErrorCode.INVALID_TIMESTAMP
    assert message is not None
    assert b"message.timestamp.after.max.ms" in message


edges = st.sampled_from([LOWEST, LOWEST + 1, -2, -1, 0, 1, NOW - 1, NOW, NOW + 1, HIGHEST - 1, HIGHEST])
distances = st.sampled_from([0, 1, HOUR, NOW, HIGHEST - 1, HIGHEST])


@given(edges, edges, distances, distances, edges.filter(lambda now: now >= 0), st.booleans())
def test_both_kernels_agree_at_the_edges(
    base: int, highest: int, before: int, after: int, now_ms: int, own_time: bool
) -> None:
    found = [
        scanned(kernel, base, highest, before=before, after=after, now_ms=now_ms, log_append_time=own_time)
        for kernel in (pure, compiled)
    ]
    assert found[0] == found[1]
