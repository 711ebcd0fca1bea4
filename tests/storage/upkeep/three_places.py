"""A write group of few queues whose records lie in the journal, on disk 2 and in the remote tier, and the upkeep of one
replica that leads it. Manifests, retention and the drop of local copies are the real ones; files are rows of an index.

Every record is a batch and an extent of its own. `check` sees to it that each live offset is somewhere.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
from tests.fakes.clock import FakeClock
from tests.storage.queue_store.runs import extent_rows
from tests.storage.small_node import topic

from mainstem.kernel import COMMITTED_END, LOG_START, QueueTable
from mainstem.model import SLOTS, Topic, queue_id_of
from mainstem.storage.agreed_clock import AgreedTime
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import Rows
from mainstem.storage.placement import Placement
from mainstem.storage.queue_liveness import QueueLiveness
from mainstem.storage.queue_store.changes.file_retention import FileRetention
from mainstem.storage.queue_store.manifest.database.manifest_database import WriteGroupPosition, WriteGroupSplit
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.upkeep.local_copies import LocalCopies
from mainstem.storage.upkeep.remote_retention import RemoteRetention
from mainstem.storage.upkeep.retention import retention_class
from mainstem.storage.upkeep.retention_pass import RetentionPass
from mainstem.storage.upkeep.untiering import Untiering

START_MS = FakeClock().now_ms()
GROUP = 0

Record = tuple[int, int, int]
"""Topic number, timestamp, bytes."""


def queue_of(topic_number: int) -> int:
    return queue_id_of(topic_number, 0)


class Remote:
    """`RemoteFiles` over a manifest of its own; what `forget` says is applied at once."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.rows: dict[str, Rows] = {}
        self.considered = 0
        self.out = False
        """While it is, no index can be read."""
        self.damaged: set[str] = set()
        self.read: list[str] = []
        self.forgotten: list[str] = []
        self.refusal = ""

    def upto(self, group: int) -> int:
        return self.considered

    async def first_seen(self, now_ms: int) -> Mapping[str, int]:
        return dict.fromkeys(self.manifest.files, START_MS + 1_000_000_000)

    async def rows_of(self, name: str, groups: Sequence[int], groups_at: object) -> Rows | None:
        self.read.append(name)
        return None if self.out else self.rows.get(name)

    def is_damaged(self, name: str) -> bool:
        return name in self.damaged

    async def forget(self, group: int, names: Sequence[str]) -> str:
        if self.refusal:
            return f"refused: {self.refusal}"
        gone = [entry for name in names for entry in self.manifest.entries(name)]
        await self.manifest.change(group, gone, (), WriteGroupPosition(self.considered, 0), ())
        self.forgotten += names
        for name in names:
            del self.rows[name]
        return "recorded"


