"""Bugs to plant, each a small change to the running code, to see that the simulation finds them.

with planted("vote-not-persisted"): play(seed, directory)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import google_crc32c
import numpy

from mainstem.kernel import FetchPlan, ProducerStates, RecordKind
from mainstem.model import Buffer, Outcome, QueueSlice, slot_of
from mainstem.raft import Entry, HardState, RaftCore
from mainstem.raft.log import Log
from mainstem.storage.compacting import compact_files, compact_plan
from mainstem.storage.compacting.compact_plan import CompactionStanding, Flags, Integers, QueueRows
from mainstem.storage.compacting.kept import Kept
from mainstem.storage.compacting.key_rows import KeyRows
from mainstem.storage.compacting.pass_places import KeyColumns
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW, KIND_DATA
from mainstem.storage.queue_store.changes.compactions import CompactionRules
from mainstem.storage.queue_store.changes.store_changes import StoreChanges
from mainstem.storage.queue_store.manifest.copy_on_disk import copied_manifest
from mainstem.storage.queue_store.manifest.database.manifest_database import Entries
from mainstem.storage.queue_store.manifest.database.manifest_seal import Seal
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.manifest.manifest_rows import CopyHeader, Row, rows_in
from mainstem.storage.queues.message_store import LocalMessageStore
from mainstem.storage.split.compaction_log import LocalCompactionLog
from mainstem.storage.state.manifest_queue import RECORDED, REPLAYED, Decided, ManifestQueue
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.write_groups.hard_states import HardStates
from mainstem.storage.write_groups.log_block import LogBlock
from mainstem.storage.write_groups.owners import QueueOwners
from mainstem.storage.write_groups.write_group import WriteGroup


def _ack_before_quorum() -> tuple[type, str, Any]:
    """A leader answers acks=all as soon as its own disk has the block."""

    def durable_here(block: LogBlock) -> None:
        waiting, block.tickets_here, block.tickets = [*block.tickets_here, *block.tickets], [], []
        for ticket in waiting:
            ticket.block_safe()

    return LogBlock, "durable_here", durable_here


def _vote_not_persisted() -> tuple[type, str, Any]:
    """Terms reach the disk, votes do not."""
    save = HardStates.save

    async def save_terms(states: HardStates, changed: Mapping[int, HardState]) -> None:
        await save(states, {group: HardState(state.term, 0) for group, state in changed.items()})

    return HardStates, "save", save_terms


def _truncation_below_commit() -> tuple[type, str, Any]:
    """A follower takes a leader's entries for the end of its log: what it has behind them goes, committed or not."""

    def merge(log: Log, previous_index: int, entries: Sequence[Entry]) -> None:
        if entries and previous_index < log.last_index:
            log.truncate_from(previous_index + 1)
        log.append(entries)

    return Log, "merge", merge


def _serve_before_no_op() -> tuple[type, str, Any]:
    """A leader serves as soon as it is elected, whatever it has not applied yet."""
    return RaftCore, "serves", property(lambda core: core._leadership is not None)


def _split_recorded_anywhere() -> tuple[type, str, Any]:
    """A split counts wherever its blocks begin."""

    def decide(queue: ManifestQueue, group: int, after: int, upto: int, files: Sequence[StoreFile]) -> str:
        split = queue._splits[group]
        decided = split.decided
        if not decided < upto <= split.applied:
            return REPLAYED
        split.move_to(upto)
        queue._pending.setdefault(group, deque()).append(Decided(group, split.applied, decided, upto, tuple(files)))
        for file in files:
            queue._store.orphans.hold(file.name)
        queue._wake.set()
        return RECORDED

    return ManifestQueue, "decide", decide


def _prune_before_manifest() -> tuple[type, str, Any]:
    """Pruning relies on what was decided, not on what the manifest has."""
    return ManifestQueue, "written", lambda queue, group: queue._splits[group].applied


def _producer_state_lost_at_failover() -> tuple[type, str, Any]:
    """A new leader knows no producer."""
    begin = WriteGroup.begin_serving

    def begin_serving(group: WriteGroup, term: int, next_index: int) -> None:
        states: ProducerStates = group.producers
        states.expire(1 << 62, len(states))
        states.set_cold([])
        begin(group, term, next_index)

    return WriteGroup, "begin_serving", begin_serving


def _refuse_what_may_be_committed() -> tuple[type, str, Any]:
    """A leader that is deposed refuses everything that it has not seen committed."""
    stop = WriteGroup.stop_serving

    def stop_serving(group: WriteGroup, outcome: Outcome, error: Exception) -> None:
        stop(group, outcome, error)
        for block in group.blocks.all_held():
            block.given_up(group.group, outcome, error)

    return WriteGroup, "stop_serving", stop_serving


