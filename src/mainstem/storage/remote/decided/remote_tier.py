"""The remote tier of a node: which files count in the object store, for which blocks of which write groups.

The logs of the write groups decide that (`remote_state.py`). A change is decided as soon as it is applied, in memory,
and written to a manifest of the tier's own in the background, in the order of deciding, once the journal has it
durably: a node never knows more than its journal does. A crash in between is made good by the log: what the manifest
has already is a replay. A checkpoint waits until all that was decided by then is written (`drained`).

A leader changes the tier by `record`. All that it appends carries its term, so that what a former leader has uploaded
counts only if the log took it in time.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from mainstem.errors import MainstemError
from mainstem.model import Sample
from mainstem.ports import ObjectStore
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.manifest.database.manifest_database import Entries, Statement, WriteGroupPosition
from mainstem.storage.queue_store.manifest.in_memory.file_table import PAGE_FILES
from mainstem.storage.queue_store.manifest.in_memory.span_lists import SpanList
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.remote.decided import remote_rows
from mainstem.storage.remote.decided.remote_changes import (
    COMMAND_BYTES_MAX,
    Replacement,
    WantedChange,
    commands,
    portions,
)
from mainstem.storage.remote.decided.remote_state import NOWHERE, RECORDED, REPLAYED, Noted, Notes, RemoteState
from mainstem.storage.remote.decided.remote_state import RemotePosition as RemotePosition
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.write_groups.control import RemoteChanged, RemoteSpan
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_loop import WriteLoop

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Between attempts to write to a manifest that refused: disks fill and empty in minutes, not in seconds."""

PROPOSED_MAX = 32
"""Commands on their way into the log at once: a quarter of a MiB."""


class DecidedChange(NamedTuple):
    """A change that counts, to be written to the manifest."""

    group: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is never called
    """The block that has it."""
    position: RemotePosition
    files: Mapping[str, tuple[int, int, StoreFile]]
    """Files that count from then on, as (after, upto, file)."""
    gone: frozenset[str]
    """Files that count no more."""
    notes: Notes


class WaysToLead(NamedTuple):
    """The parts that a node needs to change the tier."""

    groups: Sequence[WriteGroup]
    write_loop: WriteLoop
    allowed: Callable[[], bool]
    """Whether the cluster's feature level lets files be in the tier."""
    command_bytes_max: int = COMMAND_BYTES_MAX
    """Of what one command may name."""


