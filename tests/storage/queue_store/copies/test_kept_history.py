"""A replica that takes a snapshot keeps what is split here, and copies what lies behind it, however both merged."""

from __future__ import annotations

import asyncio
import random
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.queue_store.changes.test_merged_files import groups_at
from tests.storage.queue_store.runs import Batch, make_batch, write_merged, write_run
from tests.storage.queue_store.test_store import Bench, log_starts, read_all

from mainstem.protocol.records import (
    ControlType,
    NewRecord,
    build_batch,
    build_control_batch,
    read_records,
    stored_batches,
)
from mainstem.raft import Membership, Snapshot
from mainstem.rpc.messages.snapshots import QUEUES as QUEUES_OF_GROUP
from mainstem.storage.cluster.snapshot_files import SnapshotFiles
from mainstem.storage.errors import StorageError
from mainstem.storage.placement import Stay
from mainstem.storage.queue_store.copies.file_copy import ByteRange, windows
from mainstem.storage.queue_store.copies.kept_history import choose, own_spans
from mainstem.storage.queue_store.copies.part_copy import GivesWholeFiles
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange, Span
from mainstem.storage.state.snapshot_image import WriteGroupImage
from mainstem.storage.store_files.store_file import StoreFile, path_of, segment_name

QUEUES = 6
GROUP = 0
"""The write group of even queues, of which snapshots are taken; odd queues are of another one."""


# --- the choice -------------------------------------------------------------------------------------------


def named(name: str) -> StoreFile:
    return StoreFile(
        name=name, retention_class="forever", bytes=1, batch_bytes=1, batch_count=1, record_count=1, queue_count=1,
        min_timestamp=0, max_timestamp=0,
    )  # fmt: skip


def blocks(draw: st.DrawFn, upto: int) -> list[tuple[int, int]]:
    """Random spans up to a block, with gaps."""
    edges = sorted(draw(st.sets(st.integers(0, upto), max_size=8)))
    return [pair for pair in pairwise(edges) if draw(st.integers(0, 3))]


@st.composite
def two_stores(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int, list[tuple[int, int]], set[str], bool]:
    own_upto, theirs_upto = draw(st.integers(0, 30)), draw(st.integers(0, 30))
    own, theirs = blocks(draw, own_upto), blocks(draw, theirs_upto)
    bad = {f"own-{upto}.run" for _after, upto in own if draw(st.integers(0, 7)) == 0}
    return own, min(own_upto, theirs_upto), theirs, bad, draw(st.booleans())


@given(two_stores())
def test_own_spans_and_the_senders_follow_each_other_and_nothing_sound_is_copied_again(
    stores: tuple[list[tuple[int, int]], int, list[tuple[int, int]], set[str], bool],
) -> None:
    own, split_upto, theirs, bad, parts = stores
    files = {f"own-{upto}.run": named(f"own-{upto}.run") for _after, upto in own}
    spans = [Span([FileRange(1, GROUP, after, upto, f"own-{upto}.run")], files) for after, upto in own]
    ranges = [(after, upto, named(f"{upto}.run")) for after, upto in theirs]
    found = asyncio.run(own_spans(spans, lambda name: name not in bad))
    kept_upto, wanted = choose(found, split_upto, ranges, parts=parts)
    assert kept_upto <= split_upto
    assert not [span for span in own if span[0] < kept_upto < span[1]], "a file is kept, or it is not"
    kept = [span for span in own if span[1] <= kept_upto]
    assert not bad & {f"own-{upto}.run" for _after, upto in kept}
    together = [*kept, *((one.after, one.upto) for one in wanted)]
    assert all(one[1] <= other[0] for one, other in pairwise(together))
    assert [one.upto for one in wanted] == [upto for _after, upto in theirs if upto > kept_upto]
    assert all(max(one.holds_after, kept_upto) == one.after for one in wanted)
    if not parts:
        assert all(one.holds_after == one.after for one in wanted)
    whole_of_own = not bad and not [span for span in own if span[0] < split_upto < span[1]]
    if parts and whole_of_own:
        assert kept_upto == split_upto
    if whole_of_own and not [span for span in theirs if span[0] < split_upto < span[1]]:
        assert kept_upto == split_upto