class ThreePlaces:
    """Make it with `open`. It stands for the journal, the store and its parts, placement, clock and who moves log
    starts, as far as upkeep asks them."""

    def __init__(self, topics: Sequence[Topic], local: Manifest, remote: Manifest) -> None:
        self.topics = list(topics)
        self.deleted: set[int] = set()
        self.clock = FakeClock()
        self.placement = Placement([GROUP] * SLOTS)
        self.table = QueueTable()
        for known in topics:
            self.table.create(known.number, 0, 1)
        self.manifest = local
        self.remote = Remote(remote)
        self.rows: dict[str, Rows] = {}
        self.damaged: set[str] = set()
        self.blocks: list[Rows] = []
        """Of the journal: block number n is the last but n - 1."""
        self.pruned = 0
        """Blocks of the journal that were recycled."""
        self.said: dict[int, list[Record]] = {known.number: [] for known in topics}
        """All records that were ever produced."""
        self.numbers = itertools.count(1)
        self.retention_facts_bytes_max = 1 << 20
        self.passes = 0
        self.read: list[str] = []
        self.lock = asyncio.Lock()
        self.rewritten = 0
        self.stored = self.compactions = self
        self.held: set[str] = set()
        self.dead_dropped: list[str] = []
        self.copies_dropped: list[str] = []
        self.liveness = QueueLiveness(self.table, lambda number: number in self.deleted)
        orphans = SimpleNamespace(is_held=self.held.__contains__)
        kept = SimpleNamespace(is_kept=lambda group: False)
        self._files = FileRetention(self, self, kept, orphans)  # type: ignore[arg-type]
        self.retention = SimpleNamespace(first_seen=self.first_seen, drop_copies=self._files.drop_copies)
        self.leads = True
        self.has_applied_files = True
        self.restart()

    def restart(self) -> None:
        """Forget what upkeep remembers."""
        this: Any = self
        self.log_starts = RetentionPass(
            self.table,
            this,
            this,
            this,
            self.placement,
            lambda: self.topics,
            this,
            self.liveness,
            self.remote,
            lambda group: self.has_applied_files,
        )
        self.local_copies = LocalCopies(
            self.table, this, this, self.remote, self.placement, lambda: self.topics, this, self.liveness
        )
        self.terms = {GROUP: 1}
        self.untiering = Untiering(
            self.table, self.remote, self.placement, lambda: self.topics, lambda: dict(self.terms), this,
            self.first_here, self.last_there,
        )  # fmt: skip
        self.remote_retention = RemoteRetention(self.remote, lambda group: self.leads, self.placement, self.liveness)

    @classmethod
    async def open(cls, directory: Path, topics: Sequence[Topic]) -> ThreePlaces:
        local, remote = [await Manifest.open(str(directory / f"{name}.sqlite"), 4) for name in ("local", "remote")]
        return cls(topics, local, remote)

    async def close(self) -> None:
        await self.manifest.close()
        await self.remote.manifest.close()

    # --- as upkeep sees it ----------------------------------------------------------------------------------

    def now(self) -> AgreedTime:
        return AgreedTime(self.clock.now_ms(), self.clock.now_ms())

    async def first_seen(self, now_ms: int) -> Mapping[str, int]:
        await self.manifest.see(START_MS + 1_000_000_000)
        return self.manifest.seen

    def in_order(self) -> Any:
        return ((self.manifest.files[name], groups) for name, groups in self.manifest.in_order())

    async def rows_of(self, name: str, groups: Sequence[int], groups_at: object) -> Rows | None:
        self.read.append(name)
        return None if name in self.damaged else self.rows.get(name)

    def segments(self) -> list[Any]:
        return [
            SimpleNamespace(sequence=number, sealed=True, index_ready=True)
            for number in range(self.pruned, len(self.blocks))
        ]

    async def index(self, sequence: int) -> Any:
        return SimpleNamespace(rows=self.blocks[sequence])

    async def move_log_starts(self, moves: Mapping[int, list[tuple[int, int]]]) -> None:
        for queue_id, start in itertools.chain.from_iterable(moves.values()):
            slot = self.table.find(queue_id)
            assert self.table.get(slot, LOG_START) < start <= self.table.get(slot, COMMITTED_END)
            self.table.set(slot, LOG_START, start)

    async def first_here(self, queue_id: int, offset: int) -> int | None:
        self.read.append("first")
        if self.damaged:
            raise StorageError(f"{min(self.damaged)} cannot be read")
        return min((one for one in self.local_offsets(queue_id >> 32) if one >= offset), default=None)

    async def last_there(self, queue_id: int, group: int) -> int | None:
        if self.remote.out:
            raise StorageError("the store is out")
        return max(self.remote_offsets(queue_id >> 32), default=None)

    async def drop(self, names: Sequence[str], remembered: Sequence[str]) -> None:
        await self.manifest.drop(names, 0, remembered)
        self.copies_dropped += names
        for name in names:
            del self.rows[name]

    # --- what happens to records ----------------------------------------------------------------------------

    def topic(self, number: int) -> Topic:
        return next(known for known in self.topics if known.number == number)

    def log_start(self, number: int) -> int:
        return self.table.get(self.table.find(queue_of(number)), LOG_START)

    def produce(self, records: Sequence[Record]) -> None:
        """Append a block with these records."""
        rows = []
        for number, timestamp, size in records:
            offset = len(self.said[number])
            self.said[number].append((number, timestamp, size))
            rows.append((queue_of(number), offset, offset, timestamp, size))
            self.table.set(self.table.find(queue_of(number)), COMMITTED_END, offset + 1)
        self.blocks.append(extent_rows(*sorted(rows)))

    async def split(self) -> None:
        """Split all blocks there are into runs, one per retention class."""
        after, upto = self.manifest.position(GROUP).position, len(self.blocks)
        if after == upto:
            return
        rows = self._live(_sorted(self.blocks[after:upto]))
        files = [self._run(part, name) for name, part in self._by_class(rows).items()]
        await self.manifest.record_splits([WriteGroupSplit(GROUP, after, upto, tuple(files), upto)])

    def prune(self) -> None:
        """Recycle what is split of the journal."""
        self.pruned = self.manifest.position(GROUP).position

    async def merge(self, first: int, end: int) -> None:
        """Merge some neighbouring local spans into packed files of one class each."""
        spans = self.manifest.spans(GROUP)[first:end]
        if not spans or any(one.upto <= self.remote.considered < other.upto for one in spans for other in spans):
            return  # merges keep to one side of where the tier has come
        inputs = [entry for span in spans for entry in span]
        outputs = [self._packed(part, name) for name, part in self._stretches(self._live_rows(inputs))]
        await self.manifest.merge(GROUP, inputs, outputs)
        for entry in inputs:
            del self.rows[entry.name]

    async def tier(self) -> None:
        """Have the tier take all merged spans that come next."""
        parts: list[tuple[int, int, Rows]] = []
        upto = self.remote.considered
        for span in self.manifest.spans(GROUP):
            if span.upto <= self.remote.considered:
                continue
            if span.runs:
                break
            for entry in span:
                if self.manifest.files[entry.name].may_move:
                    parts.append((span.after, span.upto, self.rows[entry.name]))
            upto = span.upto
        await self.copy(parts, upto)

    async def copy(self, parts: Sequence[tuple[int, int, Rows]], upto: int) -> None:
        """Have files with these extents count in the tier, as (after, upto, extents), and all blocks up to `upto` be
        considered."""
        entries: list[tuple[int, int, StoreFile]] = []
        for after, last, rows in parts:
            file = self._described(f"{next(self.numbers)}.pack", "forever+remote", rows)
            self.remote.rows[file.name] = rows
            entries.append((after, last, file))
        self.remote.considered = upto
        if self.remote.manifest.identity is None:
            await self.remote.manifest.adopt(uuid.UUID(int=1), 0)
        await self.remote.manifest.change(GROUP, (), entries, WriteGroupPosition(self.remote.considered, 0), ())

    async def drop_dead(self) -> None:
        """Drop local files in which nothing is live."""
        dead = [name for name in list(self.manifest.files) if not len(self._live(self.rows[name]))]
        if dead:
            await self.manifest.drop(dead, 0, ())
            self.dead_dropped += dead
            for name in dead:
                del self.rows[name]

    def advance(self, ms: int) -> None:
        self.clock.advance(ms / 1000)

    # --- what a test asks -----------------------------------------------------------------------------------

    def local_offsets(self, number: int) -> set[int]:
        return self._offsets(number, [*self.rows.values(), *self.blocks[self.pruned :]])

    def remote_offsets(self, number: int) -> set[int]:
        return self._offsets(number, self.remote.rows.values())

    def check(self) -> None:
        """Every live offset is somewhere, and what counts in the tier is there."""
        for number, records in self.said.items():
            wanted = set(range(self.log_start(number), len(records)))
            missing = wanted - self.local_offsets(number) - self.remote_offsets(number)
            assert not missing, f"topic {number}: {sorted(missing)} are nowhere"
        assert set(self.remote.rows) == set(self.remote.manifest.files)
        assert set(self.rows) == set(self.manifest.files)

    def _offsets(self, number: int, parts: Any) -> set[int]:
        found: set[int] = set()
        for rows in parts:
            found.update(rows["base_offset"][rows["queue_id"] == queue_of(number)].tolist())
        return found

    # --- files ----------------------------------------------------------------------------------------------

    def _live(self, rows: Rows) -> Rows:
        return rows[rows["last_offset"] >= self.liveness.log_starts(rows["queue_id"])]

    def _live_rows(self, entries: Sequence[FileRange]) -> Rows:
        return self._live(_sorted([self.rows[entry.name] for entry in entries]))

    def _class_of(self, queue_id: int) -> str:
        return retention_class(self.topic(queue_id >> 32))

    def _by_class(self, rows: Rows) -> dict[str, Rows]:
        names = [self._class_of(queue_id) for queue_id in rows["queue_id"].tolist()]
        return {name: rows[[one == name for one in names]] for name in sorted(set(names))}

    def _stretches(self, rows: Rows) -> list[tuple[str, Rows]]:
        """Neighbouring queues of one class."""
        pairs = zip(rows["queue_id"].tolist(), rows, strict=True)
        return [
            (name, numpy.array([row for _queue_id, row in part], rows.dtype))
            for name, part in itertools.groupby(pairs, key=lambda pair: self._class_of(pair[0]))
        ]

    def _run(self, rows: Rows, name: str) -> StoreFile:
        file = self._described(f"{next(self.numbers)}.run", name, rows)
        self.rows[file.name] = rows
        return StoreFile(
            **{field: getattr(file, field) for field in StoreFile.__struct_fields__}
            | {"group": -1, "level": 0, "first_queue": 0, "last_queue": 0, "first_offset": -1}
        )

    def _packed(self, rows: Rows, name: str) -> StoreFile:
        file = self._described(f"{next(self.numbers)}.pack", name, rows)
        self.rows[file.name] = rows
        return file

    def _described(self, name: str, retention_class: str, rows: Rows) -> StoreFile:
        return StoreFile(
            name=name,
            retention_class=retention_class,
            bytes=int(rows["length"].sum()),
            batch_bytes=int(rows["length"].sum()),
            batch_count=len(rows),
            record_count=len(rows),
            queue_count=len(set(rows["queue_id"].tolist())),
            min_timestamp=int(rows["max_timestamp"].min()),
            max_timestamp=int(rows["max_timestamp"].max()),
            level=1,
            group=GROUP,
            first_queue=int(rows["queue_id"][0]),
            last_queue=int(rows["queue_id"][-1]),
            first_offset=int(rows["base_offset"][0]),
        )


def _sorted(parts: Sequence[Rows]) -> Rows:
    rows = numpy.concatenate(parts)
    return rows[numpy.lexsort((rows["base_offset"], rows["queue_id"]))]


def story(topics: Sequence[Topic], told: Callable[[ThreePlaces], Awaitable[None]]) -> None:
    """Tell a story of these topics."""

    async def whole(directory: Path) -> None:
        places = await ThreePlaces.open(directory, topics)
        try:
            await told(places)
        finally:
            await places.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(whole(Path(directory)))


def tiered(number: int, *, local_ms: int = -2, local_bytes: int = -2, **limits: int) -> Topic:
    """A topic that goes to the tier, and keeps its records for ever unless `limits` say otherwise."""
    limits = {"retention_ms": -1, **limits}
    return topic(
        number, 1, remote_storage_enable=True, local_retention_ms=local_ms, local_retention_bytes=local_bytes, **limits
    )
