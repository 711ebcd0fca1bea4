"""Queues whose older batches only the remote tier has: what readers get, meanwhile and while the store is out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.kernel.fetch.fetch_world import asking, at, number_of, records_of
from tests.storage.remote.tiered_node import (
    bucket_of,
    let_go,
    local_ranges,
    split_in_parts,
    tier,
    with_bucket,
)
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated

from mainstem import kernel
from mainstem.model import Outcome, Tier
from mainstem.ports import joined
from mainstem.protocol import codec
from mainstem.protocol.messages.fetch import FetchResponse, PartitionData
from mainstem.storage.errors import StorageError
from mainstem.storage.object_stores.errors import ObjectAbsent
from mainstem.storage.reading import remote_reads
from mainstem.storage.store_files.object_names import object_of
from mainstem.storage.store_files.store_file import path_of

PARTS = 6
BATCHES = 10
"""Of each part."""
COUNT = PARTS * BATCHES
CODES = tuple(range(100, 200))
EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD, LARGEST = -4, -5, -6, -3


def prepare(node: SmallNode) -> None:
    with_bucket(node)
    node.store_config = msgspec.structs.replace(node.store_config, read_cache_bytes=1 << 20)
    node.read_cache_config = msgspec.structs.replace(node.read_cache_config, memory_bytes=4 << 20, chunk_bytes=64 << 10)
    node.config = msgspec.structs.replace(node.config, checkpoint_seconds=0.1)


async def half_tiered(node: SmallNode, *, gone: int = 3) -> None:
    """A queue of `COUNT` batches, four of its six parts in the tier, the oldest `gone` of them only there."""
    await split_in_parts(node, PARTS, BATCHES)
    ranges = local_ranges(node)
    await tier(node, ranges[:4])
    await let_go(node, ranges[:gone])


class Reading:
    """Goes through the queue as a consumer does."""

    def __init__(self, node: SmallNode, bytes_max: int = 3000) -> None:
        self.node = node
        self.bytes_max = bytes_max
        self.offsets: list[int] = []
        self.position = 0

    async def step(self) -> None:
        part = await self.node.read(self.position, bytes_max=self.bytes_max)
        assert part.outcome is Outcome.OK, part
        assert part.batches, part
        self.offsets += [int.from_bytes(batch[:8], "big") for batch in part.batches]
        self.position = part.next_offset

    async def to_the_end(self) -> list[int]:
        while self.position < COUNT:
            await self.step()
        return self.offsets


def test_a_reader_crosses_from_the_tier_to_the_nodes_disks(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await half_tiered(node)
        before = dict(node.storage.read_path.served)
        assert await Reading(node).to_the_end() == list(range(COUNT))
        served = {kind: count - before[kind] for kind, count in node.storage.read_path.served.items()}
        assert served[Tier.REMOTE] >= 30 / 3
        assert served[Tier.QUEUE_STORE] + served[Tier.READ_CACHE] >= 30 / 3
        await node.restart()
        assert await Reading(node, 100_000).to_the_end() == list(range(COUNT))

    simulated(tmp_path, story, prepare)


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.3])
def test_readers_meet_no_gap_and_no_repeat_while_files_go(tmp_path: Path, seconds: float) -> None:
    async def story(node: SmallNode) -> None:
        await split_in_parts(node, PARTS, BATCHES)
        bucket_of(node).weather.latency_seconds = (0.0, 0.1)
        ranges = local_ranges(node)

        async def move() -> None:
            for entry in ranges[:5]:
                await tier(node, [entry])
                await asyncio.sleep(seconds)
                await let_go(node, [entry])

        readers = [Reading(node, bytes_max) for bytes_max in (500, 1500, 3000, 12_000)]
        for reader in readers[1:]:
            await reader.step()
        await asyncio.gather(move(), *(reader.to_the_end() for reader in readers))
        for reader in readers:
            assert reader.offsets == list(range(COUNT))
        assert await Reading(node).to_the_end() == list(range(COUNT))
        assert not node.storage.queue_store.damaged.all()

    simulated(tmp_path, story, prepare)


def test_a_reader_whose_file_goes_under_it_goes_on_in_the_tier(tmp_path: Path) -> None:
    """However far the read has come when the file goes: each part of the queue goes a little later than the one before,
    as a reader asks for it."""

    def with_one_open_file(node: SmallNode) -> None:
        prepare(node)
        node.store_config = msgspec.structs.replace(node.store_config, open_files_max=1)

    async def story(node: SmallNode) -> None:
        parts = 40
        await split_in_parts(node, parts, 2)
        ranges = local_ranges(node)
        await tier(node, ranges[:parts])
        for part, entry in enumerate(ranges[:parts]):
            node.storage.queue_store.cache.forget(entry.name)
            reading = asyncio.ensure_future(node.read(2 * part, bytes_max=1500))
            for _ in range(part):
                await asyncio.sleep(0)
            await let_go(node, [entry])
            found = await reading
            assert found.outcome is Outcome.OK
            assert int.from_bytes(found.batches[0][:8], "big") == 2 * part

    simulated(tmp_path, story, with_one_open_file)


def test_where_no_place_has_an_offset_the_next_one_of_all_is_served(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await split_in_parts(node, PARTS, BATCHES)
        ranges = local_ranges(node)
        await tier(node, [ranges[2]])
        await let_go(node, [ranges[0], ranges[2]])
        for asked, served in ((0, 10), (15, 15), (20, 20), (30, 30)):
            found = await node.read(asked)
            assert int.from_bytes(found.batches[0][:8], "big") == served
        await let_go(node, [ranges[1]])
        found = await node.read(5)
        assert int.from_bytes(found.batches[0][:8], "big") == 20

    simulated(tmp_path, story, prepare)


def test_an_outage_is_answered_and_passes(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await half_tiered(node)
        reader = Reading(node)
        for _ in range(4):
            await reader.step()
        weather = bucket_of(node).weather
        weather.down = True
        await node.restart()  # with nothing of it in memory
        history = node.storage.remote_history
        assert history is not None
        met = 0
        for _ in range(20):
            part = await node.read(reader.position, bytes_max=3000)
            if part.outcome is Outcome.STORAGE_FAILED:
                assert not part.batches
                met += 1
            assert (await node.read(40)).batches, "what this node has itself is served"
        assert met == 20
        weather.down = False
        assert await reader.to_the_end() == list(range(COUNT))
        assert not history.damaged.all()
        assert not node.storage.queue_store.damaged.all()

    simulated(tmp_path, story, prepare)


def test_a_lost_object_is_damage_of_the_tier(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await half_tiered(node)
        name = next(iter(node.storage.remote.manifest.files))
        bucket_of(node).lose(object_of(0, path_of(name)))
        assert (await node.read(0)).outcome is Outcome.STORAGE_FAILED
        history = node.storage.remote_history
        assert history is not None
        [damage] = history.damaged.all()
        assert damage.name == name
        assert ObjectAbsent.__name__ not in damage.reason
        assert name in damage.reason
        assert (await node.read(BATCHES)).batches, "the next object is whole"

    simulated(tmp_path, story, prepare)


def test_the_tier_stands_in_for_a_damaged_file_of_disk_2(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await half_tiered(node, gone=0)
        for entry in local_ranges(node)[:2]:
            node.disk2.flip(path_of(entry.name), 8 * 300)
            node.storage.queue_store.cache.forget(entry.name)
        assert await Reading(node).to_the_end() == list(range(COUNT))
        assert node.storage.read_path.served[Tier.REMOTE] > 0

    simulated(tmp_path, story, prepare)


# --- many partitions in one fetch ---------------------------------------------------------------------------


def plan_of(node: SmallNode, offsets: dict[int, int]) -> kernel.FetchPlan:
    asked = asking(12, (1, [at(partition, offset) for partition, offset in offsets.items()]))
    plan = kernel.scan_fetch(memoryview(codec.write(asked, 12)), 0, 12).plan
    return begun(plan)


def begun(plan: kernel.FetchPlan) -> kernel.FetchPlan:
    plan.begin(lambda key: kernel.PlannedTopic(number_of(key), 2), 1 << 20)
    return plan


async def settled(node: SmallNode, plan: kernel.FetchPlan) -> float:
    """Settle a round; seconds that it took."""
    began = node.clock.monotonic()
    node.storage.messages.read_at_once(plan)
    while not plan.settled:
        await node.storage.messages.read(plan, 1 << 20)
    return node.clock.monotonic() - began


def answers(plan: kernel.FetchPlan) -> list[PartitionData]:
    frame = joined(plan.response(12, 5, CODES))
    return list(codec.read(FetchResponse, 12, frame, 9).responses[0].partitions)


LONG_SECONDS = 5.0
"""Of one request to the store, by the clock of a loop on which little else takes time."""

SOON_SECONDS = 1.0
ALL_SECONDS = 60.0
"""In which everything comes."""


def test_a_slow_remote_read_holds_up_no_other_partition(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await half_tiered(node)
        bucket_of(node).weather.latency_seconds = (LONG_SECONDS, LONG_SECONDS)
        plan = plan_of(node, {0: 0, 1: 0})
        assert await settled(node, plan) < SOON_SECONDS
        remote, local = answers(plan)
        assert (remote.error_code, len(records_of(remote))) == (0, 0)
        assert len(records_of(local)) > 10_000
        await asyncio.sleep(ALL_SECONDS)
        plan = plan_of(node, {0: 0, 1: 0})
        assert await settled(node, plan) < SOON_SECONDS
        remote, local = answers(plan)
        assert len(records_of(remote)) > 5_000

    simulated(tmp_path, story, prepare)


def test_a_fetch_with_nothing_else_is_woken_by_what_comes_from_the_tier(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await half_tiered(node)
        bucket_of(node).weather.latency_seconds = (LONG_SECONDS, LONG_SECONDS)
        messages = node.storage.messages
        end = node.offsets(QUEUE + 1).high_watermark
        plan = plan_of(node, {0: 0, 1: end})
        assert await settled(node, plan) < SOON_SECONDS
        assert (plan.bytes, plan.final) == (0, False)
        plan.release()
        began = node.clock.monotonic()
        await messages.wait(plan, 1, 600.0)
        assert LONG_SECONDS / 2 < node.clock.monotonic() - began < ALL_SECONDS
        assert await settled(node, begun(plan)) < SOON_SECONDS
        assert len(records_of(answers(plan)[0])) > 5_000

    simulated(tmp_path, story, prepare)


def test_what_came_before_the_wait_began_ends_it(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await half_tiered(node)
        bucket_of(node).weather.latency_seconds = (LONG_SECONDS, LONG_SECONDS)
        plan = plan_of(node, {0: 0})
        await settled(node, plan)
        plan.release()
        await asyncio.sleep(ALL_SECONDS)
        waits = node.storage.messages.wait(plan, 1, 600.0)
        assert waits.done()
        await settled(node, begun(plan))
        assert plan.bytes > 0

    simulated(tmp_path, story, prepare)


def test_an_outage_settles_its_partition_alone(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await half_tiered(node)
        bucket_of(node).weather.refuses = True
        plan = plan_of(node, {0: 0, 1: 0})
        await settled(node, plan)
        remote, local = answers(plan)
        assert (remote.error_code, local.error_code) == (CODES[kernel.Verdict.STORAGE_FAILED], 0)
        assert len(records_of(local)) > 10_000

    simulated(tmp_path, story, prepare)


def test_remote_partitions_of_a_fetch_are_read_at_the_same_time(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        for _ in range(3):
            for partition in (0, 1):
                await node.fill(BATCHES, QUEUE + partition)
            await node.split()
        await node.fill(20, QUEUE, 2000)
        await node.split()
        await node.rounds(3)
        ranges = local_ranges(node)
        await tier(node, ranges)
        await let_go(node, ranges)
        bucket_of(node).weather.latency_seconds = (LONG_SECONDS, LONG_SECONDS)
        plan = plan_of(node, {0: 0, 1: 0})
        await settled(node, plan)
        assert plan.bytes == 0
        plan.release()
        await asyncio.sleep(ALL_SECONDS)
        plan = plan_of(node, {0: 0, 1: 0})
        await settled(node, plan)
        assert all(len(records_of(answer)) > 5_000 for answer in answers(plan))

    simulated(tmp_path, story, prepare)


def test_what_nobody_comes_back_for_is_let_go(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await half_tiered(node)
        reads = node.storage.read_path.remote_reads
        plan = plan_of(node, {0: 0})
        bucket_of(node).weather.latency_seconds = (LONG_SECONDS, LONG_SECONDS)
        await settled(node, plan)
        assert reads.known(QUEUE, 0) is not None
        await asyncio.sleep(ALL_SECONDS + remote_reads.KEPT_SECONDS)
        assert reads.known(QUEUE, 0) is None

    simulated(tmp_path, story, prepare)


# --- look-ups -----------------------------------------------------------------------------------------------


def test_times_are_looked_up_in_the_tier_as_on_disk(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        times = [1000, 5000, 3000, 4000, 9000, 9000, 2000, 100, 8000, 7000]
        for _ in range(4):
            for time in times:
                await node.append(new_batch(QUEUE, 100, timestamp=time, records=2))
            await node.split()
        await split_in_parts(node, 0, 0)
        asked = [LARGEST, 0, 100, 101, *range(500, 9001, 500), 9001]
        messages = node.storage.messages
        before = [await messages.offset_for_timestamp(QUEUE, time) for time in asked]
        ranges = local_ranges(node)
        await tier(node, ranges[:3])
        for gone in ranges[:3]:
            await let_go(node, [gone])
            assert [await messages.offset_for_timestamp(QUEUE, time) for time in asked] == before
        await node.storage.queues.truncate({QUEUE: 13})
        for time in asked:
            found = await messages.offset_for_timestamp(QUEUE, time)
            assert found is None or found.offset >= 13

    simulated(tmp_path, story, prepare)


def test_where_the_nodes_own_history_begins_and_the_tier_ends_is_told(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        async def offset(asked: int, queue_id: int = QUEUE) -> int | None:
            found = await node.storage.messages.offset_for_timestamp(queue_id, asked)
            return None if found is None else found.offset

        await split_in_parts(node, PARTS, BATCHES)
        assert [await offset(asked) for asked in (EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD)] == [0, None, None]
        ranges = local_ranges(node)
        await tier(node, ranges[:4])
        assert [await offset(asked) for asked in (EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD)] == [0, 39, 40]
        await let_go(node, ranges[:3])
        assert [await offset(asked) for asked in (EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD)] == [30, 39, 40]
        assert await offset(LATEST_TIERED, QUEUE + 1) is None
        assert await offset(EARLIEST_LOCAL, QUEUE + 1) == 0
        await node.storage.queues.truncate({QUEUE: 45})
        assert [await offset(asked) for asked in (EARLIEST_LOCAL, LATEST_TIERED)] == [45, None]

    simulated(tmp_path, story, prepare)


def test_a_lookup_during_an_outage_fails_and_names_no_damage(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await half_tiered(node)
        bucket_of(node).weather.refuses = True
        with pytest.raises(Exception, match="AccessDenied"):
            await node.storage.messages.offset_for_timestamp(QUEUE, 5)
        bucket_of(node).weather.refuses = False
        assert await node.storage.messages.offset_for_timestamp(QUEUE, 5) is not None

    simulated(tmp_path, story, prepare)


def test_the_end_of_an_epoch_is_found_here_where_it_is_here(tmp_path: Path) -> None:
    """Readers ask for it after each change of the leader, those at the end of a queue as well."""

    async def story(node: SmallNode) -> None:
        ends: dict[int, int] = {}
        for _ in range(5):
            await node.fill(BATCHES)
            await node.split()
            ends[node.offsets().leader_epoch] = node.offsets().end
            await node.restart()
        await split_in_parts(node, 0, 0)
        ranges = [entry for entry in local_ranges(node) if entry.name != local_ranges(node)[-1].name]
        await tier(node, ranges[:3])
        await let_go(node, ranges[:3])
        await node.restart()
        epoch_end = node.storage.queues.epoch_end
        bucket_of(node).weather.refuses = True
        old, late = list(ends.items())[:2], list(ends.items())[3:]
        for epoch, end in late:
            assert await epoch_end(QUEUE, epoch) == (epoch, end)
        for epoch, _end in old:
            with pytest.raises(StorageError):
                await epoch_end(QUEUE, epoch)
        bucket_of(node).weather.refuses = False
        for epoch, end in ends.items():
            assert await epoch_end(QUEUE, epoch) == (epoch, end)
        bucket_of(node).weather.refuses = True
        for epoch, end in ends.items():
            assert await epoch_end(QUEUE, epoch) == (epoch, end), "it is remembered"
        await node.storage.queues.truncate({QUEUE: 25})
        first = next(iter(ends))
        bucket_of(node).weather.refuses = False
        assert await epoch_end(QUEUE, first) == (first, 25), "nothing of it is left"

    simulated(tmp_path, story, prepare)