def test_where_only_whole_files_are_given_own_files_go_from_where_one_of_both_begins() -> None:
    files = {f"own-{upto}.run": named(f"own-{upto}.run") for upto in (4, 8, 12, 15)}
    own = [(0, 4), (4, 8), (8, 12), (12, 15)]
    spans = [Span([FileRange(1, GROUP, after, upto, f"own-{upto}.run")], files) for after, upto in own]
    theirs = [(0, 6, named("6.run")), (6, 10, named("10.run")), (10, 20, named("20.run"))]

    def kept(*, parts: bool) -> int:
        return choose(asyncio.run(own_spans(spans, lambda name: True)), 15, theirs, parts=parts).kept_upto

    assert kept(parts=True) == 15
    assert kept(parts=False) == 0, "20 begins at 10, which 12 straddles; it begins at 8, which 10 straddles, and so on"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 90)), max_size=20), st.integers(1, 40))
def test_windows_have_every_byte_of_the_ranges_once(steps: list[tuple[int, int]], length: int) -> None:
    ranges, end = [], 0
    for gap, size in steps:
        ranges.append(ByteRange(end + gap, size))
        end += gap + size
    found = list(windows(ranges, length))
    assert all(window[-1].position + window[-1].length - window[0].position <= length for window in found)
    given_out = [at for window in found for position, size in window for at in range(position, position + size)]
    assert given_out == [at for position, size in ranges for at in range(position, position + size)]


def test_windows_of_ranges_that_do_not_rise_are_refused() -> None:
    with pytest.raises(StorageError, match="behind one up to 8"):
        list(windows([ByteRange(5, 3), ByteRange(7, 1)], 100))


# --- two stores -------------------------------------------------------------------------------------------


class Replica:
    """A store of two write groups that splits the same blocks as others do, in slices of its own, and merges them."""

    def __init__(self, directory: Path, name: str) -> None:
        (directory / name).mkdir()
        self.bench = Bench(directory / name)
        self.name = name
        self.split_upto = 0
        self.held: dict[str, list[Batch]] = {}
        self.made = 0

    async def split(self, log: Sequence[Sequence[Batch]], upto: int) -> None:
        """Split the blocks up to this one into runs of two retention classes, which count for both write groups."""
        batches = [batch for block in log[self.split_upto : upto] for batch in block]
        runs = []
        for name, part in (
            ("internal", [batch for batch in batches if batch.queue_id < 2]),
            ("forever", [batch for batch in batches if batch.queue_id >= 2]),
        ):
            if part:
                run = write_run(self.bench.files, f"{self.name}-{upto}-{name}.run", part, name)
                self.held[run.name] = part
                runs.append(run)
        for group in (0, 1):
            counting = [run for run in runs if any(one.queue_id % 2 == group for one in self.held[run.name])]
            await self.bench.store.splits.record(group, self.split_upto, upto, counting, applied_index=upto)
        self.split_upto = upto

    async def merge(self, choice: random.Random, first: int = 0, count: int = 1 << 30) -> None:
        """Merge neighbouring spans of the write group into packed files that are cut anywhere, and queue segments."""
        spans = self.bench.store.manifest.spans(GROUP)[first : first + count]
        inputs = [entry for span in spans for entry in span]
        if not inputs:
            return
        batches = sorted({batch for entry in inputs for batch in self.held[entry.name] if batch.queue_id % 2 == GROUP})
        self.made += 1
        parts: list[list[Batch]] = []
        for batch in batches:
            if not parts or choice.random() < 0.1:
                parts.append([])
            parts[-1].append(batch)
        outputs = []
        for number, part in enumerate(parts):
            name = f"{self.name}-{self.made}-{number}.pack"
            if part[0].queue_id == part[-1].queue_id and choice.random() < 0.7:
                name = segment_name("orders", part[0].queue_id, f"{self.name}-{self.made}", part[0].base_offset)
            outputs.append(write_merged(self.bench.files, name, GROUP, part, level=2 if "/" in name else 1))
            self.held[name] = part
        await self.bench.store.changes.merge(GROUP, inputs, outputs)

    async def compact(self, choice: random.Random) -> set[Batch]:
        """Put other files in the place of those of a span of merged files, without some batches; the last of a queue
        stays. Returns what is left out."""
        spans = [span for span in self.bench.store.manifest.spans(GROUP) if not span.runs]
        if not spans:
            return set()
        inputs = list(choice.choice(spans))
        batches = sorted(batch for entry in inputs for batch in self.held[entry.name])
        lasts = {batch.queue_id: batch for batch in batches}
        gone = {batch for batch in batches if batch not in lasts.values() and choice.random() < 0.3}
        self.made += 1
        name = f"{self.name}-{self.made}-compacted.pack"
        self.held[name] = [batch for batch in batches if batch not in gone]
        output = write_merged(self.bench.files, name, GROUP, self.held[name], level=2)
        await self.bench.store.changes.merge(GROUP, inputs, [output])
        return gone

    def image(self, starts: dict[int, int]) -> WriteGroupImage:
        """A snapshot of the write group, with its queues' log starts."""
        ranges = list(self.bench.store.manifest.spans(GROUP).described())
        image = WriteGroupImage(Snapshot(self.split_upto, 1, Membership.of([1, 2])), ranges)
        for queue_id in range(GROUP, QUEUES, 2):
            image.state[QUEUES_OF_GROUP] += struct.pack("<3q", queue_id, 1 << 40, starts.get(queue_id, 0))
        return image


