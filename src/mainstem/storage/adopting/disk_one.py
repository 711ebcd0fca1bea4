"""Writes to an empty disk 1 what a storage role starts from that goes on behind what the object store has of a cluster.

    remote manifest    what counts, as the chain has it
    hard states        a term that no leader of the lost cluster can have had, and no vote
    lost_blocks        where the queues are to go on: they are raised to `raised_to` when they are served first
    checkpoint         queues with their log starts and ends; logs that are empty behind the last split; no producers

The checkpoint comes last: without it, a node finds a disk with no messages, and no queue of any.

Offsets behind the last split were given out, and consumers may have seen them: so each queue goes on far behind them,
and a consumer that stands in the gap gets what comes next.
"""

from __future__ import annotations

import numpy

from mainstem.model import topic_number_of
from mainstem.ports import Files
from mainstem.raft import HardState
from mainstem.storage.adopting.lost_cluster import LostCluster
from mainstem.storage.adopting.queue_stays import moves_of
from mainstem.storage.journal.journal_map import MapImage, Mark
from mainstem.storage.remote.decided.remote_state import Noted, Notes
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.repair.lost_blocks import Loss, LostBlocks, LostPart
from mainstem.storage.state import checkpoint
from mainstem.storage.state.manifest_queue import SplitImage
from mainstem.storage.state.queue_image import QueueImage
from mainstem.storage.write_groups.hard_states import HardStates
from mainstem.storage.write_groups.write_group import WriteGroupState

GAP_BITS = 32
"""A queue that has a gap of 2^32 offsets takes in no more records before they are split."""


def raised_to(cluster: LostCluster) -> int:
    """The offset at which all queues go on: behind the end of the longest there is 2^32 free, or more. The same on all
    nodes, and whoever has raised a queue there finds it so."""
    return ((int(cluster.queues[:, 2].max(initial=0)) >> GAP_BITS) + 2) << GAP_BITS


async def write_disk_one(
    files: Files, remote_manifest_path: str, cluster: LostCluster, node_id: int, now_ms: int, *, raises: bool
) -> None:
    """Write disk 1 of node `node_id`, which must be empty; `raises`: whether the queues go on at `raised_to`, or at
    their ends. Durable when it returns. Raises `StorageError`, OSError: then nothing may start on it."""
    await _write_rows(remote_manifest_path, cluster, now_ms)
    groups = range(cluster.write_groups)
    hard_states = await HardStates.open(files, node_id)
    try:
        await hard_states.save({group: HardState(cluster.term) for group in groups})
    finally:
        await hard_states.close()
    if raises:
        await _note_raise(files, cluster)
    applied = tuple(map(cluster.upto, groups))
    nothing = (0,) * cluster.write_groups
    state = checkpoint.State(
        position=0,
        durable=0,
        groups={group: WriteGroupState(cluster.term if upto else 0, upto, []) for group, upto in enumerate(applied)},
        journal_map=MapImage(Mark(0, 0, applied, applied, nothing, -1), []),
        splits=[SplitImage(upto, upto, []) for upto in applied],
        node_id=node_id,
        remote_numbers={group: number for group, number in enumerate(cluster.numbers()) if number},
        moves=moves_of(cluster.histories),
    )
    await checkpoint.save(files, state, _queues(cluster))


async def _write_rows(path: str, cluster: LostCluster, now_ms: int) -> None:
    """Names that do not count get the present time: what is left of them is looked for again a day later."""
    tier = await RemoteTier.open(path, lambda: now_ms)
    try:
        for group, found in enumerate(cluster.tiers):
            if found is not None:
                intended, leaving = (
                    {name: Noted(noted.epoch, now_ms) for name, noted in names.items()} for names in found.notes[:2]
                )
                notes = Notes(intended, leaving, given_up=found.notes.given_up)
                await tier.supersede(group, found.position, notes, found.files)
    finally:
        await tier.close()


async def _note_raise(files: Files, cluster: LostCluster) -> None:
    """Have the write groups raise the ends of all their queues (`write_group.raises`)."""
    lost, offset = await LostBlocks.open(files), raised_to(cluster)
    parts = [
        LostPart(
            group,
            cluster.upto(group) + 1,
            0,
            raised_to=offset,
            topics_below=cluster.next_number,
            known=False,
            given_up=True,
        )
        for group in range(cluster.write_groups)
    ]
    await lost.note_raise(Loss(0, 0, 0, "the cluster went on from its object store", parts, replaced=True))


def _queues(cluster: LostCluster) -> QueueImage:
    ranges = numpy.array([(topic.number, 0, topic.partitions) for topic in cluster.topics], numpy.int64)
    existing = {topic.number for topic in cluster.topics}
    there = [topic_number_of(queue_id) in existing for queue_id in cluster.queues[:, 0].tolist()]
    queues = cluster.queues[numpy.array(there, bool)][:, [0, 2, 1]]
    return QueueImage([ranges.tobytes()], [numpy.ascontiguousarray(queues).tobytes()])
