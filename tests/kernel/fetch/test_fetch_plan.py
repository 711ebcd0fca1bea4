"""Fetch plans of both kernels: rounds against a plain model of the queues, responses against the codec, and sessions
of the two against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernel.fetch.fetch_requests import KERNELS, SMALL, VERSIONS, key_of, versioned_requests
from tests.kernel.fetch.fetch_world import (
    CODES,
    LARGE,
    Log,
    World,
    asking,
    at,
    number_of,
    plan_of,
    records_of,
    resolver,
    whole,
)

from mainstem.kernel import FollowersRead, Verdict
from mainstem.kernel.pure.fetch_response import JOINED_BYTES_MAX, SCATTERED_BYTES_FROM
from mainstem.model import (
    Buffer,
    Outcome,
    QueueOffsets,
    QueueRead,
    QueueSlice,
    Tier,
    WantedReads,
    queue_id_of,
)
from mainstem.ports import joined
from mainstem.protocol import codec
from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.headers import response_frame
from mainstem.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

both = pytest.mark.parametrize("kernel", KERNELS, ids=["pure", "compiled"])

# --- rounds ---------------------------------------------------------------------------------------------

queue_ids = st.builds(queue_id_of, st.integers(0, 3), st.integers(0, 3))
blocks = st.lists(
    st.lists(st.tuples(queue_ids, st.integers(1, 3), st.sampled_from([100, 200, LARGE])), min_size=1, max_size=12),
    max_size=8,
)
asked_topics = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.lists(
            st.builds(
                at, st.integers(-1, 5), st.integers(-1, 12), st.sampled_from([-1, 0, 50, 250, 1 << 20]),
                st.sampled_from([-1, -1, 7, 8]),
            ),
            max_size=5,
        ),
    ),
    max_size=5,
)  # fmt: skip


class Sent(NamedTuple):
    """The nodes, by write group, for all readers, for those of spread topics, and for what memory does not have."""

    nearer: dict[int, int]
    share: dict[int, int]
    for_history: dict[int, int]
    spread: set[int]
    """The topics whose readers are spread."""
    followers_of_spread: bool
    """Whether followers are read for these alone."""


class Expected(NamedTuple):
    verdict: int
    high_watermark: int
    log_start: int
    data: bytes
    nearer: int = -1


def expected_of(
    world: World, row: Any, bytes_left: int, whole_first: bool, sent: Sent, in_memory: Callable[..., bool]
) -> tuple[Expected, bool]:
    """The outcome for one partition, and whether waiting could make it better."""

    def refused(verdict: int) -> tuple[Expected, bool]:
        return Expected(verdict, -1, -1, b""), True

    if number_of(row.key) == 4:
        return refused(Verdict.UNKNOWN_TOPIC)
    if not 0 <= row.partition < 5:
        return refused(Verdict.UNKNOWN_PARTITION)
    queue_id = queue_id_of(number_of(row.key), row.partition)
    if not world.led(queue_id):
        return refused(Verdict.NOT_LEADER)
    followed = world.followed(queue_id)
    spread = number_of(row.key) in sent.spread
    if followed and sent.followers_of_spread and not spread:
        return refused(Verdict.NOT_LEADER)
    if not world.known(queue_id):
        return refused(Verdict.NOT_LEADER if followed else Verdict.UNKNOWN_QUEUE)
    if row.current_leader_epoch not in (-1, world.term(queue_id)):
        older = row.current_leader_epoch < world.term(queue_id)
        return refused(Verdict.FENCED_LEADER_EPOCH if older else Verdict.UNKNOWN_LEADER_EPOCH)
    start, high_watermark = world.log_start.get(queue_id, 0), world.high_watermark(queue_id)
    if followed and row.fetch_offset > high_watermark:
        return Expected(Verdict.OK, high_watermark, start, b""), False
    if not start <= row.fetch_offset <= high_watermark + world.appended_ahead.get(queue_id, 0):
        return refused(Verdict.OFFSET_OUT_OF_RANGE)
    group = world.group(queue_id)
    nearer = -1 if followed else sent.nearer.get(group, sent.share.get(group, -1) if spread else -1)
    budget = min(row.bytes_max, bytes_left)
    if nearer < 0 and not followed and row.fetch_offset < high_watermark and (budget > 0 or whole_first):
        known = in_memory(queue_id, row.fetch_offset, budget, whole_first)
        nearer = -1 if known else sent.for_history.get(group, -1)
    if nearer >= 0:
        return Expected(Verdict.OK, high_watermark, start, b"", nearer), True
    found: list[bytes] = []
    next_offset = row.fetch_offset
    if row.fetch_offset < high_watermark and (budget > 0 or whole_first):
        found, next_offset = world.read(queue_id, row.fetch_offset, budget, whole_first)
    return Expected(Verdict.OK, high_watermark, start, b"".join(found)), next_offset < high_watermark


@given(
    added=blocks,
    cache_bytes=st.sampled_from([0, 1000, 30_000, 1 << 20]),
    starts=st.lists(st.tuples(queue_ids, st.integers(0, 9)), max_size=3),
    ahead=st.lists(st.tuples(queue_ids, st.integers(1, 3)), max_size=3),
    topics=asked_topics,
    bytes_max=st.sampled_from([0, 150, 400, LARGE + 300, 1 << 30]),
    followed=st.sets(st.integers(0, 2)),
    sent=st.builds(
        Sent,
        nearer=st.sampled_from([{}, {}, {0: 0}, {0: 5, 1: 6, 2: 7}]),
        share=st.sampled_from([{}, {0: 8, 2: 9}]),
        for_history=st.sampled_from([{}, {1: 3}, {0: 2, 1: 3, 2: 4}]),
        spread=st.sets(st.integers(0, 4)),
        followers_of_spread=st.booleans(),
    ),
)
def test_a_round_reads_what_the_queues_hold(
    added: list[list[tuple[int, int, int]]],
    cache_bytes: int,
    starts: list[tuple[int, int]],
    ahead: list[tuple[int, int]],
    topics: list[tuple[int, list[FetchPartition]]],
    bytes_max: int,
    followed: set[int],
    sent: Sent,
) -> None:
    world = World(cache_bytes)
    world.follow(followed)
    for rows in added:
        world.add_block(rows)
    for queue_id, offset in starts:
        world.move_log_start(queue_id, offset)
    for queue_id, records in ahead:
        world.append_ahead(queue_id, records)
    frames = []
    for kernel, table, index in zip(KERNELS, world.tables, world.indexes, strict=True):
        plan = plan_of(kernel, 12, asking(12, *topics))
        if sent.nearer:
            plan.nearer = sent.nearer
        plan.share, plan.for_history = sent.share or None, sent.for_history or None
        plan.from_followers = FollowersRead.SPREAD if sent.followers_of_spread else FollowersRead.ALL
        plan.begin(resolver(kernel, sent.spread), bytes_max)
        asked = {number_of(row.key) for row in plan.partitions()}
        assert plan.has_spread == bool(asked & sent.spread - {4})

        def in_memory(
            queue_id: int, offset: int, budget: int, whole_first: bool, table: Any = table, index: Any = index
        ) -> bool:
            return index.read(table.find(queue_id), offset, budget, whole_first) is not None

        expected: list[Expected] = []
        left, final, served = bytes_max, not len(plan), 0
        for row in plan.partitions():
            outcome, ends = expected_of(world, row, left, left == bytes_max, sent, in_memory)
            expected.append(outcome)
            left -= len(outcome.data)
            final = final or ends
        served += read_all(world, table, index, plan)
        assert plan.settled
        assert plan.bytes == bytes_max - left
        assert bool(plan.final) == final
        assert [(row.verdict, row.high_watermark, row.log_start, row.size) for row in plan.partitions()] == [
            (found.verdict, found.high_watermark, found.log_start, len(found.data)) for found in expected
        ]
        assert served <= sum(bool(found.data) for found in expected)
        assert plan.errors(CODES) == Counter(CODES[found.verdict] for found in expected if found.verdict)
        assert plan.ends() == {row.queue_id: row.high_watermark for row in plan.partitions() if row.high_watermark >= 0}
        _, position = frames_head(12)
        frame = whole(plan)
        response = codec.read(FetchResponse, 12, frame, position)
        answered = [part for topic in response.responses for part in topic.partitions]
        assert [records_of(part) for part in answered] == [found.data for found in expected]
        assert [part.preferred_read_replica for part in answered] == [found.nearer for found in expected]
        frames.append(frame)
    assert frames[0] == frames[1]


@both
def test_a_reader_beyond_what_a_follower_has_waits_and_is_then_refused(kernel: ModuleType) -> None:
    world = World(1 << 20, groups=1)
    world.follow({0})
    world.add_block([(queue_id_of(1, 0), 2, 100)])
    table, index = world.tables[KERNELS.index(kernel)], world.indexes[KERNELS.index(kernel)]
    plan = plan_of(kernel, 12, asking(12, (1, [at(0, 3), at(1, 0)])))
    plan.remember()
    for _ in range(2):
        plan.begin(resolver(kernel), 1000)
        plan.read_cached(table, index, world.logs, world.slots)
        assert plan.settled
        assert not plan.final, "more may come"
        assert plan.ends() == {queue_id_of(1, 0): 2, queue_id_of(1, 1): 0}
        plan.give_up_ahead()
        assert [row.verdict for row in plan.partitions()] == [Verdict.OFFSET_NOT_AVAILABLE, Verdict.OK]
        assert plan.errors(CODES) == {CODES[Verdict.OFFSET_NOT_AVAILABLE]: 1}
    world.add_block([(queue_id_of(1, 0), 2, 100)])
    plan.begin(resolver(kernel), 1000)
    plan.read_cached(table, index, world.logs, world.slots)
    plan.give_up_ahead()
    assert [(row.verdict, row.size) for row in plan.partitions()] == [(Verdict.OK, 100), (Verdict.OK, 0)]


@both
def test_a_session_repeats_the_node_that_is_nearer(kernel: ModuleType) -> None:
    world = World(1 << 20, groups=2)
    world.logs = [Log(7), Log(7)]
    table, index = world.tables[KERNELS.index(kernel)], world.indexes[KERNELS.index(kernel)]
    group = world.group(queue_id_of(1, 1))
    other = next(number for number in range(4) if world.group(queue_id_of(1, number)) != group)
    plan = plan_of(kernel, 12, asking(12, (1, [at(other), at(1)])))
    plan.remember()
    for nearer in ({group: 4}, {group: 4}, None):
        plan.nearer = nearer
        plan.begin(resolver(kernel), 1000)
        plan.read_cached(table, index, world.logs, world.slots)
        frame = whole(plan, incremental=True)
        response = codec.read(FetchResponse, 12, frame, frames_head(12)[1])
        answered = [part for topic in response.responses for part in topic.partitions]
        told = {part.partition_index: part.preferred_read_replica for part in answered}
        assert told.get(1, -1) == (-1 if nearer is None else 4)
        assert told.get(other, -1) == -1


@both
def test_readers_of_a_spread_topic_are_sent_on_with_the_offsets_alone(kernel: ModuleType) -> None:
    plan = plan_of(kernel, 12, asking(12, (1, [at(0, 3, leader_epoch=7)]), (2, [at(0, 3)]), (2, [at(1, 3)])))
    assert (plan.share_to, plan.has_spread) == (-1, False)
    plan.begin(resolver(kernel, {2}), 1000)
    assert plan.has_spread
    offsets = QueueOffsets(1, 9, 9, 7, 8)
    told = []
    for sent_to in (-1, 5, 6):
        told.append(plan.is_spread)
        read = plan.pending()
        outcome = Outcome.NOT_LEADER if sent_to == 6 else Outcome.OK
        plan.put(QueueSlice(read.queue_id, outcome, [b"x" * 70], offsets, Tier.JOURNAL, 4), sent_to)
    assert told == [False, True, True]
    assert not plan.is_spread, "nothing is pending"
    assert plan.final
    assert plan.bytes == 70
    response = codec.read(FetchResponse, 12, whole(plan), frames_head(12)[1])
    parts = [part for topic in response.responses for part in topic.partitions]
    assert [it.preferred_read_replica for it in parts] == [-1, 5, -1]
    assert [it.high_watermark for it in parts] == [9, 9, -1]
    assert [len(records_of(it)) for it in parts] == [70, 0, 0]


def read_all(world: World, table: Any, index: Any, plan: Any) -> int:
    """Settle everything of a round; how many partitions the write cache served."""
    served: int = 0
    while True:
        served += plan.read_cached(table, index, world.logs, world.slots)
        read = plan.pending()
        if read is None:
            return served
        # the write cache does not have it: a store would go to its disks
        assert index.read(table.find(read.queue_id), read.offset, read.bytes_max, plan.whole_first) is None
        found, next_offset = world.read(read.queue_id, read.offset, read.bytes_max, plan.whole_first)
        end = world.high_watermark(read.queue_id)
        offsets = QueueOffsets(world.log_start.get(read.queue_id, 0), end, end, world.term(read.queue_id), end)
        plan.put(QueueSlice(read.queue_id, Outcome.OK, list(found), offsets, Tier.JOURNAL, next_offset))


@given(
    added=blocks,
    cache_bytes=st.sampled_from([0, 1000, 1 << 20]),
    topics=asked_topics,
    bytes_max=st.sampled_from([0, 150, 400, LARGE + 300, 1 << 30]),
    part=st.integers(1, 8),
    version=st.sampled_from(VERSIONS),
)
def test_parts_of_a_request_are_answered_as_the_whole_is(
    added: list[list[tuple[int, int, int]]],
    cache_bytes: int,
    topics: list[tuple[int, list[FetchPartition]]],
    bytes_max: int,
    part: int,
    version: int,
) -> None:
    """A plan after the other, each with what those before left of the bytes."""
    world = World(cache_bytes)
    for rows in added:
        world.add_block(rows)
    body = memoryview(codec.write(asking(version, *topics), version))
    sections = []
    for kernel, table, index in zip(KERNELS, world.tables, world.indexes, strict=True):
        plan = kernel.scan_fetch(body, 0, version).plan
        plan.begin(resolver(kernel), bytes_max)
        read_all(world, table, index, plan)
        found, final, errors = plan.bytes, bool(plan.final) and len(plan) > 0, plan.errors(CODES)
        frame = whole(plan, version)
        expected = flat(codec.read(FetchResponse, version, frame, frames_head(version)[1]))

        count = found_before = 0
        buffers: list[Buffer] = []
        ends, told = False, Counter[int]()
        scan = kernel.scan_fetch(body, 0, version, part)
        while True:
            scan.plan.begin(resolver(kernel), bytes_max, found_before)
            read_all(world, table, index, scan.plan)
            found_before = scan.plan.bytes
            ends = ends or (bool(scan.plan.final) and len(scan.plan) > 0)
            told.update(scan.plan.errors(CODES))
            more, made = scan.plan.section(version, CODES)
            with pytest.raises(ValueError, match="gone"):
                scan.plan.section(version, CODES)
            count, buffers = count + more, buffers + made
            if scan.rest is None:
                break
            scan = kernel.scan_more(body, scan.rest.position, version, scan, part)
        array: Any = EncodedArray(count, buffers)
        response = FetchResponse(error_code=0, session_id=0, responses=array)
        sections.append(codec.write(response, version))
        assert flat(codec.read(FetchResponse, version, sections[-1])) == expected
        assert (found_before, ends, told) == (found, final, Counter(errors))
    assert sections[0] == sections[1]


def flat(response: FetchResponse) -> list[tuple[object, ...]]:
    """All partitions of a response in their order, whether or not those of a topic stand together."""
    return [
        (topic.topic, topic.topic_id, part.partition_index, part.error_code, part.high_watermark,
         part.log_start_offset, records_of(part))
        for topic in response.responses
        for part in topic.partitions
    ]  # fmt: skip


@given(
    added=blocks,
    cache_bytes=st.sampled_from([0, 1000, 1 << 20]),
    topics=asked_topics,
    bytes_max=st.sampled_from([0, 150, 400, LARGE + 300, 1 << 30]),
    bytes_at_once=st.sampled_from([0, 150, LARGE + 300, 1 << 30]),
    reads_max=st.integers(1, 6),
)
def test_what_is_wanted_crosses_a_wire_and_is_what_is_read_one_by_one(
    added: list[list[tuple[int, int, int]]],
    cache_bytes: int,
    topics: list[tuple[int, list[FetchPartition]]],
    bytes_max: int,
    bytes_at_once: int,
    reads_max: int,
) -> None:
    world = World(cache_bytes)
    for rows in added:
        world.add_block(rows)
    frames = []
    for kernel, table, index in zip(KERNELS, world.tables, world.indexes, strict=True):
        alone, together = (plan_of(kernel, 12, asking(12, *topics)) for _ in range(2))
        for plan in (alone, together):
            plan.begin(resolver(kernel), bytes_max)
            plan.read_cached(table, index, world.logs, world.slots)
        while (read := alone.pending()) is not None:
            room = max(0, min(read.bytes_max, bytes_at_once - alone.bytes))
            alone.put(answer_of(world, read, room, alone.whole_first))
        while (wanted := together.wanted(reads_max, bytes_at_once)).reads:
            assert len(wanted.reads) <= reads_max
            arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(wanted), type=WantedReads)
            assert arrived == wanted
            left, whole_first = arrived.bytes_max, arrived.whole_first
            for read in arrived.reads:
                found = answer_of(world, read, min(left, read.bytes_max), whole_first)
                left -= sum(map(len, found.batches))
                whole_first = whole_first and not found.batches
                together.put(found)
        assert together.partitions() == alone.partitions()
        assert (together.bytes, together.final) == (alone.bytes, alone.final)
        frames += [whole(alone), whole(together)]
    assert frames.count(frames[0]) == 4


@both
def test_what_is_wanted_has_room_for_what_the_round_and_the_reader_have_left(kernel: ModuleType) -> None:
    world = World(0, groups=1)
    world.logs = [Log(7)]
    for partition in range(3):
        world.add_block([(queue_id_of(1, partition), 1, 200)])
    plan = plan_of(kernel, 12, asking(12, (1, [at(0), at(1, 0, 150), at(2)])))
    plan.begin(resolver(kernel), 300)
    assert plan.wanted(0, 1 << 20) == WantedReads((), 300, True)
    wanted = plan.wanted(2, 1 << 20)
    assert wanted == WantedReads(
        (QueueRead(queue_id_of(1, 0), 0, 300), QueueRead(queue_id_of(1, 1), 0, 150)), 300, True
    )
    plan.put(answer_of(world, wanted.reads[0], 300, True))
    assert plan.wanted(9, 1 << 20) == WantedReads(
        (QueueRead(queue_id_of(1, 1), 0, 100), QueueRead(queue_id_of(1, 2), 0, 100)), 100, False
    )
    assert plan.wanted(1, 240) == WantedReads((QueueRead(queue_id_of(1, 1), 0, 40),), 40, False)
    assert plan.wanted(1, 100).bytes_max == 0


def answer_of(world: World, read: QueueRead, bytes_max: int, whole_first: bool) -> QueueSlice:
    """The answer of a store, whose memory has nothing."""
    queue_id = read.queue_id
    if not world.led(queue_id):
        return QueueSlice(queue_id, Outcome.NOT_LEADER, [], QueueOffsets(-1, -1, -1, -1, -1))
    if not world.known(queue_id):
        return QueueSlice(queue_id, Outcome.UNKNOWN_QUEUE, [], QueueOffsets(-1, -1, -1, -1, -1))
    start, end = world.log_start.get(queue_id, 0), world.high_watermark(queue_id)
    offsets = QueueOffsets(start, end, end, world.term(queue_id), end)
    if not start <= read.offset <= end:
        return QueueSlice(queue_id, Outcome.OFFSET_OUT_OF_RANGE, [], offsets)
    found: list[bytes] = []
    next_offset = read.offset
    if read.offset < end and (bytes_max > 0 or whole_first):
        found, next_offset = world.read(queue_id, read.offset, bytes_max, whole_first)
    return QueueSlice(queue_id, Outcome.OK, list(found), offsets, Tier.JOURNAL if found else None, next_offset)


@both
def test_a_part_is_answered_while_its_batches_are_held(kernel: ModuleType) -> None:
    plan = plan_of(kernel, 12, asking(12, (1, [at(0)])))
    plan.begin(resolver(kernel), 1)
    plan.release()
    with pytest.raises(ValueError, match="gone"):
        plan.section(12, CODES)


def frames_head(version: int) -> tuple[int, int]:
    """Bytes of the length, and where the body of a response frame starts."""
    return 4, 9 if version >= 12 else 8


@both
def test_the_first_batch_comes_whole_and_only_the_first(kernel: ModuleType) -> None:
    world = World(1 << 20, groups=1)
    world.logs = [Log(7)]
    for partition in range(3):
        world.add_block([(queue_id_of(1, partition), 1, LARGE)])
    plan = plan_of(kernel, 12, asking(12, (1, [at(0, 1), at(1, 0, 10), at(2, 0)])))
    plan.begin(resolver(kernel), 100)
    where = KERNELS.index(kernel)
    assert plan.read_cached(world.tables[where], world.indexes[where], world.logs, world.slots) == 1
    assert [row.size for row in plan.partitions()] == [0, LARGE, 0]
    assert plan.final


@both
def test_a_round_that_is_widened_keeps_what_is_settled(kernel: ModuleType) -> None:
    world = World(1 << 20, groups=1)
    world.logs = [Log(7)]
    for partition in range(3):
        world.add_block([(queue_id_of(1, partition), 1, 200), (queue_id_of(1, partition), 1, 200)])
    plan = plan_of(kernel, 12, asking(12, (1, [at(0), at(1), at(2)])))
    plan.begin(resolver(kernel), 300)
    read = plan.pending()
    assert read is not None
    assert read.bytes_max == 300
    found, next_offset = world.read(read.queue_id, 0, 300, True)
    plan.put(QueueSlice(read.queue_id, Outcome.OK, list(found), QueueOffsets(0, 2, 2, 7, 2), Tier.JOURNAL, next_offset))
    plan.widen(1 << 20)
    where = KERNELS.index(kernel)
    assert plan.read_cached(world.tables[where], world.indexes[where], world.logs, world.slots) == 2
    assert [row.size for row in plan.partitions()] == [200, 400, 400]


@both
def test_large_stretches_are_the_payload_itself(kernel: ModuleType) -> None:
    """Batches of a queue that lie side by side leave in one piece; small ones are copied with what is around them."""
    world = World(1 << 20, groups=1)
    world.logs = [Log(7)]
    large, small = queue_id_of(1, 0), queue_id_of(1, 1)
    world.add_block([(large, 1, 6000), (large, 1, 6000), (small, 1, 200), (small, 1, 200)])
    where = KERNELS.index(kernel)
    plan = plan_of(kernel, 12, asking(12, (1, [at(0), at(1)])))
    plan.begin(resolver(kernel), 1 << 20)
    plan.read_cached(world.tables[where], world.indexes[where], world.logs, world.slots)
    buffers = plan.response(12, 5, CODES)
    assert [len(buffer) >= 8192 for buffer in buffers] == [False, True, False]
    (block,) = world.indexes[where].blocks()
    assert buffers[1].obj is block.payload.obj
    assert bytes(buffers[1]) == bytes(block.payload[:12_000])


@both
def test_many_large_stretches_are_one_part_of_the_response_and_still_the_payload_itself(kernel: ModuleType) -> None:
    world = World(1 << 20, groups=1)
    world.logs = [Log(7)]
    queues = [queue_id_of(1, partition) for partition in range(4)]
    for _ in range(5):
        world.add_block([(queue_id, 1, LARGE) for queue_id in queues])
    where = KERNELS.index(kernel)
    plan = plan_of(kernel, 12, asking(12, (1, [at(partition) for partition in range(4)])))
    plan.begin(resolver(kernel), 1 << 20)
    plan.read_cached(world.tables[where], world.indexes[where], world.logs, world.slots)
    (scattered,) = plan.response(12, 5, CODES)
    assert isinstance(scattered, kernel.ScatteredBytes)
    size = len(scattered)
    views = scattered.take(size)
    payloads = [block.payload.obj for block in world.indexes[where].blocks()]
    uncopied = [view.obj for view in views if len(view) == LARGE]
    assert [payloads.index(owner) for owner in uncopied] == [0, 1, 2, 3, 4] * 4
    response = codec.read(FetchResponse, 12, memoryview(b"".join(views)), 9)
    assert size == 4 + int.from_bytes(views[0][:4], "big")
    found = [records_of(part) for part in response.responses[0].partitions]
    assert found == [b"".join(world.read(queue_id, 0, 1 << 20, True)[0]) for queue_id in queues]


@both
@pytest.mark.parametrize(("size", "is_scattered"), [(SCATTERED_BYTES_FROM - 1, False), (SCATTERED_BYTES_FROM, True)])
def test_a_few_stretches_of_many_bytes_are_one_part_of_the_response_too(
    kernel: ModuleType, size: int, is_scattered: bool
) -> None:
    world = World(1 << 20, groups=1)
    world.logs = [Log(7)]
    queue_id = queue_id_of(1, 0)
    world.add_block([(queue_id, 1, size)])
    where = KERNELS.index(kernel)
    plan = plan_of(kernel, 12, asking(12, (1, [at(0)])))
    plan.begin(resolver(kernel), 1 << 20)
    plan.read_cached(world.tables[where], world.indexes[where], world.logs, world.slots)
    buffers = plan.response(12, 5, CODES)
    assert [isinstance(part, kernel.ScatteredBytes) for part in buffers] == ([True] if is_scattered else [False] * 3)
    response = codec.read(FetchResponse, 12, memoryview(joined(buffers)), 9)
    assert records_of(response.responses[0].partitions[0]) == b"".join(world.read(queue_id, 0, 1 << 20, True)[0])


@both
@pytest.mark.parametrize("blocks_added", [JOINED_BYTES_MAX // 8000, JOINED_BYTES_MAX // 8000 + 1])
def test_small_stretches_are_copied_in_small_responses_alone(kernel: ModuleType, blocks_added: int) -> None:
    """A copy of a large one would be read again from memory, and partly be new memory."""
    world = World(1 << 20, groups=1)
    world.logs = [Log(7)]
    queues = [queue_id_of(1, partition) for partition in range(4)]
    for _ in range(blocks_added):
        world.add_block([(queue_id, 1, 1800) for queue_id in queues] + [(queues[0], 1, 800)])
    where = KERNELS.index(kernel)
    plan = plan_of(kernel, 12, asking(12, (1, [at(partition) for partition in range(4)])))
    plan.begin(resolver(kernel), 1 << 20)
    plan.read_cached(world.tables[where], world.indexes[where], world.logs, world.slots)
    (frame,) = plan.response(12, 5, CODES)
    if blocks_added * 8000 <= JOINED_BYTES_MAX:
        assert isinstance(frame, bytes)
        views = [memoryview(frame)]
    else:
        views = frame.take(len(frame))
        payloads = {id(block.payload.obj) for block in world.indexes[where].blocks()}
        assert sum(id(view.obj) in payloads for view in views) == 5 * blocks_added
    response = codec.read(FetchResponse, 12, memoryview(b"".join(views)), 9)
    found = [records_of(part) for part in response.responses[0].partitions]
    assert found == [b"".join(world.read(queue_id, 0, 1 << 20, True)[0]) for queue_id in queues]


@both
def test_batches_outlive_the_cache_until_they_are_answered(kernel: ModuleType) -> None:
    world = World(20_000, groups=1)
    world.logs = [Log(7)]
    queue_id = queue_id_of(1, 0)
    world.add_block([(queue_id, 1, 300), (queue_id, 1, LARGE)])
    where = KERNELS.index(kernel)
    plan = plan_of(kernel, 12, asking(12, (1, [at(0)])))
    plan.begin(resolver(kernel), 1 << 20)
    plan.read_cached(world.tables[where], world.indexes[where], world.logs, world.slots)
    for _ in range(4):
        world.add_block([(queue_id_of(2, 0), 1, LARGE)])  # pushes the first block out of the cache
    assert next(iter(world.indexes[where].blocks())).payload is None
    frame = whole(plan)
    assert b"".join(data for _, _, data in world.batches[queue_id]) in frame
    with pytest.raises(ValueError, match="are gone"):
        whole(plan)


@both
def test_what_was_released_cannot_be_answered_until_another_round(kernel: ModuleType) -> None:
    plan = plan_of(kernel, 12, asking(12, (4, [at(0)])))
    with pytest.raises(ValueError, match="are gone"):
        whole(plan)  # no round has begun
    plan.begin(resolver(kernel), 100)
    plan.release()
    with pytest.raises(ValueError, match="are gone"):
        whole(plan)
    plan.begin(resolver(kernel), 100)
    assert plan.round == 2
    assert whole(plan)


@both
def test_a_failing_resolver_leaves_a_plan_that_can_be_begun_again(kernel: ModuleType) -> None:
    plan = plan_of(kernel, 12, asking(12, (1, [at(0)]), (2, [at(0)])))

    def failing(key: str | bytes) -> Any:
        raise LookupError(key)

    with pytest.raises(LookupError):
        plan.begin(failing, 100)
    plan.begin(resolver(kernel), 100)
    assert plan.pending() == (queue_id_of(1, 0), 0, 100)


@both
def test_reads_that_know_another_leader_epoch_are_refused_however_they_were_read(kernel: ModuleType) -> None:
    plan = plan_of(
        kernel, 12, asking(12, (1, [at(0, 0, 100, 2), at(1, 0, 100, 4), at(2, 0, 100, 3), at(3, 0, 100, 9)]))
    )
    plan.begin(resolver(kernel), 1000)
    offsets = QueueOffsets(0, 5, 5, 3, 5)
    for _ in range(3):
        plan.put(QueueSlice(1, Outcome.OFFSET_OUT_OF_RANGE, [], offsets))
    plan.put(QueueSlice(1, Outcome.UNKNOWN_QUEUE, [], QueueOffsets(-1, -1, -1, -1, -1)))
    assert [row.verdict for row in plan.partitions()] == [
        Verdict.FENCED_LEADER_EPOCH,
        Verdict.UNKNOWN_LEADER_EPOCH,
        Verdict.OFFSET_OUT_OF_RANGE,
        Verdict.UNKNOWN_QUEUE,
    ]


# --- responses ------------------------------------------------------------------------------------------

slices = st.tuples(
    st.sampled_from([Outcome.OK, Outcome.OK, Outcome.OK, Outcome.UNKNOWN_QUEUE, Outcome.STORAGE_FAILED]),
    st.lists(st.sampled_from([0, 1, 100, 8191, 8192, LARGE]), max_size=3),
    st.integers(0, 9),
    st.booleans(),
)


def slice_of(found: tuple[Outcome, list[int], int, bool]) -> QueueSlice:
    outcome, sizes, number, as_views = found
    batches: list[Buffer] = [bytes([number]) * size for size in sizes]
    if as_views:
        batches = [memoryview(b"<" + bytes(data))[1:] for data in batches]
    return QueueSlice(
        1, outcome, batches, QueueOffsets(number, 10 + number, 20, 7, 10 + number), Tier.JOURNAL, 10 + number
    )


@given(
    made=versioned_requests,
    found=st.lists(slices, min_size=1, max_size=5),
    diverging=st.sets(st.integers(0, 3)),
    read_committed=st.booleans(),
    numbers=st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
)
def test_responses_are_what_the_codec_writes(
    made: tuple[int, FetchRequest],
    found: list[tuple[Outcome, list[int], int, bool]],
    diverging: set[int],
    read_committed: bool,
    numbers: tuple[int, int],
) -> None:
    version, request = made
    correlation_id, session_id = numbers[0], numbers[1] if version >= 7 else 0
    for kernel in KERNELS:
        plan = plan_of(kernel, version, request)
        plan.begin(resolver(kernel), 1 << 20)
        for place, check in enumerate(plan.epoch_checks()):
            if place in diverging and version >= 12:
                if place % 3 == 2:
                    plan.fail(check.row)
                else:
                    plan.diverge(check.row, place, 1000 + place)
        records = {}
        for place, row in enumerate(plan.partitions()):
            if row.settled:
                continue
            answer = slice_of(found[place % len(found)])
            plan.put(answer)
            records[place] = tuple(answer.batches)
        rows = plan.partitions()
        responses = []
        place = 0
        for topic in request.topics:
            parts = []
            for _ in topic.partitions:
                parts.append(part_of(rows[place], records.get(place, ()), read_committed))
                place += 1
            if parts:
                responses.append(
                    FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=tuple(parts))
                )
        throttle_ms = session_id // 2
        expected = FetchResponse(throttle_time_ms=throttle_ms, session_id=session_id, responses=tuple(responses))
        frame = response_frame(correlation_id, 1, version, codec.write_parts(expected, version))
        buffers = plan.response(
            version,
            correlation_id,
            CODES,
            session_id=session_id,
            read_committed=read_committed,
            throttle_ms=throttle_ms,
        )
        assert joined(buffers) == b"".join(frame)


def part_of(row: Any, records: tuple[Buffer, ...], read_committed: bool) -> PartitionData:
    error = 0 if row.verdict == Verdict.OK else CODES[row.verdict]
    if error or row.diverging is not None:
        epoch = EpochEndOffset() if row.diverging is None else EpochEndOffset(
            epoch=row.diverging[0], end_offset=row.diverging[1]
        )  # fmt: skip
        return PartitionData(
            partition_index=row.partition, error_code=error, high_watermark=-1, diverging_epoch=epoch, records=b""
        )
    return PartitionData(
        partition_index=row.partition,
        error_code=0,
        high_watermark=row.high_watermark,
        last_stable_offset=row.high_watermark,
        log_start_offset=row.log_start,
        aborted_transactions=() if read_committed else None,
        records=records or b"",
    )


# --- sessions -------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One request of a session: what it asks for and forgets, and what the queues hold then."""

    topics: list[tuple[int, list[FetchPartition]]]
    many: int
    """Partitions of topic 3 asked for besides."""
    forgotten: list[tuple[int, list[int]]]
    forget_many: bool
    found: list[tuple[Outcome, list[int], int, bool]]
    cut_after: int
    """Partitions read before the bytes are used up."""