class FromReplica:
    """Gives the files of another replica, and counts the bytes."""

    def __init__(self, replica: Replica, *, parts: bool = True) -> None:
        self._copies = replica.bench.store.copies
        self._files = replica.bench.store.manifest.files
        self.parts = parts
        self.asked = 0
        self.bytes = 0
        """That came."""
        self.of_batches: list[tuple[str, int, int]] = []
        """(file, position, length) of those that are not of an index."""
        self.alter: Callable[[bytes], bytes] = lambda piece: piece

    async def whole(self, name: str) -> AsyncIterator[bytes]:
        self.asked += 1
        async for piece in self._copies.pieces(name, 4096):
            self.bytes += len(piece)
            yield piece
        if name in self._files:
            self.of_batches.append((name, 0, self._files[name].batch_bytes))

    async def part(self, name: str, ranges: Sequence[ByteRange]) -> AsyncIterator[bytes]:
        self.asked += 1
        if not self.parts:
            raise GivesWholeFiles("an earlier version")
        file = self._files[name]
        index_at = file.batch_bytes + 64 if name.count("/") == 0 else file.bytes
        self.of_batches += [(name, *one) for one in ranges if one.position < index_at and one != (0, 64)]
        async for piece in self._copies.part(name, ranges, 4096):
            self.bytes += len(piece)
            yield self.alter(piece)

    @property
    def batch_bytes(self) -> int:
        return sum(length for _name, _position, length in self.of_batches)


def a_log(choice: random.Random, count: int) -> list[list[Batch]]:
    """Blocks, each with batches of some queues."""
    ends = dict.fromkeys(range(QUEUES), 0)
    log = []
    for _ in range(count):
        block = []
        for queue_id in choice.choices(range(QUEUES), k=choice.randint(0, 5)):
            records = choice.randint(1, 3)
            size = choice.choice([61, 100, 5000, 30_000])
            block.append(make_batch(queue_id, ends[queue_id], records=records, size=size))
            ends[queue_id] += records
        log.append(block)
    return log


async def take(
    receiver: Replica, sender: Replica, source: FromReplica, starts: dict[int, int] | None = None
) -> SnapshotFiles:
    """Take a snapshot, as a member does."""
    files = SnapshotFiles(receiver.bench.store, Halves(), GROUP, source, keeps_own=True)  # type: ignore[arg-type]

    async def image_of(with_state: bool) -> WriteGroupImage:
        return sender.image(starts or {})

    try:
        image = await files.take(image_of)
        await receiver.bench.store.changes.supersede(GROUP, image.name.index, files.ranges, files.kept_upto)
    finally:
        files.let_go()
    return files


