"""Two of three replicas of a write group are down: the journal of the third stays short while other groups take load.

Its blocks of the group that nobody else has decided are kept all the same, whatever happens to it on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.simulation.cluster.cluster import Settings
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import HEALED_SECONDS, LEFT_BEHIND, Run
from tests.simulation.find import more_at_length
from tests.simulation.oracle import require

from mainstem.model import FeatureLevel, QueueRead
from mainstem.raft import MembershipRefused
from mainstem.storage.errors import NotTheLeader
from mainstem.storage.journal.encoding.format import sequence_of
from mainstem.storage.repair.rewriting import GROWTH, SEGMENTS_BEHIND, undecided_end

STUCK, BUSY = 0, 1
"""Write groups; the one on nodes 1 to 3, the other on 3 to 5."""

SEGMENTS_TAKEN = 16
"""Of the journal, by the other group, while the first is stuck."""

SEGMENTS_KEPT_MAX = 14
"""Of those, besides what rewriting waits for: what the seconds of patience take, what is not split yet, what waits for
a checkpoint. Without rewriting all of them are kept."""


class Story(Run):
    crashes = False
    """The power goes while blocks are written again, a little later each time."""
    level = FeatureLevel.newest()
    """Of the cluster, until it is raised."""

    async def _story(self) -> None:
        cluster = self.cluster
        cluster.placements = {STUCK: [1, 2, 3], BUSY: [3, 4, 5]}
        cluster.level = self.level
        for node in cluster.nodes.values():
            await node.start()
        topic = await cluster.create_topic(8, patience=30)
        queue_ids = [topic.queue_id(partition) for partition in range(topic.partitions)]
        require({cluster.group_of(queue_id) for queue_id in queue_ids} == {STUCK, BUSY}, "a group has no queue")
        working = [self.loop.create_task(self._looked_after(task)) for task in self._load()]
        splitting = [self.loop.create_task(self._looked_after(self._split(node))) for node in cluster.nodes.values()]
        survivor = cluster.nodes[3]
        await self._lead_at(survivor)
        await asyncio.sleep(1.0)
        for node_id in (1, 2):
            cluster.nodes[node_id].lose_power()
        await asyncio.sleep(2.0)
        group = survivor.storage.groups[STUCK]
        end = undecided_end(group.blocks, group.applied_index)
        require(end is not None, "nothing is undecided")
        assert end is not None
        terms = {index: group.blocks.term(index) for index in range(end.first, end.last + 1)}
        if self.crashes:
            await self._crash_on_the_way(survivor)
        lost_at = sequence_of(group.blocks.position_of(end.first))
        undecided = -(-end.bytes // cluster.settings.journal.segment_bytes)
        allowed = SEGMENTS_KEPT_MAX + max(SEGMENTS_BEHIND, GROWTH * undecided) + undecided
        await self._until_taken(survivor, SEGMENTS_TAKEN + allowed)
        if self.level < FeatureLevel.HARDENED:
            self._nothing_is_written_again(survivor, lost_at)
            cluster.level = FeatureLevel.HARDENED
        for _ in range(int(10 * HEALED_SECONDS)):  # splitters may be behind for a while; here they pause at random
            segments = [segment.sequence for segment in survivor.storage.journal.segments()]
            if len(segments) <= allowed:
                break
            await asyncio.sleep(0.1)
        require(segments[0] > lost_at, f"node 3 keeps segment {segments[0]}")
        require(len(segments) <= allowed, f"node 3 keeps {len(segments)} segments, {allowed} are enough")
        group = survivor.storage.groups[STUCK]
        kept = {index: group.blocks.term(index) for index in terms}
        require(kept == terms, f"node 3 had blocks of terms {terms}, now {kept}")
        places = [group.blocks.position_of(index) for index in terms]
        require(places == sorted(places) and sequence_of(places[0]) >= segments[0], f"they lie at {places}")
        for node_id in (1, 2):
            require(await cluster.nodes[node_id].restart(), f"node {node_id} does not start")
        for number in (STUCK, BUSY):
            await cluster.lead(number, HEALED_SECONDS)
        for task in splitting:
            task.cancel()
        self.clients.ending = True
        async with asyncio.timeout(HEALED_SECONDS):
            await asyncio.gather(*working)
        await self._last_words()
        await self._same_everywhere()
        cluster.history.check_promises()
        cluster.check_tasks()
        for number, replicas in cluster.placements.items():
            for node_id in replicas:
                await self._read_group(cluster.nodes[node_id], number)
        survivor.lose_power()
        require(await survivor.restart(), "node 3 does not start")
        await cluster.lead(STUCK, HEALED_SECONDS)
        await self._last_words()
        await self._same_everywhere()
        await self._read_group(survivor, STUCK)

    async def _lead_at(self, node: SimulatedNode) -> None:
        """Have this node lead the group that will be stuck."""
        async with asyncio.timeout(HEALED_SECONDS):
            while not node.leads(STUCK):
                leader = await self.cluster.lead(STUCK, HEALED_SECONDS)
                if leader is not node:
                    try:
                        leader.storage.groups[STUCK].consensus.transfer_leadership(node.node_id)
                    except (NotTheLeader, MembershipRefused):
                        pass
                await asyncio.sleep(0.5)

    async def _crash_on_the_way(self, node: SimulatedNode) -> None:
        for change in range(1, 30):
            node.disk1.cut_power(after=3 * change)
            for _ in range(40):
                await asyncio.sleep(0.1)
                if not node.up:
                    break
            if not node.up:
                require(await node.restart(), f"node {node.node_id} does not start")

    def _nothing_is_written_again(self, node: SimulatedNode, lost_at: int) -> None:
        """A version of the first level that starts in the middle of copies would cut the log there."""
        group, written = node.storage.groups[STUCK], node.storage.rewriting.rewritten_blocks
        first = group.blocks.position_of(group.applied_index + 1)
        require(written == 0, f"node 3 wrote {written} blocks again before the level was raised")
        require(sequence_of(first) == lost_at, f"its first undecided block was in segment {lost_at}, is at {first}")

    async def _until_taken(self, node: SimulatedNode, count: int) -> None:
        first = sequence_of(node.storage.journal.end)
        async with asyncio.timeout(10 * HEALED_SECONDS):
            while sequence_of(node.storage.journal.end) < first + count:
                await asyncio.sleep(0.1)
                if not node.up:  # a power cut that was to come earlier
                    require(await node.restart(), f"node {node.node_id} does not start")

    async def _same_everywhere(self) -> None:
        async with asyncio.timeout(HEALED_SECONDS):
            while any(  # noqa: ASYNC110 - simulated time
                len({self.cluster.nodes[node_id].storage.groups[group].applied_index for node_id in replicas}) > 1
                for group, replicas in self.cluster.placements.items()
            ):
                await asyncio.sleep(0.1)

    async def _read_group(self, node: SimulatedNode, group: int) -> None:
        for queue_id in self._queue_ids:
            if self.cluster.group_of(queue_id) != group:
                continue
            queue = self.cluster.history.queue(queue_id)
            offset = queue.log_start
            while offset < queue.end:
                read = QueueRead(queue_id, offset, 5000)
                answer = await node.call(node.storage.messages.read([read], 1 << 20), patience=60)
                assert answer is not None, "a read takes too long"
                (found,) = answer
                require(bool(found.batches), f"node {node.node_id}: nothing at {offset} of {queue.end}: {found}")
                self.cluster.history.check_read(
                    f"node {node.node_id}", queue_id, offset, found.batches, found.next_offset
                )
                offset = found.next_offset


class CrashingStory(Story):
    crashes = True


class FirstLevelStory(Story):
    level = FeatureLevel.FIRST


@pytest.mark.parametrize(
    "story", [CrashingStory, *(pytest.param(it, marks=pytest.mark.long) for it in (Story, FirstLevelStory))]
)
@pytest.mark.parametrize("seed", more_at_length([1, 2]))
def test_a_group_without_a_majority_does_not_pin_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, story: type[Story], seed: int
) -> None:
    begin = Settings.__init__

    def five_nodes(settings: Settings, rng: object) -> None:
        begin(settings, rng)  # type: ignore[arg-type]
        settings.nodes, settings.groups = 5, 2
        settings.storage = msgspec.structs.replace(settings.storage, prune_seconds=0.1, checkpoint_seconds=0.3)

    monkeypatch.setattr(Settings, "__init__", five_nodes)
    story(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND]).play()