steps = st.lists(
    st.builds(
        Step,
        asked_topics,
        st.sampled_from([0, 0, 0, 150]),
        st.lists(st.tuples(st.integers(0, 4), st.lists(SMALL, max_size=4)), max_size=3),
        st.booleans(),
        st.lists(slices, min_size=1, max_size=4),
        st.integers(0, 12),
    ),
    min_size=1,
    max_size=8,
)


@given(version=st.sampled_from([7, 11, 12, 13, 17]), all_steps=steps)
def test_sessions_of_both_kernels_tell_the_same(version: int, all_steps: list[Step]) -> None:
    plans: list[Any] = [None, None]
    for number, step in enumerate(all_steps):
        told = []
        many = [at(10 + n) for n in range(step.many)]
        request = asking(version, *step.topics, (3, many))
        gone = [(topic, partitions) for topic, partitions in step.forgotten]
        if step.forget_many:
            gone.append((3, list(range(10, 160))))
        forgotten = [(name_of(version, topic), partitions) for topic, partitions in gone]
        for where, kernel in enumerate(KERNELS):
            asked = plan_of(kernel, version, request)
            added = -1
            if number == 0:
                asked.remember()
                plans[where] = asked
            else:
                added = plans[where].additions(asked)
                plans[where].update(asked, forgotten)
            plan = plans[where]
            plan.begin(resolver(kernel), 1 << 20)
            place = 0
            while plan.pending() is not None:
                found = step.found[place % len(step.found)]
                plan.put(slice_of(found if place < step.cut_after else (found[0], [], found[2], False)))
                place += 1
            before = plan.partitions()
            frame = whole(plan, version, session_id=9, incremental=number > 0)
            told.append((added, len(plan), before, frame, plan.partitions(), plan.wanted_bytes, plan.asks_epochs))
        assert told[0] == told[1]