class Halves:
    """The part of a `Placement` that copies ask for."""

    groups_at = staticmethod(groups_at)
    moved: ClassVar[Mapping[int, Sequence[Stay]]] = {}


async def check_history(
    replica: Replica, log: Sequence[Sequence[Batch]], starts: dict[int, int], upto: int, gone: Collection[Batch] = ()
) -> None:
    """Every batch of the write group from the log starts on is there once, in order, but for what is gone, and spans do
    not overlap."""
    spans = replica.bench.store.manifest.spans(GROUP)
    assert all(one.upto <= other.after for one, other in pairwise(spans))
    extents: dict[int, int] = {}
    async for rows in replica.bench.store.stored.all_rows(groups_at):
        for queue_id, base, last in rows[["queue_id", "base_offset", "last_offset"]].tolist():
            if queue_id % 2 == GROUP:
                assert base >= extents.get(queue_id, 0), "an offset is there twice"
                extents[queue_id] = last + 1
    for queue_id in range(GROUP, QUEUES, 2):
        start = starts.get(queue_id, 0)
        mine = [one for block in log[:upto] for one in block if one.queue_id == queue_id and one.last_offset >= start]
        found = await read_all(replica.bench.store, queue_id, GROUP, start, 1 << 20)
        assert found == [one.data for one in mine if one not in gone]


@given(st.integers(0, 2**32))
def test_f_a_returning_replica_has_the_history_once_whatever_both_merged_dropped_or_damaged(seed: int) -> None:
    choice = random.Random(seed)

    async def scenario(bench: Bench) -> None:
        sender, receiver = Replica(Path(directory), "sender"), Replica(Path(directory), "receiver")
        log = a_log(choice, choice.randint(1, 25))
        for replica in (sender, receiver):
            await replica.bench.start()
        starts: dict[int, int] = {}

        async def work(replica: Replica, upto: int) -> None:
            while replica.split_upto < upto:
                await replica.split(log, min(upto, replica.split_upto + choice.randint(1, 6)))
                if choice.random() < 0.4:
                    await replica.merge(choice, choice.randrange(4), choice.randint(1, 4))

        async def retain(replica: Replica, starts: dict[int, int]) -> None:
            await replica.bench.store.retention.retain(
                log_starts(dict.fromkeys(range(QUEUES), 0) | starts), ever_in=lambda ids, groups: ids >= 0
            )

        await work(receiver, choice.randint(0, len(log)))
        if choice.random() < 0.4:
            starts |= {queue_id: choice.randint(0, 12) for queue_id in range(QUEUES)}
            await retain(receiver, {queue_id: choice.randint(0, start) for queue_id, start in starts.items()})
        await work(sender, len(log))
        gone = await sender.compact(choice) if choice.random() < 0.4 else set()
        await retain(sender, starts)
        damaged = None
        if choice.random() < 0.3 and receiver.bench.store.manifest.ranges(GROUP):
            damaged = choice.choice(receiver.bench.store.manifest.ranges(GROUP))
            receiver.bench.store.damaged.note(damaged.name, StorageError("it was found so"))
        if choice.random() < 0.5:
            await receiver.bench.restart()
            if damaged is not None:
                receiver.bench.store.damaged.note(damaged.name, StorageError("it was found so"))
        kept_before = [(span.after, span.upto) for span in receiver.bench.store.manifest.spans(GROUP)]
        source = FromReplica(sender, parts=choice.random() < 0.8)
        files = await take(receiver, sender, source, starts)
        behind = {batch for block in log[files.kept_upto :] for batch in block}
        await check_history(receiver, log, starts, len(log), gone & behind)
        assert receiver.bench.store.splits.split_position(GROUP) == len(log)
        now = [(span.after, span.upto) for span in receiver.bench.store.manifest.spans(GROUP)]
        kept = [one for one in kept_before if one[1] <= files.kept_upto]
        assert now[: len(kept)] == kept
        lacking = {batch for batch in gone if batch.last_offset >= starts.get(batch.queue_id, 0)}
        assert not kept or not lacking & behind, "what was compacted there is not put behind what is here"
        if damaged is not None:
            assert files.kept_upto <= damaged.after
        elif source.parts and not gone & {batch for block in log[receiver.split_upto :] for batch in block}:
            assert files.kept_upto == receiver.split_upto
        await receiver.bench.restart()
        await check_history(receiver, log, starts, len(log), gone & behind)
        for replica in (sender, receiver):
            await replica.bench.store.close()

    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "bench").mkdir()
        Bench(Path(directory) / "bench").run(scenario)


