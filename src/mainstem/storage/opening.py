"""A storage role opens: the files of both disks, then what they hold, then what of it may be served.

Damaged blocks that another node has are made whole before the journal is read; what stays lost is judged write group by
write group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeVar

from mainstem.late import Late
from mainstem.storage.errors import CorruptJournal, StorageError, StorageFailed
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.journal_map import JournalMap
from mainstem.storage.journal.segments.segment_files import DIRECTORY as JOURNAL
from mainstem.storage.journal.segments.segment_files import SEGMENT
from mainstem.storage.parts import Disks, StorageParts
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.reading.pacing import Lane, Pacing
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.remote.reading.remote_history import RemoteHistory
from mainstem.storage.repair.giving_up import GivingUp
from mainstem.storage.repair.journal_damage import mend_hole
from mainstem.storage.repair.losses import refused
from mainstem.storage.repair.lost_blocks import LostBlocks
from mainstem.storage.setup import StorageSetup
from mainstem.storage.state.logs_behind import check_replicas, rejoin_store
from mainstem.storage.state.state_recovery import RecoveredState
from mainstem.storage.upkeep.lost_store_files import LostStoreFiles
from mainstem.storage.upkeep.remote_files import TierFiles
from mainstem.storage.write_groups.hard_states import HardStates

log = logging.getLogger(__name__)

MENDED_AT_START_MAX = 16
"""Damaged blocks that one start makes whole: each costs it a walk through the journal. With more, the start reports the
rest, and the next start goes on."""

Role = TypeVar("Role", bound=StorageParts)


async def opened(setup: StorageSetup, make: Callable[[StorageSetup, Disks], Role]) -> Role:
    """The parts that `make` makes on both disks, with all that they hold. Raises a `StorageError` naming file and place
    when durable data cannot be read back, and no other node can give it."""
    consensus, files = setup.consensus, setup.write_files
    lost = await LostBlocks.open(files)
    giving_up = GivingUp(files, consensus.calls, consensus.node_id, consensus.others)
    judge = giving_up.judge if consensus.calls is not None else None
    for part in await lost.replace(setup.clock.now_ms(), judge):
        if consensus.forgotten is not None:
            await consensus.forgotten.got_back(part.group)
    segments = {int(name[:20]) for name in await files.names(JOURNAL) if name.endswith(SEGMENT)}
    await lost.look(segments)
    for _ in range(MENDED_AT_START_MAX):
        try:
            return await _attempt(setup, lost, make, over_holes=False)
        except CorruptJournal as error:
            if error.hole is None or not await mend_hole(files, error.hole, consensus.calls, consensus.others):
                break
            await lost.look(segments)
    return await _attempt(setup, lost, make, over_holes=True)


async def _attempt(
    setup: StorageSetup, lost: LostBlocks, make: Callable[[StorageSetup, Disks], Role], *, over_holes: bool
) -> Role:
    async with AsyncExitStack() as stack:
        role = make(setup, await _open_disks(setup, lost, stack))
        await _recover(role, over_holes=over_holes)
        stack.pop_all()
    return role


async def _open_disks(setup: StorageSetup, lost: LostBlocks, stack: AsyncExitStack) -> Disks:
    """`stack` closes the files, unless they are taken over."""
    hard_states = await HardStates.open(setup.write_files, setup.consensus.node_id)
    stack.push_async_callback(hard_states.close)
    # the metadata of this start may not have heard again of the last write groups that began here
    journal_map = JournalMap(max(setup.placement().groups, hard_states.numbers_end))
    sync_failed = Late[[StorageFailed], None]()
    journal = await Journal.open(
        setup.write_files,
        setup.clock,
        setup.journal_config,
        supervision=setup.supervision,
        dead=journal_map.dead,
        sync_failed=sync_failed,
    )
    stack.push_async_callback(journal.close)
    pacing = Pacing(
        setup.clock,
        slowdown_max=setup.config.background_slowdown_max,
        bytes_per_second_min=setup.config.background_bytes_per_second_min,
    )
    store = await QueueStore.open(
        setup.store_files,
        setup.manifest_path,
        setup.store_config,
        setup.clock,
        partial(pacing.take, Lane.DISK),
        setup.supervision,
        setup.new_id,
        setup.manifest_page_files,
    )
    stack.push_async_callback(store.close)
    remote = await RemoteTier.open(
        setup.remote_manifest_path, setup.clock.now_ms, setup.remote_store, setup.new_id, setup.manifest_page_files
    )
    stack.push_async_callback(remote.close)
    remote_history = None
    if setup.remote_store is not None:
        remote_history = await RemoteHistory.open(
            remote,
            setup.remote_store,
            setup.read_cache_config,
            setup.clock,
            setup.store_files,
            setup.supervision,
        )
        stack.push_async_callback(remote_history.close)
    lost_files = await LostStoreFiles.open(
        setup.write_files, setup.store_files, store, setup.clock, TierFiles(remote, None)
    )
    return Disks(
        journal, journal_map, hard_states, store, remote, remote_history, pacing, lost, lost_files, sync_failed
    )


async def _recover(role: StorageParts, *, over_holes: bool) -> None:
    recovered = await role.recovery.run(over_holes=over_holes, before_cut=partial(_end_cut, role))
    await _judge(role, recovered)
    role.write_loop.recovered(recovered.end)
    role.checkpointer.recovered(recovered.checkpoint_position)
    check_replicas(
        role.groups,
        role.state.manifest.journal_index,
        lambda group: (
            role.has_alone(group)
            or role.hard_states.left(group)
            or group in recovered.torn
            or role.setup.consensus.has_lost(group)
        ),
    )
    await _recover_remote_files(role, recovered.remote_numbers)
    await role.state.manifest.begin_behind_remote(lambda group: role.remote.position(group).upto)
    if await rejoin_store(
        role.groups, role.state.table, role.state.manifest.written, role.stored, role.placement, role.setup.topics,
        lambda group: role.has_alone(group) and group not in role.waiting,
    ):  # fmt: skip
        await role.checkpointer.save()
    log.info(
        "storage recovered: %d blocks in the logs, %d indexed, %d queues, %d write groups",
        recovered.blocks_logged,
        recovered.blocks_indexed,
        len(role.state.table),
        len(role.groups),
    )


async def _recover_remote_files(role: StorageParts, numbers: Mapping[int, int]) -> None:
    """Fetch from other replicas what the remote tier's manifest lacks. `numbers`: the changes that the checkpoint
    relies on, by write group. Raises `StorageError` when nobody gives it."""
    for group, number in role.remote.lacking(numbers).items():
        if role.hard_states.left(group) or await role.remote_recovery.recover(group, number):
            continue
        path = role.setup.remote_manifest_path
        raise StorageError(
            f"{path}: the remote tier's manifest has changes of write group {group} up to "
            f"{role.remote.position(group).number}, the checkpoint up to {number}: it is missing, or an older copy. "
            "Restore write_dir as a whole, or start a node that has another replica of the write group: this one "
            "fetches what it lacks from there"
        )


async def _end_cut(role: StorageParts, what: str) -> None:
    """The bytes that a start cuts off at the journal's end were torn, or acknowledged and damaged since: other nodes
    may rely on it. Noted before the journal is changed: the start after this one could not tell any more."""
    forgotten = role.setup.consensus.forgotten
    if forgotten is None or all(role.has_alone(group.group) for group in role.groups):
        return
    why = f"the journal ends at {what}: a write was torn there, or went bad since"
    log.warning("%s; until the leaders of its write groups have told what it lacks, this node has no vote", why)
    await forgotten.ends_lost(why)


async def _judge(role: StorageParts, recovered: RecoveredState) -> None:
    """Decide which write groups must wait because the journal lacks blocks of theirs. Raises `CorruptJournal` when
    none is left to be served, and `StorageError`."""
    for hole in recovered.holes:
        role.damage.hole(hole.start, hole.end)
    await role.losses.found(recovered)
    missing = {
        group: (upto, name) for group, (upto, name) in recovered.missing.items()
        if not role.losses.given_up(group, upto, name)
    }  # fmt: skip
    for group in recovered.missing.keys() - missing.keys():
        upto, name = recovered.missing[group]
        log.warning("write group %d: blocks up to %d, gone with journal/%s, are given up", group, upto, name)
        role.state.split(group, role.state.manifest.reached(group), upto, ())
    concerned = {*recovered.torn, *missing, *(place.group for place in recovered.unread)}
    concerned = {group for group in concerned if not role.hard_states.left(group)}
    alone = {group for group in concerned if role.has_alone(group)}
    if len(alone) == len(role.groups):
        raise refused(CorruptJournal(
            f"{next(iter(recovered.reasons()))}. All write groups may have lost blocks, and no other node has "
            "them. Nothing was given up: restore the file", alone,
        ), role.lost)  # fmt: skip
    unread = [place for place in recovered.unread if place.group in concerned]
    for place in unread:
        role.damage.lost(place)
    role.waiting.for_blocks(unread)
    for group, (upto, name) in missing.items():
        what = f"journal/{name} is missing, and with it blocks up to {upto} that are not split"
        if group in alone:
            role.waiting.for_file(group, what, torn=False)
        elif group in concerned:
            lost_run = f"lost-{group}-{upto}.run"
            log.error("write group %d: %s; run %s is made of them from other replicas", group, what, lost_run)
            await role.state.manifest.lose(group, upto, lost_run, what)
    for group in concerned & recovered.torn.keys():
        if group in alone:
            role.waiting.for_file(group, recovered.torn[group], torn=True)
        else:
            role.waiting.for_leader(group)
    for group, why in role.lost.undecided.items():
        if not role.has_alone(group) and not role.hard_states.left(group):
            role.waiting.for_answer(group, why)
    torn = {group: what for group, what in recovered.torn.items() if group in concerned - alone}
    if torn:
        forgotten = role.setup.consensus.forgotten
        if forgotten is None:
            raise CorruptJournal(f"{next(iter(torn.values()))}: restore the file, or replace the node", torn)
        await forgotten.blocks_lost(torn, len(role.groups), next(iter(torn.values())))
    role.waiting.tell()