def _dropped_outlives_a_snapshot() -> tuple[type, str, Any]:
    """Records that retention dropped once stay dropped, whatever a snapshot says."""
    supersede = StoreChanges.supersede

    async def leaving_out(
        changes: StoreChanges, group: int, position: int, ranges: Entries, kept_upto: int = 0
    ) -> None:
        dropped = set(changes._stored.manifest.dropped)
        kept = [entry for entry in ranges if entry[2].name not in dropped]
        await supersede(changes, group, position, kept, kept_upto)

    return StoreChanges, "supersede", leaving_out


def _owner_epoch_not_checked() -> tuple[type, str, Any]:
    """A write group grants owner epochs, and takes whatever comes."""
    return QueueOwners, "admits", lambda owners, queue_id, owner_epoch: True


def _manifest_not_summed() -> tuple[type, str, Any]:
    """A start takes whatever rows a manifest has, if sqlite finds nothing wrong with them."""
    return Seal, "_written", lambda seal, connection, tables: seal._to_write(connection, tables)


def _copy_not_checked() -> tuple[ModuleType, str, Any]:
    """A manifest is made of whatever bytes its copy has."""

    def believed(body: bytes, header: CopyHeader) -> Iterator[Row]:
        return rows_in(body, header._replace(size=len(body), crc=google_crc32c.value(body)))

    return copied_manifest, "rows_in", believed


def _input_removed_before_the_replace() -> tuple[type, str, Any]:
    """The inputs of a merge go before the manifest has its outputs."""
    merge = StoreChanges.merge

    async def removing(
        changes: StoreChanges, group: int, inputs: Sequence[FileRange], outputs: Sequence[StoreFile], *rest: Any
    ) -> None:
        for entry in inputs:
            await changes._stored.remove(changes._stored.search.known(entry.name))
        await merge(changes, group, inputs, outputs, *rest)

    return StoreChanges, "merge", removing


def _output_left_out() -> tuple[type, str, Any]:
    """The manifest is not told of the last file of a merge."""
    merge = Manifest.merge

    async def leaving_out(
        manifest: Manifest, group: int, inputs: Sequence[FileRange], outputs: Sequence[StoreFile]
    ) -> list[str]:
        return await merge(manifest, group, inputs, outputs[:-1])

    return Manifest, "merge", leaving_out


def _merged_for_another_group() -> tuple[type, str, Any]:
    """If two write groups have split something, a merged file of one is counted for the other."""
    merge = Manifest.merge

    async def misplacing(
        manifest: Manifest, group: int, inputs: Sequence[FileRange], outputs: Sequence[StoreFile]
    ) -> list[str]:
        if not manifest.spans(group + 1):
            return await merge(manifest, group, inputs, outputs)
        after, upto = min(entry.after for entry in inputs), max(entry.upto for entry in inputs)
        misplaced = [(after, upto, file) for file in outputs]
        return await manifest._exchange({group: (inputs, []), group + 1: ([], misplaced)}, None)

    return Manifest, "merge", misplacing


def _tombstone_gone_early() -> tuple[ModuleType, str, Any]:
    """A pass lets tombstones go with the next one, whatever `delete.retention.ms` says."""
    queue_rows = compact_plan._queue_rows

    def at_once(found: CompactionStanding, chosen: Flags, now_ms: int) -> QueueRows:
        rows = queue_rows(found, chosen, now_ms)
        rows["horizon_ms"] = now_ms
        return rows

    return compact_plan, "_queue_rows", at_once


def _tombstone_leaves_its_value() -> tuple[ModuleType, str, Any]:
    """Tombstones go before anybody looks for the latest record of a key."""
    columns = compact_files._columns

    def without(
        found: KeyRows, queue_ids: QueueIds, may_go: Flags, passed_over: Flags, number: int, now_ms: int
    ) -> KeyColumns:
        made = columns(found, queue_ids, may_go, passed_over, number, now_ms)
        kinds = found.rows["kind"]
        has_key = (kinds == RecordKind.TOMBSTONE) | (kinds == RecordKind.VALUE)
        has_key &= ~numpy.repeat(passed_over[found.first_batch :][: len(found.counts)], found.counts)
        judged = numpy.repeat(may_go[found.first_batch :][: len(found.counts)], found.counts)
        stays = ~(judged & (kinds == RecordKind.TOMBSTONE))[has_key]
        return KeyColumns(*(column[stays] for column in made))

    return compact_files, "_columns", without


def _batch_lost_in_a_rewrite() -> tuple[type, str, Any]:
    """Of the first of several batches nothing stays."""
    rulings = Kept.rulings

    def losing(kept: Kept, batches: Integers, *rest: Any) -> Integers:
        made = rulings(kept, batches, *rest)
        if len(made) > 2:
            made[0, 1] = made[0, 0]
        return made

    return Kept, "rulings", losing


def _batch_left_out_of_a_log() -> tuple[type, str, Any]:
    """Nobody is told of which topics no batch may be left out."""
    rules = LocalCompactionLog._rules

    async def without(log: LocalCompactionLog, *, covers: bool) -> CompactionRules:
        return (await rules(log, covers=covers))._replace(covered=frozenset())

    return LocalCompactionLog, "_rules", without