async def merged_meanwhile(directory: Path) -> tuple[Replica, Replica, list[list[Batch]]]:
    """A replica that split 40 blocks, and a sender that split 20 more, and merged everything into one span."""
    choice = random.Random(5)
    log = a_log(choice, 60)
    sender, receiver = Replica(directory, "sender"), Replica(directory, "receiver")
    for replica, upto, slices in ((receiver, 40, 7), (sender, 60, 9)):
        await replica.bench.start()
        while replica.split_upto < upto:
            await replica.split(log, min(upto, replica.split_upto + slices))
    await receiver.merge(choice, 0, 3)
    await sender.merge(choice)
    return sender, receiver, log


@pytest.mark.parametrize("parts", [True, False])
def test_nothing_of_what_is_split_here_is_copied_though_the_sender_merged_all_of_it(
    tmp_path: Path, parts: bool
) -> None:
    async def scenario(bench: Bench) -> None:
        sender, receiver, log = await merged_meanwhile(tmp_path)
        spans = receiver.bench.store.manifest.spans(GROUP)
        before = [entry.name for span in spans for entry in span]
        source = FromReplica(sender, parts=parts)
        files = await take(receiver, sender, source)
        sizes = [len(one.data) for block in log for one in block if one.queue_id % 2 == GROUP]
        behind = sum(len(one.data) for block in log[40:] for one in block if one.queue_id % 2 == GROUP)
        now = [entry.name for entry in receiver.bench.store.manifest.ranges(GROUP)]
        if parts:
            assert files.kept_upto == 40
            assert now[: len(before)] == before
            extents_cut = QUEUES // 2 * 2 * 64 * 1024
            assert behind <= source.batch_bytes <= behind + extents_cut, "an extent that is cut comes whole"
            assert source.batch_bytes < sum(sizes) * 0.6
        else:
            assert files.kept_upto == 0
            assert not set(now) & set(before)
            assert source.batch_bytes == sum(sizes)
        await check_history(receiver, log, {}, 60)
        for replica in (sender, receiver):
            await replica.bench.store.close()

    (tmp_path / "bench").mkdir()
    Bench(tmp_path / "bench").run(scenario)