class RemoteTier:
    """Applies, keeps and changes what counts in the remote tier. A node has one even if it has no object store: other
    nodes may have, and it follows their logs. Make it with `open`."""

    def __init__(
        self,
        manifest: Manifest,
        states: dict[int, RemoteState],
        now_ms: Callable[[], int],
        store: ObjectStore | None = None,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self.manifest = manifest
        """The files that count. It changes only through this object, a moment after the log has decided."""
        self.store = store
        """The store of the files; None: this node has no way to it."""
        self.now_ms = now_ms
        """Tells the agreed time."""
        self._states = states
        self._new_id = new_id
        self._pending: deque[DecidedChange] = deque()
        """Decided changes that are not written yet, oldest first."""
        self.failure: StorageError | None = None
        """The error of the last attempt to write; None: it succeeded."""
        self._turn = asyncio.Lock()
        """Held during a write."""
        self._wake = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        """Callers that wait for changes to be written."""
        self._closed = False
        self._ways: WaysToLead | None = None
        self._watchers: list[Callable[[int, RemoteChanged], None]] = []
        self._recording: dict[int, asyncio.Lock] = {}
        """One change of a write group after the other."""

    @classmethod
    async def open(
        cls,
        path: str,
        now_ms: Callable[[], int],
        store: ObjectStore | None = None,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
        page_files: int = PAGE_FILES,
    ) -> RemoteTier:
        """Open the manifest at `path`, which is made with the first change. Raises `StorageError` when it cannot be
        used."""
        manifest = await Manifest.open(path, page_files, remote_rows.SCHEMAS)
        try:
            states = await remote_rows.read_states(manifest)
        except BaseException:
            await manifest.close()
            raise
        return cls(manifest, states, now_ms, store, new_id)

    async def close(self) -> None:
        async with self._turn:
            await self.manifest.close()

    def lead(self, ways: WaysToLead, now_ms: Callable[[], int]) -> None:
        """From now on changes can be recorded, through the logs of these write groups; `now_ms` tells the agreed
        time."""
        assert self._ways is None
        self._ways, self.now_ms = ways, now_ms
        self.grow()

    def grow(self) -> None:
        """There are more write groups than before, or the first ones."""
        assert self._ways is not None
        for group in self._ways.groups:
            self._state(group.group)  # so that samples tell of all of them

    def watch(self, watcher: Callable[[int, RemoteChanged], None]) -> None:
        """Have `watcher` hear of every change that is decided from now on, with its write group."""
        self._watchers.append(watcher)

    # --- where things stand -------------------------------------------------------------------------------

    def position(self, group: int) -> RemotePosition:
        """How far the tier of a write group is, by all that was decided so far."""
        return self._state(group).position

    def intended(self, group: int) -> Mapping[str, Noted]:
        """Files that a leader was about to upload, and that have not come to count."""
        return self._state(group).intended

    def leaving(self, group: int) -> Mapping[str, Noted]:
        """Files that counted, and of which something may be left in the store."""
        return self._state(group).leaving

    def given_up(self, group: int) -> Sequence[GivenUpFile]:
        """Files that counted and were lost, and that an operator gave up; the oldest first."""
        return self._state(group).given_up

    def may_have_lost(self, group: int, queue_id: int) -> bool:
        """Whether files that were given up may have had records of a queue."""
        return any(one.first_queue <= queue_id <= one.last_queue for one in self._state(group).given_up)

    def numbers(self) -> dict[int, int]:
        """The number of the last change of each write group that has any, for a checkpoint."""
        return {group: state.position.number for group, state in self._states.items() if state.position.number}

    def lacking(self, numbers: Mapping[int, int]) -> dict[int, int]:
        """The write groups of which a checkpoint has later changes than the manifest, and the number of its last one:
        the manifest is missing, or an older copy."""
        return {group: number for group, number in numbers.items() if self.position(group).number < number}

    def _state(self, group: int) -> RemoteState:
        state = self._states.get(group)
        if state is None:
            state = self._states[group] = RemoteState()
        return state

    def counts(self, group: int, name: str) -> bool:
        """Whether a file counts, by all that was decided so far."""
        for item in reversed(self._pending):
            if item.group == group and name in item.files:
                return True
            if item.group == group and name in item.gone:
                return False
        return group in self.manifest.counts_for(name)

    # --- applying -----------------------------------------------------------------------------------------

    def applied(self, group: int, command: RemoteChanged, index: int = 0) -> str:
        """Apply a change that the write group's log has in block `index`, in the order of the log, live and at recovery
        alike. Returns `RECORDED`, `REPLAYED` or `refused: …` with the reason; the manifest follows in its own time."""
        state = self._state(group)
        verdict = state.verdict(group, command, lambda name: self.counts(group, name))
        if verdict == RECORDED:
            gone = frozenset(name for name in command.gone if self.counts(group, name))
            notes = state.apply(command, sorted(gone), self.now_ms())
            files = {
                file.name: (span.after, span.upto, StoreFile.of(file)) for span in command.spans for file in span.files
            }
            self._pending.append(DecidedChange(group, index, state.position, files, gone, notes))
            self._wake.set()
            for watcher in self._watchers:
                watcher(group, command)
        elif verdict != REPLAYED:
            log.error("write group %d: change %d of the remote tier is ignored: %s", group, command.number, verdict)
        return verdict

    # --- writing ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write decided changes to the manifest until cancelled; runs as a task of the storage role."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._pending:
                    try:
                        await self._write()
                    except Exception as error:  # any exception: this task must not end, others wait for it
                        self._failed(error)
                        await asyncio.sleep(RETRY_SECONDS)
                    else:
                        self.failure = None
                        self._answer()
        finally:
            self._closed = True
            self._answer()

    async def _write(self) -> None:
        """Write the oldest change; behind the newest, put files into pages that fill one."""
        if self._ways is not None:
            await self._ways.write_loop.sync()
        async with self._turn:
            if not self._pending:  # a snapshot came
                return
            item = self._pending[0]
            statements = list(remote_rows.changed(item.group, item.position, item.notes))
            await self._change(item.group, item.index, item.position, item.gone, list(item.files.values()), statements)
            self._pending.popleft()
            while not self._pending and await self.manifest.fold():
                pass

    async def _change(
        self,
        group: int,
        index: int,
        position: RemotePosition,
        gone: Iterable[str],
        entries: Entries,
        statements: Sequence[Statement],
    ) -> None:
        manifest = self.manifest
        if manifest.identity is None:
            await manifest.adopt(self._new_id(), 0)
        ranges = [entry for name in sorted(gone) for entry in manifest.entries(name) if entry.group == group]
        await manifest.change(group, ranges, entries, WriteGroupPosition(position.upto, index), statements)

    async def see(self, now_ms: int) -> None:
        """Note that files which retention has not seen before exist at `now_ms`. Durable on return. Raises
        `StorageError`."""
        async with self._turn:
            if len(self.manifest.files):
                await self.manifest.see(now_ms)

    def _failed(self, error: Exception) -> None:
        if str(self.failure) != str(error):
            log.error("the remote tier's manifest cannot be written, it is tried again: %s", error, exc_info=error)
        self.failure = StorageError(str(error))
        self.failure.__cause__ = error
        self._answer()

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def drained(self, groups: Iterable[int] | None = None) -> None:
        """Return when every change of these write groups decided so far, None: of all, is in the manifest. While
        changes cannot be written, raises that `StorageError` at once."""
        wanted = None if groups is None else frozenset(groups)
        decided = [item for item in self._pending if wanted is None or item.group in wanted]
        last = decided[-1] if decided else None
        while last is not None and any(item is last for item in self._pending):
            if self.failure is not None:
                raise StorageError(str(self.failure))
            if self._closed:
                raise StorageError("the remote tier's manifest is closed")
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    # --- snapshots ----------------------------------------------------------------------------------------

    async def image(self, group: int) -> tuple[RemotePosition, Notes, SpanList]:
        """All that counts in a write group, and what is noted besides, of one moment, which is not before the call.
        Raises `StorageError` while changes cannot be written."""
        while any(item.group == group for item in self._pending):
            await self.drained([group])
        state = self._state(group)
        return state.position, state.notes(), self.manifest.spans(group)

    async def supersede(self, group: int, position: RemotePosition, notes: Notes, entries: Entries) -> None:
        """Put the image of another replica in the place of what a write group has here. Durable on return. Raises
        `StorageError`, nothing being changed."""
        async with self._turn:
            if position.number or self._state(group).position.number:
                before = [entry.name for span in self.manifest.spans(group) for entry in span]
                statements = list(remote_rows.replaced(group, position, notes))
                await self._change(group, 0, position, before, entries, statements)
            self._states[group] = RemoteState(position, notes)
            self._pending = deque(item for item in self._pending if item.group != group)
        self._answer()

    async def forget(self, group: int) -> None:
        """Forget all of a write group, whose replica has left this node; its files stay in the store, where other
        replicas need them. Durable on return. Raises `StorageError`."""
        await self.supersede(group, NOWHERE, Notes({}, {}), ())

    # --- leading ------------------------------------------------------------------------------------------

    async def record(
        self,
        group: int,
        *,
        upto: int = 0,
        spans: Sequence[RemoteSpan] = (),
        gone: Sequence[str] = (),
        intended: Sequence[str] = (),
        deleted: Sequence[str] = (),
        given_up: Sequence[GivenUpFile] = (),
        at_once: bool = False,
    ) -> str:
        """Have the log of a write group, which this node leads, decide on a change. `upto`, if it is larger than
        before, moves with the last file of `spans`: a large change takes several commands, the first of which may count
        while a later one does not. `at_once`: it takes one command, or is refused. Returns `RECORDED` once all of it is
        applied and durable here, or `refused: …`; then none of it counts, or whoever lost the leadership meanwhile
        finds out by the next leader's log.

        Raises `StorageError` when it counts, and this node cannot write it to its manifest.
        """
        wanted = WantedChange(upto, spans, gone, intended, deleted, given_up)
        return await self._record(group, lambda: wanted, at_once=at_once)

    async def abandon(self, group: int, names: Sequence[str]) -> str:
        """Have the log of a write group, which this node leads, say that these intended files are given up, but for
        those that come to count while this waits for another change. Returns and raises as `record`."""
        return await self._record(
            group, lambda: WantedChange(0, gone=[name for name in names if name in self.intended(group)])
        )

    async def _record(self, group: int, wanted_of: Callable[[], WantedChange], *, at_once: bool = False) -> str:
        """As `record`; `wanted_of` is asked when no other change of the write group is under way."""
        async with self._recording.setdefault(group, asyncio.Lock()):
            wanted = wanted_of()
            refusal = self._refusal(group, wanted) or await self._propose(group, wanted, at_once=at_once)
            if refusal:
                return f"refused: {refusal}"
            await self.drained([group])
            return RECORDED

    async def replace(self, group: int, replacements: Iterable[Replacement]) -> str:
        """Have the log of a write group, which this node leads, decide on replacements, in their order, in as few
        commands as take them. Each counts as a whole; the first may count while a later one is refused. Returns and
        raises as `record`."""
        bytes_max = COMMAND_BYTES_MAX if self._ways is None else self._ways.command_bytes_max
        for one in portions(replacements, bytes_max):
            outcome = await self.record(group, spans=one.spans, gone=one.gone, at_once=True)
            if outcome != RECORDED:
                return outcome
        return RECORDED

    def _refusal(self, group: int, wanted: WantedChange) -> str:
        """Why this node cannot record a change; empty: it can."""
        ways = self._ways
        if ways is None or group >= len(ways.groups):
            return f"this node does not lead write group {group}"
        leader = ways.groups[group]
        if not leader.serving:
            return str(leader.consensus.refusal())
        if not ways.allowed():
            return "the cluster's feature level does not allow files in the remote tier"
        state = self._state(group)
        whole = wanted.whole(state.position, leader.term)
        verdict = state.verdict(group, whole, lambda name: self.counts(group, name))
        return verdict.removeprefix("refused: ") if verdict != RECORDED else ""

    async def _propose(self, group: int, wanted: WantedChange, *, at_once: bool) -> str:
        """Log the commands of a change; returns why one was refused, or nothing."""
        assert self._ways is not None
        leader = self._ways.groups[group]
        bytes_max = self._ways.command_bytes_max if at_once else COMMAND_BYTES_MAX
        changes = commands(wanted, self.position(group), leader.term, bytes_max)
        if at_once and len(changes) > 1:
            return f"the change names more files than one command of {bytes_max} bytes takes"
        for first in range(0, len(changes), PROPOSED_MAX):
            if not leader.serving or leader.term != changes[0].epoch:
                return str(leader.consensus.refusal())
            proposed = [leader.propose([change]) for change in changes[first : first + PROPOSED_MAX]]
            self._ways.write_loop.wake()
            for outcome in await asyncio.gather(*proposed, return_exceptions=True):
                if isinstance(outcome, MainstemError):
                    return str(outcome)
                if isinstance(outcome, BaseException):
                    raise outcome
                if outcome != [RECORDED]:
                    return outcome[0].removeprefix("refused: ")
        return ""

    # --- statistics ---------------------------------------------------------------------------------------

    def samples(self) -> Iterable[Sample]:
        yield Sample("mainstem_remote_files", "gauge", "Files that count in the remote tier", len(self.manifest.files))
        lost = sum(len(state.given_up) for state in self._states.copy().values())
        yield Sample("mainstem_remote_given_up_files", "gauge", "Files that were lost, and given up", lost)
        for group, state in sorted(self._states.copy().items()):  # metrics are read in any thread
            label = (("group", str(group)),)
            yield Sample(
                "mainstem_remote_upto_index",
                "gauge",
                "Last block of a write group that was considered for the remote tier",
                state.position.upto,
                label,
            )
            for standing, names in (("intended", state.intended), ("leaving", state.leaving)):
                yield Sample(
                    "mainstem_remote_uncounted_files",
                    "gauge",
                    "Files that do not count, and of which something may lie in the object store",
                    len(names),
                    (*label, ("standing", standing)),
                )
