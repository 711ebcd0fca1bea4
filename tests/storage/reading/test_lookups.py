"""Looking things up over all tiers: by timestamp, by leader epoch, by offset; and what a queue weighs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy
import pytest
from tests.harness.crafted_batches import KEYLESS_RECORD, crafted_batch, to_append
from tests.storage.queues.test_transactions import confirmed, part_of_transaction, produce
from tests.storage.queues.test_transactions import end as end_transaction
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated, topic

from mainstem.kernel import LOG_START, QueueTable
from mainstem.model import SLOTS, Outcome, QueueUsage, Tier, queue_id_of, slot_of, topic_number_of
from mainstem.protocol.records import Compression
from mainstem.storage.errors import CorruptJournal, SegmentGone
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.journal.journal import SegmentInfo
from mainstem.storage.placement import Placement
from mainstem.storage.queue_liveness import GONE, QueueLiveness
from mainstem.storage.read_cache.read_cache import ReadCache
from mainstem.storage.reading.offset_lookup import MAX_TIMESTAMP
from mainstem.storage.reading.sealed_segments import (
    GAP_BYTES,
    SPAN_BYTES_MAX,
    BatchPlace,
    SealedSegments,
    spans,
)

OTHER = QUEUE + 1


def sealed_by_age(node: SmallNode) -> None:
    node.journal_config = msgspec.structs.replace(node.journal_config, segment_age_seconds=5.0)
    node.config = msgspec.structs.replace(node.config, checkpoint_seconds=0.1)


async def spread_over_tiers(node: SmallNode) -> None:
    """30 batches: the first in the queue store alone, the next in sealed segments, the last in the open one."""
    for number in range(30):
        await node.append(new_batch(QUEUE, 1000, timestamp=1000 + 10 * number))
        if number == 14:
            await node.split()
            await asyncio.sleep(10)
    assert node.segments()[0] > 1, "something was pruned"
    assert [(await node.read(offset)).tier for offset in (0, 16, 29)] == [Tier.QUEUE_STORE, Tier.JOURNAL, Tier.JOURNAL]


# --- timestamps -------------------------------------------------------------------------------------------


def test_timestamps_are_found_in_every_tier(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await spread_over_tiers(node)
        look_up = node.storage.messages.offset_for_timestamp
        for number in range(30):
            for timestamp in (1000 + 10 * number, 1000 + 10 * number - 3):
                found = await look_up(QUEUE, timestamp)
                assert found is not None
                assert found[:2] == (number, 1000 + 10 * number)
        assert await look_up(QUEUE, 1291) is None
        assert await look_up(OTHER, 0) is None, "an empty queue"
        assert await look_up(77 << 32, 0) is None, "no such queue"
        await node.storage.queues.truncate({QUEUE: 20})
        found = await look_up(QUEUE, 0)
        assert found is not None
        assert found[:2] == (20, 1200), "nothing before the log start"

    simulated(tmp_path, story, sealed_by_age)


def test_the_largest_timestamp_is_of_the_first_record_that_has_it_and_is_still_there(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        look_up = node.storage.messages.offset_for_timestamp
        assert await look_up(QUEUE, MAX_TIMESTAMP) is None
        for timestamp in (900, 500, 800, 700, 800):
            await node.append(new_batch(QUEUE, 100, timestamp=timestamp))
        expected = {0: (0, 900), 1: (2, 800), 3: (4, 800)}
        for split in (False, True):
            for start, right in expected.items():
                if split and not start:
                    continue  # the log start has moved by then
                await node.storage.queues.truncate({QUEUE: start})
                found = await look_up(QUEUE, MAX_TIMESTAMP)
                assert found is not None
                assert found[:2] == right, (split, start)
            if not split:
                await node.fill(1, OTHER)
                for timestamp in (300, 950, 200):
                    await node.append(new_batch(QUEUE, 100, timestamp=timestamp))
                expected = {6: (6, 950), 7: (7, 200)}
                await node.split()
                await asyncio.sleep(10)
                await node.fill(1, OTHER)
                await asyncio.sleep(10)

    simulated(tmp_path, story, sealed_by_age)


def test_the_marker_that_ends_a_transaction_may_have_the_largest_timestamp(tmp_path: Path) -> None:
    """In memory, in segments, and in files, one of which has the messages and the marker in one place."""

    async def story(node: SmallNode) -> None:
        look_up = node.storage.messages.offset_for_timestamp
        await node.append(new_batch(QUEUE, 100, timestamp=900))
        confirmed(node)
        await produce(node, part_of_transaction(QUEUE, (7, 0, 0)))
        assert await end_transaction(node, QUEUE, 7, 0) is Outcome.OK
        for split in (False, True):
            if split:
                await node.split()
                await asyncio.sleep(10)
            largest = await look_up(QUEUE, MAX_TIMESTAMP)
            assert largest is not None, split
            assert largest.offset == 2, "the marker, as in Kafka"
            assert largest.timestamp > 1000
            assert await look_up(QUEUE, 1001) is None, "no message is as late as that"

    simulated(tmp_path, story, sealed_by_age)


def test_what_was_found_out_about_a_costly_batch_is_remembered(tmp_path: Path) -> None:
    """A small batch of very many records, whose header claims a time that none of them has."""

    async def story(node: SmallNode) -> None:
        await node.append(to_append(QUEUE, crafted_batch(KEYLESS_RECORD, 400_000, max_timestamp=9_000)))
        await node.append(new_batch(QUEUE, 100, timestamp=8_000))
        lookups = node.storage.record_lookups
        look_up = node.storage.messages.offset_for_timestamp
        behind = 400_000, 8_000
        for timestamp, right in ((5_000, behind), (500, (0, 1_000)), (8_001, None), (7_999, behind)):
            for _ in range(3):
                found = await look_up(QUEUE, timestamp)
                assert (found and found[:2]) == right, timestamp
        largest = await look_up(QUEUE, MAX_TIMESTAMP)
        assert largest is not None
        assert largest[:2] == (0, 1_000), "by its header it is in this batch, and of its records the greatest"
        assert lookups.looked_into == 1
        assert lookups.remembered >= 12

    simulated(tmp_path, story)


def test_a_batch_that_inflates_to_more_than_it_may_counts_as_a_whole(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        record = KEYLESS_RECORD
        await node.append(new_batch(QUEUE, 100, timestamp=900))
        await node.append(to_append(QUEUE, crafted_batch(record, 9_000_000, max_timestamp=9_000)))
        await node.append(new_batch(QUEUE, 100, timestamp=10_000))
        look_up = node.storage.messages.offset_for_timestamp
        for timestamp, right in ((5_000, (1, 9_000)), (900, (0, 900)), (9_001, (9_000_001, 10_000))):
            found = await look_up(QUEUE, timestamp)
            assert found is not None
            assert found[:2] == right
        assert node.storage.record_lookups.looked_into == 1

    simulated(tmp_path, story)


def test_batches_that_cannot_be_decoded_count_as_a_whole(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        nonsense = crafted_batch(b"\x7f", 3, compression=Compression.NONE, max_timestamp=2_000)
        await node.append(to_append(QUEUE, nonsense))
        await node.append(new_batch(QUEUE, 100, timestamp=3_000))
        look_up = node.storage.messages.offset_for_timestamp
        for timestamp, right in ((1_500, (0, 2_000)), (2_001, (3, 3_000))):
            found = await look_up(QUEUE, timestamp)
            assert found is not None
            assert found[:2] == right

    simulated(tmp_path, story)


def test_a_long_search_gives_up_its_turn(tmp_path: Path) -> None:
    """Each of many batches claims a time that its records do not have."""

    async def story(node: SmallNode) -> None:
        node.config = msgspec.structs.replace(node.config, write_cache_bytes=1 << 26)
        await node.restart()
        liar = crafted_batch(KEYLESS_RECORD, 3, compression=Compression.NONE, max_timestamp=9_000)
        for _ in range(20):
            await node.append(*[to_append(QUEUE, liar)] * 100)
        turns = node.turns.taken
        assert await node.storage.messages.offset_for_timestamp(QUEUE, 5_000) is None
        assert node.turns.taken >= turns + 2000 // 500

    simulated(tmp_path, story)


# --- leader epochs ----------------------------------------------------------------------------------------


def test_epochs_end_where_the_next_begins_over_many_terms(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        ends: dict[int, int] = {}
        for count in (3, 0, 14, 2):
            await node.fill(count, size=3000)
            ends[node.offsets().leader_epoch] = node.offsets().end
            await node.split()
            await node.restart()
        first, empty, third, fourth = ends
        now = node.offsets().leader_epoch
        await node.fill(1)
        epoch_end = node.storage.queues.epoch_end
        assert await epoch_end(QUEUE, first) == (first, 3)
        assert await epoch_end(QUEUE, empty) == (first, 3), "an epoch without records ends as the one before"
        assert await epoch_end(QUEUE, third) == (third, 17)
        assert await epoch_end(QUEUE, fourth) == (fourth, 19)
        assert await epoch_end(QUEUE, now) == (now, 20)
        assert await epoch_end(QUEUE, now + 1) == (-1, -1)
        assert await epoch_end(QUEUE, -1) == (-1, -1)
        assert await epoch_end(77 << 32, first) is None
        await node.storage.queues.truncate({QUEUE: 10})
        assert await epoch_end(QUEUE, first) == (first, 10), "nothing of it is left"
        assert await epoch_end(QUEUE, third) == (third, 17)
        assert await epoch_end(OTHER, first) == (first, 0)

    simulated(tmp_path, story)


# --- sealed segments --------------------------------------------------------------------------------------


def test_the_end_of_an_epoch_is_found_wherever_it_lies(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        ends = {}
        for count in (1, 2, 5, 3, 4, 1, 7):
            await node.fill(count)
            offsets = node.offsets()
            ends[offsets.leader_epoch] = offsets.high_watermark
            await node.restart()
        for epoch, end in ends.items():
            assert await node.storage.queues.epoch_end(QUEUE, epoch) == (epoch, end)

    simulated(tmp_path, story)


def test_a_queue_missing_from_most_segments_is_found_in_the_others(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        rare = []
        for number in range(90):
            if number in (0, 31, 32, 75):
                rare.append(node.segments()[-1])
                await node.fill(1, OTHER)
            await node.fill(1)
        await node.rounds(1)
        sealed = SealedSegments(node.storage.journal, node.storage.queue_store.cache, node.storage.state.index)
        assert len(set(rare)) == 3
        assert len(node.segments()) > 6
        for offset in range(4):
            places = await sealed.places(OTHER, offset, 1)
            assert [place.base_offset for place in places] == [offset]
        assert [place.base_offset for place in await sealed.places(OTHER, 0, 1 << 20)] == [0]
        assert [place.base_offset for place in await sealed.places(OTHER, 1, 1 << 20)] == [1, 2]
        assert await sealed.places(OTHER, 4, 1 << 20) == []
        assert await sealed.places(77 << 32, 0, 1 << 20) == []
        for offset in range(85):
            places = await sealed.places(QUEUE, offset, 2500)
            assert places[0].base_offset == offset
            assert len(places) <= 2

    simulated(tmp_path, story)


def test_the_rows_of_the_open_segment_have_no_block_that_a_snapshot_replaced(tmp_path: Path) -> None:
    """Memory's index may still have it: a reader of many queues would be served what is not in the log any more."""

    async def story(node: SmallNode) -> None:
        await node.fill(3)
        storage, blocks = node.storage, node.storage.groups[0].blocks
        second = blocks.position_of(blocks.last_index() - 1)
        storage.state.journal_map.dead.add(second)
        sealed = SealedSegments(storage.journal, storage.queue_store.cache, storage.state.index)
        (open_segment,), _first = await sealed.near(QUEUE, 0, 1, blocks.position_of(blocks.last_index() - 2))
        assert list(open_segment.extents.rows["base_offset"]) == [0, 2]

    simulated(tmp_path, story)