def name_of(version: int, number: int) -> str | bytes:
    key = key_of(version, number)
    return UUID(int=key["topic_id"].int).bytes if version >= 13 else str(key["topic"])


@both
def test_a_session_counts_each_partition_once_and_the_newest_wish(kernel: ModuleType) -> None:
    plan = plan_of(kernel, 12, asking(12, (1, [at(0, 5), at(1), at(0, 6)]), (2, [at(0)]), (1, [at(2), at(1, 9, 7)])))
    plan.remember()
    rows = [(number_of(row.key), row.partition, row.fetch_offset) for row in plan.partitions()]
    assert rows == [(1, 0, 6), (1, 1, 9), (2, 0, 0), (1, 2, 0)]
    assert plan.wanted_bytes == 3 * (1 << 20) + 7
    again = plan_of(kernel, 12, asking(12, (1, [at(0), at(3)]), (3, [at(0), at(0)])))
    assert plan.additions(again) == 3
    plan.update(again, [(name_of(12, 2), [0]), (name_of(12, 1), [77]), ("never heard of", [0])])
    assert [(number_of(row.key), row.partition) for row in plan.partitions()] == [
        (1, 0), (1, 1), (1, 2), (1, 3), (3, 0),
    ]  # fmt: skip


@both
def test_an_incremental_answer_names_only_news_and_serves_in_turn(kernel: ModuleType) -> None:
    plan = plan_of(kernel, 12, asking(12, (1, [at(0), at(1), at(2)])))
    plan.remember()

    def told(*sizes: int, high_watermark: int = 10, incremental: bool = True) -> list[int]:
        plan.begin(resolver(kernel), 1 << 20)
        for size in sizes:
            batches: list[Buffer] = [b"v" * size] if size else []
            plan.put(
                QueueSlice(1, Outcome.OK, batches, QueueOffsets(0, high_watermark, 10, 7, high_watermark), None, 10)
            )
        frame = whole(plan, incremental=incremental)
        response = codec.read(FetchResponse, 12, frame, frames_head(12)[1])
        return [part.partition_index for topic in response.responses for part in topic.partitions]

    assert told(0, 0, 0, incremental=False) == [0, 1, 2]
    assert told(0, 0, 0) == []
    assert told(5, 0, 0) == [0]
    assert [row.partition for row in plan.partitions()] == [1, 2, 0]
    assert told(0, 0, 0, high_watermark=11) == [1, 2, 0]
    plan.update(plan_of(kernel, 12, asking(12)), [(name_of(12, 1), [2])])
    assert told(0, 7, high_watermark=11) == [0]


