"""Bugs of the remote tier to plant, to see that the simulation finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import ModuleType
from typing import Any

from tests.simulation.cluster.planted import Plant, planted

from mainstem.storage.object_stores.errors import ObjectStoreError
from mainstem.storage.remote.chain.chain_format import encode_change
from mainstem.storage.remote.decided import remote_changes, remote_tier
from mainstem.storage.remote.decided.remote_changes import WantedChange
from mainstem.storage.remote.decided.remote_state import RECORDED, REPLAYED, RemotePosition, RemoteState
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.remote.remote_upkeep import RemoteUpkeep
from mainstem.storage.split.tier_log import LocalTierLog
from mainstem.storage.store_files.object_names import change_object, file_objects
from mainstem.storage.upkeep.local_copies import LocalCopies
from mainstem.storage.upkeep.remote_files import TierFiles
from mainstem.storage.write_groups.control import RemoteChanged


def _intents_of_any_epoch() -> tuple[type, str, Any]:
    """Files count whoever intended them, and whenever."""
    fault = RemoteState._fault

    def blind(state: RemoteState, group: int, change: RemoteChanged, counts: Callable[[str], bool]) -> str:
        files = [file.name for span in change.spans for file in span.files]
        before = dict(state.intended)
        for name in files:
            if name in before:
                state.intended[name] = before[name]._replace(epoch=change.epoch)
        found = fault(state, group, change, counts)
        state.intended.clear()
        state.intended.update(before)
        return "" if found.endswith(f"by the leader of term {change.epoch}") else found

    return RemoteState, "_fault", blind


def _uploads_outlive_their_epoch() -> tuple[type, str, Any]:
    """A node that leads again goes on with what it uploaded in an earlier term."""
    next_unit = LocalTierLog._next_unit

    async def going_on(log: LocalTierLog, group: int, epoch: int, **rest: Any) -> Any:
        uploading = log._uploading.get(group)
        if uploading is not None:
            uploading.epoch = epoch
        done = dict(uploading.done) if uploading is not None else {}
        found = await next_unit(log, group, epoch, **rest)
        if found is not None and found is uploading:
            found.done = done
        return found

    return LocalTierLog, "_next_unit", going_on


def _uploads_are_not_forgotten() -> tuple[type, str, Any]:
    """…and has not forgotten it meanwhile."""
    return LocalTierLog, "_forget", lambda log, group: None


def _deleted_before_it_is_gone() -> tuple[type, str, Any]:
    """A leader deletes objects of files first, and has the log say so afterwards."""
    record = RemoteTier.record

    async def deleting(tier: RemoteTier, group: int, *, gone: Sequence[str] = (), **rest: Any) -> str:
        if gone and tier.store is not None:
            await tier.store.delete([one for name in gone for one in file_objects(group, name)])
        return await record(tier, group, gone=gone, **rest)

    return RemoteTier, "record", deleting


def _numbers_not_counted_on() -> tuple[ModuleType, str, Any]:
    """A leader gives a change the number of the last one."""
    commands = remote_changes.commands

    def again(wanted: WantedChange, position: RemotePosition, epoch: int, bytes_max: int) -> list[RemoteChanged]:
        return commands(wanted, position._replace(number=max(position.number - 1, 0)), epoch, bytes_max)

    return remote_tier, "commands", again


def _numbers_given_twice() -> tuple[type, str, Any]:
    """…and everybody lets the later of two changes of a number count."""
    verdict = RemoteState.verdict

    def again(state: RemoteState, group: int, change: RemoteChanged, counts: Callable[[str], bool]) -> str:
        found = verdict(state, group, change, counts)
        return RECORDED if found == REPLAYED and change.number == state.position.number else found

    return RemoteState, "verdict", again


def _what_is_on_its_way_deleted() -> tuple[type, str, Any]:
    """A leader deletes what is intended, also in its own term."""

    def over(upkeep: RemoteUpkeep, group: int) -> list[str]:
        upkeep._deleted_once.setdefault(group, (0, set()))
        return list(upkeep._tier.intended(group))

    return RemoteUpkeep, "_over", over


def _local_files_need_not_be_remote() -> tuple[type, str, Any]:
    """Local copies go without a look at the remote indexes…"""

    async def are_remote(copies: LocalCopies, *rest: Any) -> bool:
        return True

    return LocalCopies, "_are_remote", are_remote


def _local_files_go_ahead_of_upto() -> tuple[type, str, Any]:
    """…and wherever their blocks lie."""
    return TierFiles, "upto", lambda files, group: 1 << 60


def _counts_before_it_is_uploaded() -> tuple[type, str, Any]:
    """A node takes all that it gave out for uploaded, whatever is handed in."""
    take_in = LocalTierLog._take_in

    async def believing(
        log: LocalTierLog, group: int, uploading: Any, piece: Any, names: Sequence[str], failure: str
    ) -> str:
        return await take_in(log, group, uploading, piece, tuple(piece.files), failure)

    return LocalTierLog, "_take_in", believing


def _not_looked_up() -> tuple[type, str, Any]:
    """…and does not look whether the store has it."""

    async def look_up(log: LocalTierLog, group: int, store: Any, files: Mapping[str, Any]) -> None:
        return None

    return LocalTierLog, "_look_up", look_up


def _chained_before_it_is_committed() -> tuple[type, str, Any]:
    """A leader writes changes to the chain as soon as it wants them."""
    propose = RemoteTier._propose

    async def chaining(tier: RemoteTier, group: int, wanted: WantedChange, *, at_once: bool) -> str:
        assert tier._ways is not None
        if tier.store is not None:
            for change in remote_changes.commands(wanted, tier.position(group), tier._ways.groups[group].term):
                with suppress(ObjectStoreError):
                    await tier.store.write(change_object(group, change.number), encode_change(group, change))
        return await propose(tier, group, wanted, at_once=at_once)

    return RemoteTier, "_propose", chaining


TIER_PLANTS: Mapping[str, Sequence[Plant]] = {
    "older-epoch-accepted": (
        _intents_of_any_epoch,
        _uploads_outlive_their_epoch,
        _uploads_are_not_forgotten,
        _not_looked_up,
    ),
    "deleted-before-it-is-gone": (_deleted_before_it_is_gone,),
    "number-given-twice": (_numbers_not_counted_on, _numbers_given_twice),
    "orphan-that-counts-deleted": (_what_is_on_its_way_deleted, _not_looked_up),
    "chained-before-it-is-committed": (_chained_before_it_is_committed,),
    "local-file-dropped-early": (_local_files_need_not_be_remote, _local_files_go_ahead_of_upto),
    "counts-before-it-is-uploaded": (_counts_before_it_is_uploaded, _not_looked_up),
}

MESSAGES = {
    "older-epoch-accepted": "the log at|is not in the store",
    "deleted-before-it-is-gone": "is deleted, and the log of write group",
    "number-given-twice": "the log at|others were at",
    "orphan-that-counts-deleted": "is not in the store",
    "chained-before-it-is-committed": "says something else than the log|the log has",
    "local-file-dropped-early": "a hole in the split history|nothing at",
    "counts-before-it-is-uploaded": "is not in the store",
}
"""The message about them: a regular expression."""


@contextmanager
def planted_in_the_tier(name: str) -> Iterator[None]:
    """Have one of these bugs for a while."""
    with ExitStack() as stack:
        for number, plant in enumerate(TIER_PLANTS[name]):
            stack.enter_context(planted(str(number), {str(number): plant}))
        yield