def test_a_copy_has_no_bytes_of_other_write_groups_and_is_found_by_the_next_attempt(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        log = a_log(random.Random(6), 30)
        sender, receiver = Replica(tmp_path, "sender"), Replica(tmp_path, "receiver")
        for replica in (sender, receiver):
            await replica.bench.start()
        await sender.split(log, 15)
        await sender.split(log, 30)
        image, source = sender.image({}), FromReplica(sender)
        source.alter = lambda piece: piece if len(piece) < 4096 else piece[:-1] + bytes([piece[-1] ^ 1])
        first = SnapshotFiles(receiver.bench.store, Halves(), GROUP, source, keeps_own=True)  # type: ignore[arg-type]
        with pytest.raises(StorageError, match="fails its CRC"):
            await first.fetch(image)
        first.let_go()
        assert receiver.bench.runs() == {name for name in receiver.bench.runs() if "tmp-copy" in name}
        source = FromReplica(sender)
        mine = [one.data for block in log for one in block if one.queue_id % 2 == GROUP]
        files = await take(receiver, sender, source)
        assert source.batch_bytes == sum(map(len, mine)) == sum(file.batch_bytes for *_blocks, file in files.ranges)
        assert {file.retention_class for *_blocks, file in files.ranges} == {"internal", "forever"}
        stored = b"".join(receiver.bench.files.content(path_of(file.name)) for *_blocks, file in files.ranges)
        assert all(data in stored for data in mine)
        others = [one.data for block in log for one in block if one.queue_id % 2 != GROUP and len(one.data) > 61]
        assert others
        assert not [data for data in others if data in stored]
        await check_history(receiver, log, {}, 30)
        again = FromReplica(sender)
        await receiver.bench.store.changes.supersede(GROUP, 0, [])
        await take(receiver, sender, again)
        assert again.batch_bytes == 0, "what an earlier attempt has copied is found by its name"
        await check_history(receiver, log, {}, 30)
        for replica in (sender, receiver):
            await replica.bench.store.close()

    (tmp_path / "bench").mkdir()
    Bench(tmp_path / "bench").run(scenario)


def test_nothing_stays_where_offsets_are_missing_behind_it(tmp_path: Path) -> None:
    """The sender has compacted a tombstone away, with all that is older of its key: here that is still there."""

    async def scenario(bench: Bench) -> None:
        log = [[make_batch(0, number), make_batch(2, number)] for number in range(30)]
        sender, receiver = Replica(tmp_path, "sender"), Replica(tmp_path, "receiver")
        for replica, upto in ((sender, 30), (receiver, 20)):
            await replica.bench.start()
            await replica.split(log, 10)
            await replica.split(log, upto)
        await sender.merge(random.Random(1), 1, 1)
        entries = sender.bench.store.manifest.spans(GROUP)[1]
        gone = [log[20][0]]
        left = sorted(one for entry in entries for one in sender.held[entry.name] if one not in gone)
        output = write_merged(sender.bench.files, "compacted.pack", GROUP, left, level=2)
        await sender.bench.store.changes.merge(GROUP, list(entries), [output])
        files = await take(receiver, sender, FromReplica(sender), {0: 21})
        assert files.kept_upto == 20, "below the log start nothing is missing"
        await receiver.bench.store.changes.supersede(GROUP, 20, [], 20)
        files = await take(receiver, sender, FromReplica(sender))
        assert files.kept_upto == 0
        await check_history(receiver, log, {}, 30, gone)
        for replica in (sender, receiver):
            await replica.bench.store.close()

    (tmp_path / "bench").mkdir()
    Bench(tmp_path / "bench").run(scenario)


# --- keys of compacted queues -----------------------------------------------------------------------------

KEYS = [b"a", b"b", b"c", b"d"]
COMPACTED_QUEUE, OTHER_QUEUE = 0, 2


def keyed(base: int, records: Sequence[tuple[bytes, bytes | None]], queue_id: int = COMPACTED_QUEUE) -> Batch:
    """A batch of records with these keys and values."""
    built = build_batch([NewRecord(timestamp=1000, key=key, value=value) for key, value in records])
    data = bytearray(built.data)
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">i", data, 12, 1)
    return Batch(queue_id, base, base + len(records) - 1, 1000, 1, bytes(data))


def latest(found: Sequence[bytes]) -> dict[bytes | None, bytes | None]:
    """The state of a reader of a compacted queue in the end: keys and their values; deleted ones are not in it."""
    state: dict[bytes | None, bytes | None] = {}
    for data in found:
        for batch in stored_batches(data):
            for record in read_records(batch):
                state[record.key] = record.value
    return {key: value for key, value in state.items() if value is not None}


async def compacted(replica: Replica, log: Sequence[Sequence[Batch]], *, tombstones_go: bool) -> None:
    """Merge all, then leave out the batches of the compacted queue, of a record each, that are not the latest of their
    keys, and tombstones if they may go; the last one stays."""
    await replica.merge(random.Random(1))
    mine = [batch for block in log for batch in block if batch.queue_id == COMPACTED_QUEUE]
    last_of: dict[bytes | None, Batch] = {}
    deleted = set()
    for batch in mine:
        (record,) = read_records(next(iter(stored_batches(batch.data))))
        last_of[record.key] = batch
        if record.value is None:
            deleted.add(batch)
    stay = {batch for batch in last_of.values() if not (tombstones_go and batch in deleted)} | {mine[-1]}
    entries = [entry for span in replica.bench.store.manifest.spans(GROUP) for entry in span]
    batches = sorted({batch for entry in entries for batch in replica.held[entry.name]} - (set(mine) - stay))
    replica.held["compacted.pack"] = batches
    output = write_merged(replica.bench.files, "compacted.pack", GROUP, batches, level=2)
    await replica.bench.store.changes.merge(GROUP, entries, [output])