Plant = Callable[[], tuple[type | ModuleType, str, Any]]
"""Makes a bug: where it goes, the name it takes the place of, and what stands there then."""


def _served_before_it_is_committed() -> tuple[type, str, Any]:
    """A follower serves readers all that its log has, committed or not."""
    read = LocalMessageStore.read_at_once

    def read_at_once(store: LocalMessageStore, plan: FetchPlan) -> None:
        wanted = plan.pending() if plan.from_followers else None
        if wanted is not None:
            group = store._groups[store._slots[slot_of(wanted.queue_id)]]
            offsets = store._read_path.offsets(wanted.queue_id)
            if group.followed() is not None and offsets is not None and wanted.offset >= offsets.high_watermark:
                found = undecided(group, wanted.queue_id, wanted.offset)
                plan.put(QueueSlice(wanted.queue_id, Outcome.OK, found, offsets, None, 1 << 40))
        read(store, plan)

    return LocalMessageStore, "read_at_once", read_at_once


def undecided(group: WriteGroup, queue_id: int, offset: int) -> list[Buffer]:
    """The batches of a queue from an offset on that a write group's log has here, and that are not applied."""
    found: list[Buffer] = []
    for block in group.blocks.unapplied(group.applied_index):
        if block.kind == KIND_DATA and block.payload is not None:
            rows = numpy.frombuffer(block.directory, DIRECTORY_ROW)
            ends = rows["base_offset"] + rows["last_offset_delta"]
            for row in rows[(rows["queue_id"] == queue_id) & (ends >= offset)]:
                found.append(bytes(block.payload)[row["position"] : row["position"] + row["length"]])
    return found


def _returned_replicas_vote() -> tuple[type, str, Any]:
    """A replica that returns to a node is taken for a new one, which never acknowledged anything."""
    return HardStates, "returned", lambda _states, _group: False


PLANTS: dict[str, Plant] = {
    "ack-before-quorum": _ack_before_quorum,
    "vote-not-persisted": _vote_not_persisted,
    "truncation-below-commit": _truncation_below_commit,
    "serve-before-no-op": _serve_before_no_op,
    "split-recorded-anywhere": _split_recorded_anywhere,
    "prune-before-manifest": _prune_before_manifest,
    "producer-state-lost-at-failover": _producer_state_lost_at_failover,
    "refuse-what-may-be-committed": _refuse_what_may_be_committed,
    "owner-epoch-not-checked": _owner_epoch_not_checked,
    "manifest-not-summed": _manifest_not_summed,
    "copy-not-checked": _copy_not_checked,
    "input-removed-before-the-replace": _input_removed_before_the_replace,
    "output-left-out": _output_left_out,
    "merged-for-another-group": _merged_for_another_group,
    "tombstone-gone-early": _tombstone_gone_early,
    "tombstone-leaves-its-value": _tombstone_leaves_its_value,
    "batch-lost-in-a-rewrite": _batch_lost_in_a_rewrite,
    "batch-left-out-of-a-log": _batch_left_out_of_a_log,
    "served-before-it-is-committed": _served_before_it_is_committed,
}


RETURN_PLANTS: dict[str, Plant] = {"dropped-outlives-a-snapshot": _dropped_outlives_a_snapshot}
"""Found where write groups leave a node and come back, with retention in between."""

RETURNED_PLANTS: dict[str, Plant] = {"returned-replicas-vote": _returned_replicas_vote}
"""Found where a replica returns to a node that it was moved away from."""

BREAKS = {
    "returned-replicas-vote": "J",
    "dropped-outlives-a-snapshot": "F",
    "ack-before-quorum": "A",
    "vote-not-persisted": "N",
    "truncation-below-commit": "N",
    "serve-before-no-op": "BC",
    "split-recorded-anywhere": "FB",
    "prune-before-manifest": "G",
    "producer-state-lost-at-failover": "D",
    "refuse-what-may-be-committed": "RD",
    "owner-epoch-not-checked": "O",
    "manifest-not-summed": "F",
    "copy-not-checked": "F",
    "input-removed-before-the-replace": "F",
    "output-left-out": "F",
    "merged-for-another-group": "F",
    "tombstone-gone-early": "L",
    "tombstone-leaves-its-value": "L",
    "batch-lost-in-a-rewrite": "L",
    "batch-left-out-of-a-log": "L",
    "served-before-it-is-committed": "B",
}
"""Per planted bug the letters of the invariants it breaks: it is found by a check of one of these, by nothing else."""


@contextmanager
def planted(name: str, plants: Mapping[str, Plant] = PLANTS) -> Iterator[None]:
    """Have one of these bugs for a while. Raises KeyError for one that does not exist."""
    where, attribute, bug = plants[name]()
    before = where.__dict__[attribute]
    setattr(where, attribute, bug)
    try:
        yield
    finally:
        setattr(where, attribute, before)
