"""Reads of committed transactions alone, by both kernels: they end where the oldest open transaction begins, whatever
way the batches come, and the response has the aborted transactions."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.kernel.fetch.fetch_requests import KERNELS
from tests.kernel.fetch.fetch_world import World, asking, at, plan_of, records_of, resolver, whole

from mainstem.model import Outcome, QueueOffsets, QueueSlice, queue_id_of
from mainstem.protocol import codec
from mainstem.protocol.headers import parse_response_header
from mainstem.protocol.messages.fetch import FetchResponse

QUEUE = queue_id_of(1, 0)
batches = st.lists(st.tuples(st.integers(1, 3), st.integers(70, 200)), min_size=1, max_size=8)


@given(
    added=st.lists(batches, min_size=1, max_size=4),
    unstable=st.integers(0, 40),
    offset=st.integers(0, 40),
    bytes_max=st.integers(1, 2000),
    committed=st.booleans(),
    from_memory=st.booleans(),
    version=st.sampled_from([4, 11, 12]),
    aborted=st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=200),
)
@example(  # a log start in the middle of a batch, where a transaction is open before it
    added=[[(3, 100), (1, 100)]], unstable=3, offset=2, bytes_max=2000, committed=True, from_memory=False, version=12,
    aborted=[],
)  # fmt: skip
def test_reads_end_at_the_last_stable_offset(
    added: list[list[tuple[int, int]]],
    unstable: int,
    offset: int,
    bytes_max: int,
    committed: bool,
    from_memory: bool,
    version: int,
    aborted: list[tuple[int, int]],
) -> None:
    world = World(1 << 20, groups=1)
    world.follow({0})
    for block in added:
        world.add_block([(QUEUE, records, size) for records, size in block])
    end = world.high_watermark(QUEUE)
    offset = min(offset, end)
    world.open_transaction(QUEUE, unstable - 1)
    stable = min(unstable - 1, end) if 0 < unstable <= end else end
    frames, ranges = [], []
    for kernel, table, index in zip(KERNELS, world.tables, world.indexes, strict=True):
        plan = plan_of(kernel, version, asking(version, (1, [at(0, offset)])))
        plan.read_committed = committed
        plan.begin(resolver(kernel), bytes_max)
        found, behind = world.read(QUEUE, offset, bytes_max, True)
        if from_memory:
            plan.read_cached(table, index, world.logs, world.slots)
        else:
            ends = QueueOffsets(0, end, end, 7, stable)
            plan.put(QueueSlice(QUEUE, Outcome.OK, [memoryview(b"".join(found))], ends, None, behind))
        readable = stable if committed else end
        kept = [data for data in found if int.from_bytes(data[:8], "big") < readable] if offset < readable else []
        (row,) = plan.partitions()
        assert row.size == sum(map(len, kept))
        reads = plan.stable_reads()
        ranges.append(reads)
        assert [read[1:3] for read in reads] == [(QUEUE, offset)] * bool(kept)
        for number, _, _, following in reads:
            assert following <= max(offset, readable)
            if committed:
                plan.tell_aborted(number, aborted)
            else:
                with pytest.raises(ValueError, match="wants all"):
                    plan.tell_aborted(number, aborted)
        frame = whole(plan, version, read_committed=committed)
        _, position = parse_response_header(frame[4:], 1, version)
        (topic,) = codec.read(FetchResponse, version, frame[4:], position).responses
        (part,) = topic.partitions
        assert records_of(part) == b"".join(kept)
        assert (part.high_watermark, part.last_stable_offset) == (end, stable)
        told = part.aborted_transactions
        if committed:
            assert told is not None
            assert [(one.producer_id, one.first_offset) for one in told] == (aborted if kept else [])
        else:
            assert told is None
        frames.append(frame)
    assert frames[0] == frames[1]
    assert ranges[0] == ranges[1]