def keys_and_others(
    choice: random.Random, count: int, records: Sequence[tuple[bytes, bytes | None]] = ()
) -> list[list[Batch]]:
    """Blocks with a record of the compacted queue each, these or random ones, and more bytes of another queue."""
    some = records or [(choice.choice(KEYS), choice.choice([None, b"v%d" % n])) for n in range(count)]
    return [
        [keyed(number, [record]), make_batch(OTHER_QUEUE, number, size=20_000)] for number, record in enumerate(some)
    ]


async def came_back(
    directory: Path, log: Sequence[Sequence[Batch]], split_upto: int, *, tombstones_go: bool
) -> tuple[SnapshotFiles, FromReplica, dict[bytes | None, bytes | None]]:
    """A replica that has split some blocks takes a snapshot of one that has compacted all: what is asked for, and what
    readers of the compacted queue hold in the end."""
    sender, receiver = Replica(directory, "sender"), Replica(directory, "receiver")
    for replica, upto in ((receiver, split_upto), (sender, len(log))):
        await replica.bench.start()
        await replica.split(log, upto)
    await compacted(sender, log, tombstones_go=tombstones_go)
    source = FromReplica(sender)
    files = await take(receiver, sender, source)
    found = await read_all(receiver.bench.store, COMPACTED_QUEUE, GROUP, 0, 1 << 20)
    others = await read_all(receiver.bench.store, OTHER_QUEUE, GROUP, 0, 1 << 20)
    assert others == [batch.data for block in log for batch in block if batch.queue_id == OTHER_QUEUE]
    for replica in (sender, receiver):
        await replica.bench.store.close()
    return files, source, latest(found)


A, B, C = KEYS[:3]


@pytest.mark.parametrize(
    ("records", "tombstones_go", "kept"),
    [
        # what is superseded behind the split position has gone there, and its successor says so
        ([(A, b"1"), (B, b"1"), (C, b"1"), (A, b"2"), (A, b"3"), (B, b"2"), (A, b"4")], False, True),
        # a tombstone is there yet
        ([(A, b"1"), (B, b"1"), (C, b"1"), (A, b"2"), (A, None), (B, b"2"), (C, b"4")], False, True),
        # one that has gone was of a key of which nothing is here
        ([(A, b"1"), (B, b"1"), (B, b"2"), (C, b"2"), (C, None), (B, b"2"), (A, b"4")], True, True),
        # one that has gone was of a key that is here: it would come back
        ([(A, b"1"), (B, b"1"), (C, b"1"), (A, b"2"), (A, None), (B, b"2"), (C, b"4")], True, False),
    ],
)
def test_a_queue_that_was_compacted_behind_what_is_here_costs_its_own_bytes_unless_a_key_would_come_back(
    tmp_path: Path, records: list[tuple[bytes, bytes | None]], tombstones_go: bool, kept: bool
) -> None:
    async def scenario(bench: Bench) -> None:
        log = keys_and_others(random.Random(1), len(records), records)
        files, source, state = await came_back(tmp_path, log, 3, tombstones_go=tombstones_go)
        assert state == latest([batch.data for block in log for batch in block if batch.queue_id == COMPACTED_QUEUE])
        assert files.kept_upto == (3 if kept else 0)
        here = [name for name, position, length in source.of_batches if length > 64]
        behind, all_bytes = 4 * 20_000, 7 * 20_000
        assert here
        if kept:
            assert behind <= source.batch_bytes <= behind + 64 * 1024 + 2000, "an extent that is cut comes whole"
        else:
            assert source.batch_bytes >= all_bytes

    (tmp_path / "bench").mkdir()
    Bench(tmp_path / "bench").run(scenario)


