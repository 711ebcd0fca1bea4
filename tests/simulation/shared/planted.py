"""Bugs of the shared store to plant, to see that the simulation finds them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
from tests.simulation.cluster.planted import Plant, planted
from tests.simulation.cluster.run import LEFT_BEHIND
from tests.simulation.tiered.planted import TIER_PLANTS

from mainstem.rpc.messages.split import FileDescription, WriteGroupRange
from mainstem.storage.queue_store.manifest.database.manifest_database import Entries
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.remote.decided.remote_state import RECORDED, Notes, RemotePosition, RemoteState
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.remote.remote_upkeep import RemoteUpkeep
from mainstem.storage.remote.shared_queue_store import SharedChanges
from mainstem.storage.split.split_recording import SharedRecording
from mainstem.storage.state.shared_splits import SharedSplits
from mainstem.storage.store_files.store_file import MANY_GROUPS
from mainstem.storage.write_groups.control import RemoteChanged, RemoteSpan


def _split_recorded_anywhere() -> tuple[type, str, Any]:
    """A split counts wherever its blocks begin."""

    async def record(
        recording: SharedRecording, ranges: Sequence[WriteGroupRange], files: Sequence[FileDescription]
    ) -> list[str]:
        outcomes = []
        for entry in ranges:
            runs = tuple(
                msgspec.structs.replace(file, group=MANY_GROUPS) for file in files if file.group == entry.group
            )
            upto = max(entry.upto, recording._splits.decided(entry.group))
            spans = [RemoteSpan(entry.after, entry.upto, runs)] if runs else []
            said = await recording._remote.record(entry.group, upto=upto, spans=spans, at_once=True)
            outcomes.append("committed" if said == RECORDED else said)
        return outcomes

    return SharedRecording, "record", record


def _half_recorded() -> tuple[type, str, Any]:
    """A merge's outputs count, and its inputs go, each in a change of their own, and somebody may look in between."""

    async def record(
        changes: SharedChanges, group: int, spans: Sequence[RemoteSpan], gone: Iterable[FileRange]
    ) -> None:
        names = sorted({entry.name for entry in gone})
        parts: list[dict[str, Any]] = [{"spans": spans}, {"gone": names}]
        for part in parts:
            await changes._remote.record(group, **part, at_once=True)
            await asyncio.sleep(0)

    return SharedChanges, "_record", record


def _last_output_left_out() -> tuple[type, str, Any]:
    """The log is not told of the last file of a merge."""
    record = SharedChanges._record

    async def leaving_out(
        changes: SharedChanges, group: int, spans: Sequence[RemoteSpan], gone: Iterable[FileRange]
    ) -> None:
        left = [RemoteSpan(span.after, span.upto, span.files[:-1]) for span in spans]
        await record(changes, group, [span for span in left if span.files], gone)

    return SharedChanges, "_record", leaving_out


def _pruned_when_decided() -> tuple[type, str, Any]:
    """Pruning relies on what was decided, not on what the tier's manifest has."""
    return SharedSplits, "written", lambda splits, group: splits._splits[group].applied


def _neighbours_deleted() -> tuple[type, str, Any]:
    """A leader deletes by where a run's slice began in the journal, which runs of other classes share."""
    delete = RemoteUpkeep._delete

    async def all_of_a_slice(upkeep: RemoteUpkeep, group: int, names: Sequence[str]) -> None:
        stems = {name.rpartition("-")[0] for name in names}
        others = [name for name in upkeep._tier.manifest.files if name.rpartition("-")[0] in stems]
        await delete(upkeep, group, sorted({*names, *others}))

    return RemoteUpkeep, "_delete", all_of_a_slice


def _snapshot_without_rows() -> tuple[type, str, Any]:
    """The receiver of a snapshot forgets which files count."""
    supersede = RemoteTier.supersede

    async def without(tier: RemoteTier, group: int, position: RemotePosition, notes: Notes, entries: Entries) -> None:
        await supersede(tier, group, position, notes, ())

    return RemoteTier, "supersede", without


def _any_term_counts() -> tuple[type, str, Any]:
    """Replicas take files of whichever leader announced them…"""
    fault = RemoteState._fault

    def blind(state: RemoteState, group: int, change: RemoteChanged, counts: Any) -> str:
        found = fault(state, group, change, counts)
        return "" if found.endswith(f"by the leader of term {change.epoch}") else found

    return RemoteState, "_fault", blind


def _no_term_asked() -> tuple[type, str, Any]:
    """…and a leader hands in whatever continues the split."""

    async def record(
        recording: SharedRecording, entry: WriteGroupRange, runs: Mapping[int, Sequence[FileDescription]]
    ) -> str:
        group, files = entry.group, tuple(runs[entry.group])
        refusal = recording._refusal(group, entry.after, entry.upto)
        if refusal:
            return refusal
        spans = [RemoteSpan(recording._splits.decided(group), entry.upto, files)] if files else []
        said = await recording._remote.record(group, upto=entry.upto, spans=spans, at_once=True)
        return "committed" if said == RECORDED else said

    return SharedRecording, "_record", record


SHARED_PLANTS: Mapping[str, Sequence[Plant]] = {
    "two-splitters-count": (_split_recorded_anywhere,),
    "former-leader-counts": (_any_term_counts, _no_term_asked),
    "half-of-a-merge-counts": (_half_recorded,),
    "output-left-out": (_last_output_left_out,),
    "input-deleted-before-its-merge-counts": TIER_PLANTS["deleted-before-it-is-gone"],
    "pruned-when-decided": (_pruned_when_decided,),
    "neighbour-deleted": (_neighbours_deleted,),
    "snapshot-without-rows": (_snapshot_without_rows,),
}

MESSAGES = {
    "two-splitters-count": r"files count for blocks .* and others for",
    "former-leader-counts": "the log at|others were at",
    "half-of-a-merge-counts": r"files count for blocks .* and others for",
    "output-left-out": "which is live",
    "input-deleted-before-its-merge-counts": "is deleted, and the log of write group",
    "pruned-when-decided": "is pruned, the manifest is at",
    "neighbour-deleted": "is deleted, and the log of write group",
    "snapshot-without-rows": "unlike the log|counts .* that the log does not",
}
"""The message about them: a regular expression."""

BY_FAULTS = {"snapshot-without-rows": (LEFT_BEHIND,)}
"""Of those that others than the faults of the store bring to light: by which."""


@contextmanager
def planted_in_the_store(name: str) -> Iterator[None]:
    """Have one of these bugs for a while."""
    with ExitStack() as stack:
        for number, plant in enumerate(SHARED_PLANTS[name]):
            stack.enter_context(planted(str(number), {str(number): plant}))
        yield