def test_neighbours_are_read_together_and_strangers_apart() -> None:
    def place(position: int, length: int = 100) -> BatchPlace:
        return BatchPlace(1 << 32 | position, length, 0, 0, 0)

    near, far = place(4096), place(4096 + 100 + GAP_BYTES + 1)
    assert spans([]) == []
    assert spans([near, place(4200), place(4300)]) == [[near, place(4200), place(4300)]]
    assert spans([near, far]) == [[near], [far]]
    other_segment = BatchPlace(2 << 32 | 4200, 100, 0, 0, 0)
    assert spans([near, other_segment]) == [[near], [other_segment]]
    long = place(4196, SPAN_BYTES_MAX)
    assert spans([near, long]) == [[near], [long]]
    backwards = [place(9000), near]
    assert spans(backwards) == [[place(9000)], [near]]


def test_a_place_in_a_recycled_segment_or_a_wrong_one_is_not_taken_for_the_batch(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(30)
        await node.rounds(1)
        sealed = SealedSegments(node.storage.journal, node.storage.queue_store.cache, node.storage.state.index)
        (place,) = await sealed.places(QUEUE, 0, 1)
        assert len(await sealed.read([place])) == 1
        for wrong in (place._replace(base_offset=5), place._replace(position=place.position + 8)):
            with pytest.raises(CorruptJournal, match="byte"):
                await sealed.read([wrong])
        await node.split()
        await node.rounds()
        with pytest.raises(SegmentGone):
            await sealed.read([place])
        assert await node.read_offsets() == list(range(30))

    simulated(tmp_path, story)


def test_a_search_goes_on_without_the_segments_that_are_recycled_under_it(tmp_path: Path) -> None:
    class Recycling:
        """A journal that recycles its oldest segment whenever it is asked for an index, up to `left` times."""

        def __init__(self, node: SmallNode, left: int) -> None:
            self.journal = node.storage.journal
            self.left = left
            self.gone = 0

        def segments(self) -> list[SegmentInfo]:
            return self.journal.segments()[self.gone :]

        def may_hold(self, sequence: int, queue_id: int) -> bool:
            return True

        async def rows_with(self, sequence: int, queue_id: int) -> ExtentIndex:
            if self.left:
                self.left -= 1
                self.gone += 1
                raise SegmentGone(f"segment {sequence}")
            return await self.journal.rows_with(sequence, queue_id)

    async def story(node: SmallNode) -> None:
        await node.fill(90)
        await node.rounds(1)
        assert len(node.segments()) > 8
        oldest = (await node.storage.journal.index(node.segments()[6])).rows["base_offset"].min()
        recycling = Recycling(node, 6)
        sealed = SealedSegments(recycling, node.storage.queue_store.cache, node.storage.state.index)  # type: ignore[arg-type]
        (place, *_rest) = await sealed.places(QUEUE, 0, 1)
        assert place.base_offset == oldest, "the next there is"

    simulated(tmp_path, story)


# --- usage and positions ----------------------------------------------------------------------------------


def test_usage_is_live_bytes_per_disk(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        size = len(new_batch(QUEUE, 1000).data)
        await node.fill(20)
        await node.fill(3, OTHER)
        usage = node.storage.queues.usage

        async def all_usage() -> list[QueueUsage | None]:
            return await usage([OTHER, QUEUE, 77 << 32, QUEUE])

        assert await all_usage() == [(3 * size, 0), (20 * size, 0), None, (20 * size, 0)]
        await node.rounds(1)
        assert await all_usage() == [(3 * size, 0), (20 * size, 0), None, (20 * size, 0)]
        await node.split()
        assert (await usage([OTHER])) == [(3 * size, 3 * size)]
        topics = await node.storage.usage.of_topics()
        expected: dict[int, tuple[int, int]] = {}
        for queue_id, batches in ((OTHER, 3), (QUEUE, 20)):
            before = expected.get(topic_number_of(queue_id), (0, 0))
            expected[topic_number_of(queue_id)] = (before[0] + batches * size, before[1] + batches * size)
        assert topics == expected
        await asyncio.sleep(10)
        await node.fill(1)
        await asyncio.sleep(10)
        assert await usage([QUEUE]) == [(size, 20 * size)]
        await node.storage.queues.truncate({QUEUE: 20})
        assert await usage([QUEUE]) == [(size, 0)]
        assert await usage([]) == []

    simulated(tmp_path, story, sealed_by_age)


def test_topics_are_told_what_is_still_to_be_split_and_for_how_long(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        size = len(new_batch(QUEUE, 1000).data)
        another = queue_id_of(2, 0)
        here, elsewhere = topic_number_of(QUEUE), topic_number_of(another)
        by_topic = node.storage.unsplit_topics.by_topic
        assert await by_topic() == {}
        began_ms = node.clock.now_ms()
        await node.fill(20)
        await asyncio.sleep(10)
        later_ms = node.clock.now_ms()
        await node.rounds(1)  # the first batches lie in a sealed segment
        await node.fill(3, another)
        waits = await by_topic()
        assert {topic: one.bytes for topic, one in waits.items()} == {here: 20 * size, elsewhere: 3 * size}
        assert began_ms <= waits[here].oldest_ms < later_ms <= waits[elsewhere].oldest_ms <= node.clock.now_ms()
        await node.split()
        assert await by_topic() == {}
        journal = await node.storage.usage.journal_of_topics()
        assert int(journal.bytes.sum()) == 23 * size, "all are in the journal yet"
        await asyncio.sleep(10)
        await node.rounds(1)
        await node.fill(1, another)
        assert {topic: one.bytes for topic, one in (await by_topic()).items()} == {elsewhere: size}

    def prepared(node: SmallNode) -> None:
        sealed_by_age(node)
        node.topics.append(topic(2))

    simulated(tmp_path, story, prepared)


def test_positions_are_right_after_pruning_and_after_a_restart(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        def position() -> tuple[int, int, int, int]:
            (group,) = node.storage.split_log.positions()
            return group.pruned, group.split, group.committed, group.unsplit_bytes

        await node.fill(60)
        await node.split()
        await node.rounds()
        pruned, split, committed, unsplit_bytes = position()
        assert 40 < pruned <= split == committed
        assert unsplit_bytes == 0
        await node.fill(2)
        unsplit_bytes = position()[3]
        assert 2000 < unsplit_bytes < 3000, "what was split and pruned is no lag"
        await node.crash()  # the checkpoint is of before the recycling
        await node.start()
        assert position()[0] == pruned
        assert position()[3] == unsplit_bytes
        await node.restart()
        assert position()[0] == pruned
        assert position()[3] == unsplit_bytes
        assert set(await node.split()) == {"committed"}
        assert position()[3] == 0

    simulated(tmp_path, story)


# --- placement and liveness -------------------------------------------------------------------------------


def test_groups_of_many_queues_are_those_of_each() -> None:
    placement = Placement([slot % 7 for slot in range(SLOTS)])
    queue_ids = numpy.array([number << 32 | number * 31 for number in range(1, 2000)], numpy.uint64)
    each = [slot_of(int(queue_id)) % 7 for queue_id in queue_ids]
    assert placement.groups == 7
    assert (
        placement.groups_of(queue_ids).tolist() == each == [placement.group_of(int(queue_id)) for queue_id in queue_ids]
    )


def test_m_a_queue_nobody_knows_is_alive_and_only_a_known_deletion_kills() -> None:
    table = QueueTable()
    table.create(1, 0, 2)
    table.set(table.find(QUEUE), LOG_START, 5)
    liveness = QueueLiveness(table, {3}.__contains__)
    queue_ids = numpy.array([3 << 32, QUEUE, 2 << 32, OTHER, 3 << 32 | 9, 1 << 32 | 7], numpy.uint64)
    assert liveness.log_starts(queue_ids).tolist() == [GONE, 5, 0, 0, GONE, 0]


def test_m_nothing_is_pruned_or_dropped_for_metadata_that_is_missing(tmp_path: Path) -> None:
    def prepare(node: SmallNode) -> None:
        sealed_by_age(node)
        node.topics = [topic(retention_ms=1, retention_bytes=1)]
        node.config = msgspec.structs.replace(node.config, retention_check_seconds=1.0)

    async def story(node: SmallNode) -> None:
        known, node.topics = node.topics, []
        await node.fill(30)
        await node.split()
        await asyncio.sleep(20)
        await node.fill(10)
        await asyncio.sleep(20)
        assert await node.read_offsets() == list(range(40))
        node.topics = known
        await asyncio.sleep(20)
        assert node.offsets().log_start == 40, "now retention is known, and everything is too old"
        assert not any(path.endswith(".run") for path in node.disk2.paths())

    simulated(tmp_path, story, prepare)


def test_the_journal_is_read_the_same_through_memory_and_past_it(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(90)
        await node.fill(30, OTHER)
        await node.rounds(1)
        journal = node.storage.journal
        caches = [
            ReadCache(node.clock, bytes_max=size, chunk_bytes=chunk)
            for size, chunk in ((0, 4096), (1 << 20, 4096), (20_000, 4096), (8 << 20, 1 << 20))
        ]
        for queue_id, offset in ((QUEUE, 0), (QUEUE, 33), (OTHER, 0)):
            found = []
            for cache in caches:
                sealed = SealedSegments(journal, cache, node.storage.state.index)
                places = await sealed.places(queue_id, offset, 1 << 20)
                found.append([list(map(bytes, await sealed.read(places))) for _ in range(6)])
                if places:
                    await sealed.read(places[:1] * 50)
            assert found[0][0]
            assert all(batches == found[0][0] for answers in found for batches in answers)
        assert caches[0].bytes_held == 0
        assert 0 < caches[2].bytes_held <= 20_000
        assert caches[3].bytes_held > 0

    simulated(tmp_path, story)


def test_a_reader_who_comes_back_is_where_it_was_and_one_who_does_not_is_looked_for(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(90)
        await node.rounds(1)
        sealed = SealedSegments(node.storage.journal, node.storage.queue_store.cache, node.storage.state.index)
        assert await sealed.places_of_reader(QUEUE, 0, 1) == []
        offset = 0
        for _ in range(20):
            places = await sealed.places(QUEUE, offset, 3000)
            offset = places[-1].last_offset + 1
            sealed.goes_on(QUEUE, offset, places[-1].position)
            again = await sealed.places_of_reader(QUEUE, offset, 3000)
            assert again == await sealed.places(QUEUE, offset, 3000)
            assert await sealed.places_of_reader(QUEUE, offset, 3000) == [], "told once, believed once"

    simulated(tmp_path, story)