OPEN, MARKER = (A, b"open"), (B, b"marker")


@pytest.mark.parametrize(
    ("behind", "kept"),
    [
        # the sender has the batch yet, and so the marker
        ([MARKER, (C, b"1"), (C, b"2")], True),
        # the batch is gone there, and the marker may be, though its producer has another one
        ([MARKER, (A, b"2"), (C, b"1"), MARKER, (C, b"2")], False),
    ],
)
def test_a_transaction_that_is_open_in_what_is_kept_is_ended_behind_it_or_all_is_copied(
    tmp_path: Path, behind: list[tuple[bytes, bytes | None]], kept: bool
) -> None:
    """The sender keeps the latest records and markers, as `compacted` takes these for records."""

    async def scenario(bench: Bench) -> None:
        log = [
            [of_transactions(batch) if batch.queue_id == COMPACTED_QUEUE else batch for batch in block]
            for block in keys_and_others(random.Random(1), 0, [(C, b"0"), OPEN, *behind])
        ]
        files, _source, state = await came_back(tmp_path, log, 2, tombstones_go=False)
        assert state == latest([batch.data for block in log for batch in block if batch.queue_id == COMPACTED_QUEUE])
        assert files.kept_upto == (2 if kept else 0)

    (tmp_path / "bench").mkdir()
    Bench(tmp_path / "bench").run(scenario)


def of_transactions(batch: Batch) -> Batch:
    """The same as one of a transaction of producer 7, or as its marker."""
    (record,) = read_records(next(iter(stored_batches(batch.data))))
    if (record.key, record.value) == MARKER:
        built = build_control_batch(
            ControlType.ABORT, timestamp=1000, producer_id=7, producer_epoch=0, coordinator_epoch=1
        )
    elif (record.key, record.value) == OPEN:
        assert record.key is not None
        new = NewRecord(timestamp=1000, key=record.key, value=record.value)
        built = build_batch([new], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    else:
        return batch
    data = bytearray(built.data)
    struct.pack_into(">q", data, 0, batch.base_offset)
    struct.pack_into(">i", data, 12, 1)
    return batch._replace(data=bytes(data))


@given(st.integers(0, 2**32))
def test_at_random_no_deleted_key_comes_back_to_a_replica_that_returns(seed: int) -> None:
    choice = random.Random(seed)

    async def scenario(bench: Bench) -> None:
        log = keys_and_others(choice, choice.randint(2, 14))
        split_upto = choice.randint(1, len(log) - 1)
        _files, _source, state = await came_back(Path(directory), log, split_upto, tombstones_go=choice.random() < 0.6)
        mine = [batch for block in log for batch in block if batch.queue_id == COMPACTED_QUEUE]
        assert state == latest([batch.data for batch in mine])

    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "bench").mkdir()
        Bench(Path(directory) / "bench").run(scenario)


def test_what_was_merged_with_blocks_that_are_not_kept_is_not_kept(tmp_path: Path) -> None:
    """The choice was made before the merge: the snapshot is refused, and nothing is changed."""

    async def scenario(bench: Bench) -> None:
        log = a_log(random.Random(7), 30)
        receiver = Replica(tmp_path, "receiver")
        await receiver.bench.start()
        for upto in (10, 20, 30):
            await receiver.split(log, upto)
        await receiver.merge(random.Random(1), 1, 2)
        before = receiver.bench.store.manifest.ranges(GROUP)
        with pytest.raises(StorageError, match="merged up to block 30 meanwhile"):
            await receiver.bench.store.changes.supersede(GROUP, 40, [], 20)
        with pytest.raises(StorageError, match="not split up to block 31"):
            await receiver.bench.store.changes.supersede(GROUP, 40, [], 31)
        assert receiver.bench.store.manifest.ranges(GROUP) == before
        assert receiver.bench.store.splits.split_position(GROUP) == 30
        await receiver.bench.store.close()

    (tmp_path / "bench").mkdir()
    Bench(tmp_path / "bench").run(scenario)
