"""A queue store of real files with a remote tier in a simulated bucket, and splitters that upload to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.harness.handler_of import handler_of
from tests.storage.queue_store.changes.test_merged_files import groups_at
from tests.storage.queue_store.test_store import log_starts
from tests.storage.split.test_real_merges import LINES, RealStore

from mainstem.model import Topic
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.split import HeldLease
from mainstem.rpc.messages.tier import RECORD_TIER, TIER_WORK, AskTier, RecordTier, TierWork
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.extents.extent_index import Rows
from mainstem.storage.merging.merge_inputs import InputFile
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import ObjectStoreError
from mainstem.storage.queue_store.changes.aged_runs import AgedOf
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.remote.config import ReadCacheConfig
from mainstem.storage.remote.decided.remote_changes import WantedChange, commands
from mainstem.storage.remote.decided.remote_state import RECORDED, Noted, RemotePosition
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.remote.reading.remote_history import RemoteHistory
from mainstem.storage.split.run_ages import RunAges
from mainstem.storage.split.split_lease import SplitLease
from mainstem.storage.split.tier_gaps import GapSources, LiveExtents
from mainstem.storage.split.tier_log import LocalTierLog, RemotePlace
from mainstem.storage.split.tier_service import TierService
from mainstem.storage.store_files.object_names import file_objects
from mainstem.storage.store_files.store_file import StoreFile, index_path_of, path_of, paths_of
from mainstem.storage.tiering.uploading import upload
from mainstem.storage.verifying.file_check import check_file
from mainstem.storage.write_groups.control import RemoteChanged, RemoteSpan

GROUPS = 2
PIECE_BYTES = 60_000


class LoggedTier:
    """`TierRecords` over a log that this node leads."""

    def __init__(self, tier: RemoteTier) -> None:
        self.tier = tier
        self.manifest = tier.manifest
        self.epochs: dict[int, int | None] = dict.fromkeys(range(GROUPS), 1)
        """The term in which it leads; None: it does not."""
        self.log: list[tuple[int, RemoteChanged]] = []
        self.room: int | None = None
        """So many commands until the leadership is lost; None: it is not."""
        self._late: list[tuple[int, RemoteChanged]] = []
        """Those that were logged when it was lost, and are not decided."""

    def position(self, group: int) -> RemotePosition:
        return self.tier.position(group)

    def counts(self, group: int, name: str) -> bool:
        return self.tier.counts(group, name)

    def intended(self, group: int) -> Mapping[str, Noted]:
        return self.tier.intended(group)

    async def drained(self, groups: Iterable[int]) -> None:
        await self.tier.drained(groups)

    async def record(
        self,
        group: int,
        *,
        upto: int = 0,
        spans: Sequence[RemoteSpan] = (),
        gone: Sequence[str] = (),
        intended: Sequence[str] = (),
        at_once: bool = False,
    ) -> str:
        epoch = self.epochs[group]
        if epoch is None:
            return "refused: another node leads"
        whole = WantedChange(upto, spans, gone, intended)
        lost = 0
        for wanted in [whole] if at_once else self._one_by_one(whole):
            position = self.position(group)
            (command,) = commands(wanted, position._replace(number=position.number + lost), epoch)
            if self.room is not None:
                self.room -= 1
                if self.room < 0:
                    lost += 1
                    self._late.append((group, command))
                    continue
            verdict = self.tier.applied(group, command)
            if verdict != RECORDED:
                return verdict
            self.log.append((group, command))
        if lost:
            return "refused: the leadership was lost"
        await self.tier.drained([group])
        return RECORDED

    def decide_late(self) -> None:
        """The next leader had in its log what was not decided when the leadership was lost."""
        for group, command in self._late:
            assert self.tier.applied(group, command) == RECORDED
            self.log.append((group, command))
        self._late.clear()

    @staticmethod
    def _one_by_one(wanted: WantedChange) -> list[WantedChange]:
        """A command for each file that is to count, as if commands had room for no more."""
        single = [RemoteSpan(span.after, span.upto, (file,)) for span in wanted.spans for file in span.files]
        if not single:
            return [wanted]
        first = [WantedChange(0, [span]) for span in single[:-1]]
        return [*first, wanted._replace(spans=single[-1:])]


class TieredStore(RealStore):
    """Of two topics, one of which moves. Its splitters are well-behaved; what goes wrong the tests do."""

    def __init__(
        self,
        root: Path,
        seed: int,
        classes: Sequence[str] = ("forever+remote", "forever"),
        unit_bytes: int = 2 * PIECE_BYTES,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        super().__init__(root, seed, classes)
        self.unit_bytes = unit_bytes
        self.piece_bytes = piece_bytes
        self.remote_root = root / "remote"
        self.bucket = SimulatedBucket(self.clock, random.Random(seed))
        self.bucket.weather.timeout_seconds = 0.0
        self.objects = SimulatedObjectStore(self.bucket)
        self.lease = SplitLease(self.clock, 1, lambda: random.Random(self.choice.random()).randbytes(8).hex())
        self.allowed = True
        self.joined = True
        """The feature level lets queue segments be one object."""
        self.quorum: list[int | None] | None = None
        """The clocks of the metadata quorum; None: there is this node's alone."""
        self.topics: list[Topic] = []
        """Those that the settings of copying are read from; without any, classes alone say what moves."""
        self.logged: LoggedTier
        self.history: RemoteHistory
        self.run_ages: RunAges
        self.tier_log: LocalTierLog
        self.service: TierService
        self.held: HeldLease

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """The store between its start and its end."""
        tier = await RemoteTier.open(str(self.root.parent / "remote.sqlite"), self.clock.now_ms)
        self.logged = LoggedTier(tier)
        self.run_ages = RunAges(
            GROUPS, lambda queue_ids: groups_at(queue_ids, queue_ids), lambda: self.topics, lambda: self.allowed,
            AgreedClock(self.clock, lambda: self.quorum or [self.clock.now_ms()]),
        )  # fmt: skip
        await self.open()
        self.history = RemoteHistory(tier, self.objects, ReadCacheConfig(), self.clock, None, None)
        self.begin()
        writing = asyncio.ensure_future(tier.run())
        try:
            yield
        finally:
            await self.service.close()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await self.history.close()
            await tier.close()
            await self.store.close()
            await self.files.close()

    def begin(self) -> None:
        """The state after a start of the node: nothing of uploads is remembered."""
        place = RemotePlace(self.objects, "s3://bucket/tier", "", ObjectStoreConfig(retry_seconds=7.0))
        self.tier_log = LocalTierLog(
            self.store, self.logged, place, GROUPS, lambda group: self.logged.epochs[group], lambda: self.allowed,
            lambda: self.topics, self.clock, unit_bytes=self.unit_bytes, piece_bytes=self.piece_bytes,
            joins=lambda: self.joined,
            gaps=GapSources(self._live_rows_of(self.store.stored), self._live_rows_of(self.history.stored)),
        )  # fmt: skip
        self.service = TierService(self.tier_log, self.lease, asyncio.Lock())
        self.take_lease()

    def _live_rows_of(self, files: StoredFiles) -> LiveExtents:
        async def read(name: str, group: int) -> Rows | None:
            rows = await files.rows_of(name, [group], groups_at)
            return rows if rows is None else rows[rows["last_offset"] >= log_starts(self.starts)(rows["queue_id"])]

        return read

    def take_lease(self) -> None:
        """By another splitter; the first one's ends."""
        self.clock.advance(60.0)
        self.renew_lease()

    def renew_lease(self) -> None:
        """Another one, if time has passed since the last look."""
        if self.lease.holder:
            return
        lease = self.lease.acquire("splitter", yields=False)
        self.held = HeldLease(lease.lease_id, lease.epoch)

    def borders(self, group: int) -> Sequence[int]:
        return self.tier_log.borders(group)

    async def ages(self) -> AgedOf:
        return await self.run_ages.aged()

    # --- a splitter -----------------------------------------------------------------------------------------

    async def ask(self, *, drain: bool = False, joins: bool = True) -> TierWork:
        """`joins`: as `AskTier` has it."""
        request = AskTier(lease=self.held, drain=drain, joins=joins)
        reply = await handler_of(self.service, TIER_WORK)(RpcCall(request, b"", "splitter"))
        return msgspec.msgpack.decode(msgspec.msgpack.encode(reply.message), type=TierWork)

    async def hand_in(self, tier_id: str, names: Sequence[str], failure: str = "") -> str:
        request = RecordTier(lease=self.held, tier_id=tier_id, names=tuple(names), failure=failure)
        outcome: str = (await handler_of(self.service, RECORD_TIER)(RpcCall(request, b"", "splitter"))).message.outcome
        return outcome

    def input(self, name: str) -> InputFile:
        return InputFile(name, str(self.root / path_of(name)), str(self.root / index_path_of(name)))

    async def uploaded(self, work: TierWork, dies: Callable[[], bool] = lambda: False) -> tuple[list[str], str]:
        """The results of a task for the work: names of files that lie there, and why others do not."""
        names: list[str] = []
        for one in work.files:
            if dies():
                return names, "the task was killed"
            try:
                await upload(self.objects, self.input(one.file.name), one.name, one.objects)
            except ObjectStoreError as error:
                return names, str(error)
            names.append(one.name)
        return names, ""

    async def step(self, *, drain: bool = True) -> str:
        """One piece of work, done and handed in. Empty: there was none."""
        work = await self.ask(drain=drain)
        if not work.tier_id:
            return ""
        return await self.hand_in(work.tier_id, *(await self.uploaded(work)))

    async def upload_all(self) -> None:
        while outcome := await self.step():
            assert outcome in ("recorded", "kept"), outcome

    # --- what is there ----------------------------------------------------------------------------------------

    def counted(self, group: int) -> list[tuple[int, int, StoreFile]]:
        return list(self.logged.manifest.spans(group).described())

    def remote_files(self, group: int) -> list[StoreFile]:
        return [file for _after, _upto, file in self.counted(group)]

    async def check_remote(self) -> None:
        """All files that count are in the bucket, whole; and nothing else that nobody knows of."""
        known: set[str] = set()
        files = DiskFiles(self.remote_root)
        for group in range(GROUPS):
            await self.fetch_remote(group)
            for _after, upto, file in self.counted(group):
                assert upto <= self.logged.position(group).upto
                known.update(file_objects(group, file.name))
                assert await check_file(files, file.name, file) == []
            for name in [*self.logged.tier.intended(group), *self.logged.tier.leaving(group)]:
                known.update(file_objects(group, name))
            self.check_batches(group)
        await files.close()
        assert set(self.bucket.objects) <= known

    async def fetch_remote(self, group: int) -> None:
        """Copy the tier's files to `remote_root`, where tests look at them."""
        for file in self.remote_files(group):
            for path, one in zip(paths_of(file.name), file_objects(group, file.name), strict=True):
                target = self.remote_root / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.bucket.objects[one].content)

    def check_batches(self, group: int) -> None:
        """The tier has of each queue that moves what the store's merged files have up to its position, from the log
        start on."""
        upto = self.logged.position(group).upto
        for queue_id in self.moving(group):
            wanted = {
                offset
                for span in self.store.manifest.spans(group)
                if span.upto <= upto
                for entry in span
                for offset in self.offsets(self.root, entry.name, queue_id)
                if offset >= self.starts[queue_id]
            }
            found = {
                offset
                for _after, _upto, file in self.counted(group)
                for offset in self.offsets(self.remote_root, file.name, queue_id)
            }
            assert wanted <= found

    async def check_searches(self, group: int) -> None:
        """Searches of the tier find each batch that it has of a queue that moves, by any of its offsets."""
        spans = self.logged.manifest.spans(group)
        for local in self.store.manifest.spans(group):
            some = [(one.after, one.upto) for one in spans if one.after < local.upto and local.after < one.upto]
            assert [(one.after, one.upto) for one in spans.overlapping(local.after, local.upto)] == some
        for queue_id in self.moving(group):
            found = {
                offset
                for file in self.remote_files(group)
                for offset in self.offsets(self.remote_root, file.name, queue_id)
            }
            for batch in self.logs[queue_id]:
                if batch.base_offset in found and batch.base_offset >= self.starts[queue_id]:
                    for offset in (batch.base_offset, batch.last_offset):
                        place = await self.history.stored.search.find(queue_id, spans, offset)
                        assert place is not None, (queue_id, offset)
                        row = place.extents.rows[place.row]
                        assert row["base_offset"] <= offset <= row["last_offset"], (queue_id, offset)

    def moving(self, group: int) -> list[int]:
        return [one for one in self.queues if self.classes[one >> 32].endswith("+remote") and one % 2 == group]

    def offsets(self, root: Path, name: str, queue_id: int) -> list[int]:
        """The base offsets of a queue's batches in a file."""
        data = (root / path_of(name)).read_bytes()
        return [batch.base_offset for batch in self.logs[queue_id] if batch.data in data]


assert LINES.packed_bytes < PIECE_BYTES, "a piece has several files"