@both
@pytest.mark.parametrize("version", VERSIONS)
def test_an_empty_request_is_answered_at_once(kernel: ModuleType, version: int) -> None:
    plan = plan_of(kernel, version, asking(version))
    plan.begin(resolver(kernel), 100)
    assert (len(plan), plan.settled, bool(plan.final), plan.pending()) == (0, True, True, None)
    _, position = frames_head(version)
    assert codec.read(FetchResponse, version, whole(plan, version), position).responses == ()


@both
def test_calls_that_make_no_sense_are_refused(kernel: ModuleType) -> None:
    """Not only where assertions are on: what they would read is not there."""
    plan = plan_of(kernel, 12, asking(12, (1, [at(0)])))
    with pytest.raises(ValueError, match="nothing is pending"):
        plan_of(kernel, 12, asking(12)).put(slice_of((Outcome.OK, [], 0, False)))
    with pytest.raises(ValueError, match="no session"):
        plan.additions(plan_of(kernel, 12, asking(12)))
    with pytest.raises(ValueError, match="no session"):
        plan.update(plan_of(kernel, 12, asking(12)), [])
    plan.begin(resolver(kernel), 100)
    world = World(0)
    with pytest.raises(ValueError, match="groups of 2 bytes"):
        plan.read_cached(world.tables[KERNELS.index(kernel)], world.indexes[KERNELS.index(kernel)], [], b"\0\0")
    plan.remember()
    with pytest.raises(ValueError, match="already"):
        plan.remember()
    with pytest.raises(ValueError, match="no session"):
        plan.update(plan, [])


@both
def test_a_session_that_is_changed_ends_the_round_that_somebody_is_in(kernel: ModuleType) -> None:
    plan, more = kernel.FetchPlan(), kernel.FetchPlan()
    for each, index in ((plan, 0), (more, 1)):
        each.add_topic("t")
        each.add_partition(index, 0, 100, -1, 5)
    plan.remember()
    plan.begin(lambda key: kernel.PlannedTopic(1, 2), 100)
    begun = plan.round
    plan.update(more, [])
    assert plan.round > begun


@both
def test_epochs_are_told_some_at_a_time(kernel: ModuleType) -> None:
    plan = kernel.FetchPlan()
    plan.add_topic("t")
    for index in range(10):
        plan.add_partition(index, 0, 100, -1, -1 if index == 4 else 5)
    plan.begin(lambda key: kernel.PlannedTopic(1, 10), 100)
    every = plan.epoch_checks()
    assert [check.row for check in every] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    some = plan.epoch_checks(most=4)
    assert some == every[:4]
    assert plan.epoch_checks(some[-1].row, 3) == every[4:7]
    assert plan.epoch_checks(9, 3) == []
    with pytest.raises(IndexError):
        plan.epoch_checks(10, 1)
