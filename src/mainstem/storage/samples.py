"""The storage role's measurements, for `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator

from mainstem.kernel import KERNEL
from mainstem.model import HistogramSample, Sample
from mainstem.storage.remote.shared_queue_store import SharedQueueStore
from mainstem.storage.role import Storage


class StorageSamples:
    """The measurements of one node's storage role."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def samples(self) -> Iterator[Sample | HistogramSample]:
        """Current values of the whole role. Reads plain numbers, so any thread may call it."""
        storage = self._storage
        messages = storage.messages
        yield Sample("mainstem_kernel_info", "gauge", "1 for the kernel that is active", 1, (("kernel", KERNEL),))
        yield Sample(
            "mainstem_append_bytes_total", "counter", "Bytes of record batches appended", messages.appended_bytes
        )
        yield Sample("mainstem_append_batches_total", "counter", "Record batches appended", messages.appended_batches)
        yield Sample(
            "mainstem_append_refused_batches_total",
            "counter",
            "Record batches refused because storage was busy, full or failed",
            messages.refused_batches,
        )
        yield Sample(
            "mainstem_append_passed_on_batches_total",
            "counter",
            "Record batches that came to a former leader, and that the next one got from it",
            messages.hand_overs.passed_on_batches,
        )
        for group in storage.groups:
            label = (("group", str(group.group)),)
            yield Sample("mainstem_write_group_term", "gauge", "Term of a write group's log", group.term, label)
            yield Sample(
                "mainstem_write_group_served",
                "gauge",
                "1 while this node takes batches for a write group",
                group.serving,
                label,
            )
            for peer in group.consensus.peers():
                yield Sample(
                    "mainstem_write_group_replica_lag_blocks",
                    "gauge",
                    "Blocks that another replica is not known to hold, as its leader sees it",
                    max(0, group.last_index - peer.match_index),
                    (*label, ("node", str(peer.node_id))),
                )
        for tier, count in storage.read_path.served.items():
            yield Sample(
                "mainstem_fetch_slices_total",
                "counter",
                "Partition reads that returned data, by the tier that served them",
                count,
                (("tier", tier.value),),
            )
        for tier, size in storage.read_path.served_bytes.items():
            yield Sample(
                "mainstem_fetch_bytes_total",
                "counter",
                "Bytes of record batches read, by the tier that served them",
                size,
                (("tier", tier.value),),
            )
        yield Sample("mainstem_write_cache_bytes", "gauge", "Bytes held by the write cache", storage.index.cached_bytes)
        yield Sample(
            "mainstem_write_backlog_bytes",
            "gauge",
            "Bytes appended and not yet durable",
            storage.write_loop.backlog_bytes,
        )
        yield Sample("mainstem_indexed_blocks", "gauge", "Blocks indexed in memory", len(storage.index))
        yield Sample("mainstem_queues", "gauge", "Queues on this node", len(storage.table))
        yield Sample(
            "mainstem_storage_failed",
            "gauge",
            "1 when the disk failed and the node accepts no more writes",
            0 if storage.failure is None else 1,
        )
        yield Sample(
            "mainstem_disk_refusing",
            "gauge",
            "1 while produce is refused because disk 1 is nearly full",
            int(messages.refusing or storage.write_loop.out_of_space),
        )
        for positions in storage.split_log.positions():
            label = (("group", str(positions.group)),)
            yield Sample(
                "mainstem_split_lag_bytes", "gauge", "Journal bytes not yet split", positions.unsplit_bytes, label
            )
            for name in ("committed", "split", "pruned"):
                yield Sample(
                    f"mainstem_write_group_{name}_index",
                    "gauge",
                    f"Last {name} block of a write group",
                    getattr(positions, name),
                    label,
                )
        yield Sample("mainstem_checkpoints_total", "counter", "Checkpoints written", storage.checkpointer.saved)
        yield Sample(
            "mainstem_pruned_segments_total",
            "counter",
            "Journal segments recycled",
            storage.pruning.pruned_segments,
        )
        yield Sample(
            "mainstem_rewritten_blocks_total",
            "counter",
            "Undecided blocks of write groups without a majority, written again at the journal's head",
            storage.rewriting.rewritten_blocks,
        )
        yield from storage.maintenance.samples()
        yield from storage.damage.samples()
        yield from storage.waiting.samples()
        yield from storage.scrubber.samples()
        yield from storage.pacing.samples()
        yield from storage.journal.samples()
        yield from storage.queue_store.samples()
        yield from storage.lost_files.samples()
        if isinstance(storage.store_work, SharedQueueStore):
            yield from storage.store_work.samples()
        yield from storage.store_work.merges.samples()
        yield from storage.store_work.compactions.samples()
        if storage.remote_history is not None:
            yield from storage.remote_history.samples()
        yield from storage.remote.samples()
        if storage.remote_upkeep is not None:
            yield from storage.remote_upkeep.samples()
        if storage.remote_chain is not None:
            yield from storage.remote_chain.samples()
        if storage.topic_lists is not None:
            yield from storage.topic_lists.samples()
        if storage.owner_beats is not None:
            yield from storage.owner_beats.samples()
        yield from storage.remote_retention.samples()
        yield from storage.local_copies.samples()
        yield from storage.tier_log.samples()
        yield from storage.snapshots.samples()
        yield from storage.repair.samples()
        yield from storage.producers.samples()
        yield from storage.awaited_producers.samples()
        yield from storage.agreed_clock.samples()
