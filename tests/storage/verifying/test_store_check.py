"""A check of a whole store finds each flipped bit, each file that is not there, and nothing where all is well."""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from pathlib import Path

import google_crc32c
import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.files import SimulatedFile, SimulatedFiles
from tests.fakes.splitting.run_reader import batches_in, rows_and_aborted
from tests.storage.queue_store.changes.test_merged_files import Merges
from tests.storage.queue_store.merges import PlainTarget, offset_entries, time_entries
from tests.storage.queue_store.runs import make_batch, write_run
from tests.storage.queue_store.test_store import Bench

from mainstem.ports import ReadingMode
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_format import EXTENT_ROW, FRAME_BYTES, RUN_MAGIC, FileFrame
from mainstem.storage.queue_store.manifest.copy_on_disk.copied_manifest import read_copy
from mainstem.storage.queue_store.manifest.database.manifest_database import Contents, Database, WriteGroupPosition
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.manifest.manifest_rows import COPY_DIRECTORY
from mainstem.storage.queue_store.manifest.store_mark import MARK_NAME, SLOT_DISTANCE, read_mark
from mainstem.storage.store_files.segment_writer import SegmentWriter
from mainstem.storage.store_files.segment_writer import described as described_rows
from mainstem.storage.store_files.store_file import (
    FileKind,
    StoreFile,
    index_path_of,
    kind_of,
    owner_of,
    path_of,
    paths_of,
    segment_name,
)
from mainstem.storage.verifying import file_check
from mainstem.storage.verifying.file_check import check_file
from mainstem.storage.verifying.findings import FINDINGS_PER_FILE_MAX, Finding
from mainstem.storage.verifying.store_check import CheckProgress, StoreReport, check_store, manifest_faults


class Kept:
    """A store that was written and closed: its disk, its manifest, and what that says."""

    def __init__(self, files: SimulatedFiles, database: Path) -> None:
        self.files = files
        self.database = database
        self.contents = Database(str(database)).read()

    def named(self, kind: FileKind) -> list[StoreFile]:
        return [file for file in self.contents.files if kind_of(file.name) is kind]


def with_kafka_indexes(files: SimulatedFiles, name: str) -> None:
    """Give a segment the indexes that Kafka would have written."""
    if kind_of(name) is FileKind.SEGMENT:
        log, _extents, index, timeindex = paths_of(name)
        batches = batches_in(files.content(log))
        files.put(index, b"".join(struct.pack(">ii", *entry) for entry in offset_entries(batches)))
        files.put(timeindex, b"".join(struct.pack(">qi", *entry) for entry in time_entries(batches)))


class TrueMerges(Merges):
    """Merges whose segments have what belongs to them."""

    def merged(self, *arguments: object) -> list[StoreFile]:
        found = super().merged(*arguments)  # type: ignore[arg-type]
        for file in found:
            with_kafka_indexes(self.bench.files, file.name)
        return found


async def story(bench: Bench, seed: int, steps: int = 12) -> TrueMerges:
    merges = TrueMerges(bench, random.Random(seed))
    for _ in range(steps):
        await merges.split()
        if merges.choice.random() < 0.6:
            await merges.merge(merges.choice.randrange(2))
    return merges


@cache
def kept(seed: int = 4) -> Kept:
    """Made once: a test that changes something works on copies."""
    directory = Path(tempfile.mkdtemp())
    bench = Bench(directory)

    async def write(bench: Bench) -> None:
        await story(bench, seed)

    bench.run(write)
    return Kept(bench.files, Path(bench.database))


@pytest.fixture(scope="module", autouse=True)
def _removed() -> Iterator[None]:
    yield
    shutil.rmtree(kept().database.parent)
    kept.cache_clear()


def checked(files: SimulatedFiles, database: Path | None, jobs: int = 1) -> StoreReport:
    return asyncio.run(check_store([files] * jobs, str(database) if database is not None else None))


def test_the_store_of_these_tests_has_files_of_all_kinds() -> None:
    for kind in FileKind:
        assert kept().named(kind), kind
    assert any(entry.group == 1 for entry in kept().contents.ranges)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("jobs", [1, 3])
def test_nothing_is_found_where_all_is_well(tmp_path: Path, seed: int, jobs: int) -> None:
    bench = Bench(tmp_path)
    told: list[CheckProgress] = []

    async def scenario(bench: Bench) -> None:
        await story(bench, seed)
        await bench.store.orphans.due(set(bench.store.manifest.files))

    bench.run(scenario)
    report = asyncio.run(check_store([bench.files] * jobs, bench.database, told.append))
    contents = Database(bench.database).read()
    assert report.findings == []
    assert (report.files, report.gone, report.findings_left_out) == (len(contents.files), 0, 0)
    assert {owner_of(unnamed.path) for unnamed in report.unnamed} & {file.name for file in contents.files} == set()
    assert report.bytes >= sum(file.batch_bytes for file in contents.files)
    assert told[-1].files == told[-1].files_total == len(contents.files)
    alone = checked(bench.files, None)
    assert (alone.findings, alone.unnamed) == ([], [])


def every_place() -> st.SearchStrategy[tuple[str, int]]:
    """A file of the store, and one of its bits."""
    paths = [MARK_NAME, *(path for file in kept().contents.files for path in paths_of(file.name)), *copy_paths()]
    sizes = {path: 8 * len(kept().files.content(path)) for path in paths}
    return st.sampled_from([path for path in paths if sizes[path]]).flatmap(
        lambda path: st.tuples(st.just(path), st.integers(0, sizes[path] - 1))
    )


def copy_paths() -> list[str]:
    return [path for path in kept().files.paths() if path.startswith(f"{COPY_DIRECTORY}/")]


@settings(max_examples=examples(60))
@given(st.data())
def test_each_flipped_bit_is_found_in_its_file(data: st.DataObject) -> None:
    path, bit = data.draw(every_place())
    files = kept().files.clone(0)
    files.flip(path, bit)
    report = checked(files, kept().database)
    assert report.findings
    assert {finding.path for finding in report.findings} & {path, index_path_of(owner_of(path) or "0.run")}, path
    assert all(finding.advice for finding in report.findings)
    if path in copy_paths():
        assert [finding.path for finding in report.findings] == [path]
    elif path != MARK_NAME:
        assert {finding.name for finding in report.findings} == {owner_of(path)}
        without_manifest = checked(files, None)
        assert without_manifest.findings, "the file alone tells as much"


def test_every_file_of_the_store_is_of_a_kind_that_is_checked(tmp_path: Path) -> None:
    """The files of a store, and the finding about a file that lacks its last byte: damage, or that it does not
    count."""
    counted = {MARK_NAME, *copy_paths(), *(path for file in kept().contents.files for path in paths_of(file.name))}
    told = {one.path for one in checked(kept().files, kept().database).unnamed}
    assert set(kept().files.paths()) == counted | told
    for path in sorted(counted):
        files = kept().files.clone(0)
        content = files.content(path)
        files.put(path, content[:-1])
        found = {finding.path for finding in checked(files, kept().database).findings}
        beside = index_path_of(owner_of(path) or "0.run")
        assert found & {path, beside} or not content, path


def test_each_file_of_the_copy_that_is_missing_is_told_unless_others_say_as_much() -> None:
    mark = asyncio.run(read_mark(kept().files))
    assert mark is not None
    told = 0
    for path in copy_paths():
        files = kept().files.clone(0)
        files.forget(path)
        copied, _faults = asyncio.run(read_copy(files, mark.identity))
        is_whole = copied is not None and copied.contents.changes >= mark.changes
        findings = checked(files, kept().database).findings
        assert [finding.path for finding in findings] == ([] if is_whole else [COPY_DIRECTORY])
        told += len(findings)
    assert told


def parts_of(name: str, files: SimulatedFiles) -> Iterator[tuple[str, int]]:
    """Each byte of what tells about batches, and of the header of a batch, in every file of a segment or a run."""
    path, *_beside = paths = paths_of(name)
    index = files.content(index_path_of(name))
    footer = FileFrame.unpack(index[-FRAME_BYTES:], struct.unpack_from("<Q", index)[0], name)
    first = 0 if len(paths) > 1 else FRAME_BYTES
    yield from ((path, at) for at in range(first + 61 + 2))
    rows_end = footer.rows_position + EXTENT_ROW.itemsize
    yield from ((index_path_of(name), at) for at in range(footer.rows_position, rows_end))
    yield from ((index_path_of(name), len(index) - 1 - at) for at in range(2 * FRAME_BYTES))
    for beside in paths[2:]:
        yield from ((beside, at) for at in range(0, len(files.content(beside)), 3))


@pytest.mark.parametrize("kind", FileKind, ids=lambda kind: kind.value)
def test_each_byte_of_headers_rows_and_footers_counts(kind: FileKind) -> None:
    file = max(kept().named(kind), key=lambda file: file.batch_bytes)
    choice = random.Random(1)

    async def found(path: str, at: int) -> list[Finding]:
        files = kept().files.clone(0)
        files.flip(path, 8 * at + choice.randrange(8))
        return await check_file(files, file.name, file)

    async def all_found() -> None:
        assert await check_file(kept().files, file.name, file) == []
        for path, at in parts_of(file.name, kept().files):
            assert await found(path, at), (path, at)

    asyncio.run(all_found())


@settings(max_examples=examples(60))
@given(st.data())
def test_a_flipped_bit_of_the_manifest_is_found_or_changes_nothing_it_says(data: st.DataObject) -> None:
    content = kept().database.read_bytes()
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "manifest.sqlite"
        copy.write_bytes(content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :])
        report = checked(kept().files, copy)
        if not report.findings:
            assert Database(str(copy)).read() == kept().contents
        else:
            assert any(str(copy) == finding.path for finding in report.findings)
        assert [path.name for path in Path(directory).iterdir()] == [copy.name], "nothing is written beside it"


@pytest.mark.parametrize("kind", FileKind, ids=lambda kind: kind.value)
def test_damage_of_an_index_is_told_with_its_position(kind: FileKind) -> None:
    file = one(kind)
    path = index_path_of(file.name)
    content = kept().files.content(path)
    footer_at = len(content) - FRAME_BYTES
    footer = FileFrame.unpack(content[footer_at:], struct.unpack_from("<Q", content)[0], path)
    for bit, place in ((8 * 20, 0), (8 * footer_at + 200, footer_at), (8 * footer.rows_position, footer.rows_position)):
        files = kept().files.clone(0)
        files.flip(path, bit)
        (finding,) = asyncio.run(check_file(files, file.name, file))
        assert (finding.path, finding.position) == (path, place)


def one(kind: FileKind) -> StoreFile:
    return max(kept().named(kind), key=lambda file: file.batch_bytes)


@pytest.mark.parametrize("kind", FileKind, ids=lambda kind: kind.value)
def test_missing_and_cut_files_are_found(kind: FileKind) -> None:
    for path in paths_of(one(kind).name):
        files = kept().files.clone(0)
        content = files.content(path)
        files.forget(path)
        assert [(finding.path, finding.what) for finding in checked(files, kept().database).findings] == [
            (path, "is missing")
        ]
        for wrong in {content[:-1], content[: len(content) // 2], b"", content + b"\0"} - {content}:
            files.put(path, wrong)
            assert checked(files, kept().database).findings, (path, len(wrong))


@pytest.mark.parametrize(
    "field", ["bytes", "batch_bytes", "batch_count", "record_count", "queue_count", "min_timestamp", "max_timestamp"]
)
@pytest.mark.parametrize("kind", FileKind, ids=lambda kind: kind.value)
def test_a_file_that_is_not_what_the_manifest_says_of_it_is_found(kind: FileKind, field: str) -> None:
    file = one(kind)
    said = msgspec.structs.replace(file, **{field: getattr(file, field) + 1})
    assert asyncio.run(check_file(kept().files, file.name, file)) == []
    (finding,) = asyncio.run(check_file(kept().files, file.name, said))
    assert "has" in finding.what or "timestamps" in finding.what


@pytest.mark.parametrize(("partition", "base"), [(3, 17), (4, 17), (3, 18)])
def test_a_segment_in_another_queues_place_is_found(tmp_path: Path, partition: int, base: int) -> None:
    """Its checksums are right, also that of its name."""
    files = SimulatedFiles()
    batch = make_batch(3, 17, records=2)
    name = segment_name("orders", partition, "m", base)

    def put(path: Path) -> None:
        files.put(str(path.relative_to(tmp_path)), path.read_bytes())

    stem = tmp_path / path_of(name).removesuffix(".log")
    with SegmentWriter(name, 17, lambda suffix: PlainTarget(stem.with_suffix(suffix))) as writer:
        rows = numpy.array([[0, len(batch.data), 17, 18, batch.max_timestamp, 2, batch.leader_epoch]], numpy.int64)
        writer.append(batch.data, described_rows(rows, 3), rows)
        writer.finish()
    for path in paths_of(name):
        put(tmp_path / path)
    told = [finding.what for finding in asyncio.run(check_file(files, name))]
    assert told == (
        ["its index is not of partition 4 alone"]
        if partition == 4
        else ["begins with offset 17, which its name does not say"]
        if base == 18
        else []
    )


class InTheMiddle:
    """A disk that lets something happen when the first run is opened."""

    def __init__(self, files: SimulatedFiles, happens: Callable[[], Awaitable[object]]) -> None:
        self._files = files
        self._happens: Callable[[], Awaitable[object]] | None = happens
        self.names = files.names
        self.rename = files.rename
        self.remove = files.remove
        self.usage = files.usage

    async def open(self, path: str, *, create: bool = False, reading: ReadingMode = ReadingMode.USUAL) -> SimulatedFile:
        if path.startswith("runs/") and self._happens is not None:
            happens, self._happens = self._happens, None
            await happens()
        return await self._files.open(path, create=create, reading=reading)


def test_a_file_that_is_recorded_meanwhile_is_no_orphan(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def scenario(bench: Bench) -> None:
        await story(bench, 2, steps=3)
        position = bench.store.splits.split_position(0)
        new = write_run(bench.files, "new.run", [make_batch(0, 1000)])

        async def commit() -> None:
            await bench.store.splits.record(0, position, position + 1, [new], applied_index=position)

        report = await check_store([InTheMiddle(bench.files, commit)], bench.database)
        assert report.findings == []
        assert "runs/new.run" not in {unnamed.path for unnamed in report.unnamed}
        assert "new.run" in bench.store.manifest.files

    bench.run(scenario)


def test_a_file_in_the_place_of_another_is_found() -> None:
    files = kept().files.clone(0)
    first, second = kept().named(FileKind.RUN)[:2]
    files.put(path_of(second.name), files.content(path_of(first.name)))
    report = checked(files, kept().database)
    assert {finding.name for finding in report.findings} == {second.name}


def rewritten(content: bytes, field: str, change: int) -> bytes:
    """A run whose first index row says something else, with right checksums."""
    footer = FileFrame.unpack(content[-FRAME_BYTES:], RUN_MAGIC, "footer")
    index, aborted = rows_and_aborted(content, footer)
    rows = numpy.frombuffer(index, EXTENT_ROW).copy()
    rows[field][0] += change
    index = rows.tobytes()
    footer = footer._replace(rows_crc=google_crc32c.value(index))
    return content[: footer.rows_position] + index + aborted + footer.pack()


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("leader_epoch", "leader epoch"), ("max_timestamp", "largest timestamp"), ("record_count", "records"),
        ("batch_count", "batches"), ("last_offset", "last offset"), ("base_offset", "first offset"),
    ],
)  # fmt: skip
def test_an_index_that_lies_about_its_batches_is_found_though_its_checksums_are_right(field: str, told: str) -> None:
    files = kept().files.clone(0)
    path = path_of(one(FileKind.RUN).name)
    change = -1 if field == "base_offset" else 1
    files.put(path, rewritten(files.content(path), field, change))
    report = checked(files, None)
    assert any(finding.what.startswith(f"{told}: ") for finding in report.findings), report.findings
    assert {finding.path for finding in report.findings} == {path}


def test_a_batch_that_was_damaged_before_it_was_written_is_found_though_its_extent_is_as_written() -> None:
    files = kept().files.clone(0)
    path = path_of(one(FileKind.RUN).name)
    content = bytearray(files.content(path))
    footer = FileFrame.unpack(content[-FRAME_BYTES:], RUN_MAGIC, "footer")
    index, aborted = rows_and_aborted(bytes(content), footer)
    rows = numpy.frombuffer(index, EXTENT_ROW).copy()
    place = int(rows["position"][-1])
    content[place + 40] ^= 1  # in the largest timestamp of its first batch
    rows["crc"][-1] = google_crc32c.value(bytes(content[place : place + int(rows["length"][-1])]))
    index = rows.tobytes()
    footer = footer._replace(rows_crc=google_crc32c.value(index))
    files.put(path, bytes(content[: footer.rows_position]) + index + aborted + footer.pack())
    (finding,) = [it for it in checked(files, None).findings if "fails its CRC" in it.what]
    assert (finding.path, finding.position) == (path, place)


def test_a_file_of_zeros_has_some_findings_and_not_one_for_each_extent(monkeypatch: pytest.MonkeyPatch) -> None:
    files = kept().files.clone(0)
    file = max(kept().named(FileKind.RUN), key=lambda file: file.queue_count)
    content = bytearray(files.content(path_of(file.name)))
    for at in range(FRAME_BYTES, FRAME_BYTES + file.batch_bytes):
        content[at] = 0
    files.put(path_of(file.name), bytes(content))
    monkeypatch.setattr(file_check, "FINDINGS_PER_FILE_MAX", 2)
    findings = asyncio.run(check_file(files, file.name, file))
    assert len(findings) == 2 < FINDINGS_PER_FILE_MAX
    assert findings[0].position == FRAME_BYTES


def test_files_that_the_manifest_does_not_name_are_told_and_are_no_damage() -> None:
    files = kept().files.clone(0)
    run, segment = one(FileKind.RUN), one(FileKind.SEGMENT)
    files.put("runs/other.run", b"abc")
    files.put(f"{path_of(run.name)}.tmp-17", b"12")
    files.put(index_path_of(segment.name).replace("queues/orders", "queues/gone"), b"x")
    files.put("packed/README", b"hello")
    report = checked(files, kept().database)
    assert report.findings == []
    assert {(it.path, it.bytes, it.kind) for it in report.unnamed} - {
        (it.path, it.bytes, it.kind) for it in checked(kept().files, kept().database).unnamed
    } == {
        ("runs/other.run", 3, "orphan"),
        (f"{path_of(run.name)}.tmp-17", 2, "temporary"),
        (index_path_of(segment.name).replace("queues/orders", "queues/gone"), 1, "orphan"),
        ("packed/README", 5, "unknown"),
    }


@pytest.mark.parametrize("place", [0, SLOT_DISTANCE])
def test_a_mark_that_is_missing_or_of_another_store_is_found(place: int) -> None:
    files = kept().files.clone(0)
    mark = bytearray(files.content(MARK_NAME))
    files.forget(MARK_NAME)
    told = [(it.path, it.what) for it in checked(files, kept().database).findings]
    assert told == [(MARK_NAME, "no whole copy is there")]
    mark[place + 30] ^= 4
    files.put(MARK_NAME, bytes(mark))
    assert [(it.path, it.position) for it in checked(files, kept().database).findings][:1] == [(MARK_NAME, place)]


def test_a_store_with_the_manifest_of_another_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def scenario(bench: Bench) -> None:
        await story(bench, 5, steps=1)

    bench.run(scenario)
    told = [it.what for it in checked(bench.files, kept().database).findings]
    assert any(f"is of store {kept().contents.identity}; this is store" in what for what in told)


def test_an_older_copy_of_the_manifest_is_found(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    old = tmp_path / "old.sqlite"

    async def scenario(bench: Bench) -> None:
        merges = await story(bench, 3, steps=2)
        await bench.store.close()
        shutil.copy(bench.database, old)
        await bench.start()
        await merges.split(1, 2, 3)

    bench.run(scenario)
    assert checked(bench.files, Path(bench.database)).findings == []
    told = [it.what for it in checked(bench.files, old).findings]
    assert any("it is an old copy, or has lost some" in what for what in told)


def test_a_manifest_that_is_missing_is_told_and_the_files_are_checked_all_the_same(tmp_path: Path) -> None:
    report = checked(kept().files, tmp_path / "manifest.sqlite")
    (finding,) = report.findings
    assert "there is no manifest" in finding.what
    assert report.files >= len(kept().contents.files)


def faults(*ranges: tuple[int, int, int, str], files: list[StoreFile], position: int = 100) -> list[str]:
    entries = [FileRange(number, *entry) for number, entry in enumerate(ranges)]
    contents = Contents(
        identity=None, changes=1, files=files, ranges=entries, positions={0: WriteGroupPosition(position, 0)},
        dropped=set(), seen={},
    )  # fmt: skip
    return [finding.what for finding in manifest_faults(contents, "manifest.sqlite")]


def described(name: str, **more: int) -> StoreFile:
    return StoreFile(
        name=name, retention_class="forever", bytes=9, batch_bytes=8, batch_count=7, record_count=6, queue_count=5,
        min_timestamp=-1, max_timestamp=4, **more,
    )  # fmt: skip


def test_what_a_manifest_says_must_fit_together() -> None:
    one, other = described("1.run"), described("2.run")
    assert faults((0, 0, 5, "1.run"), (0, 5, 9, "2.run"), files=[one, other]) == []
    assert "overlap" in faults((0, 0, 5, "1.run"), (0, 4, 9, "2.run"), files=[one, other])[0]
    assert "counts for no write group" in faults((0, 0, 5, "1.run"), files=[one, other])[0]
    assert "does not describe" in faults((0, 0, 5, "1.run"), (0, 5, 9, "3.run"), files=[one])[0]
    assert "is split up to 4" in faults((0, 0, 5, "1.run"), files=[one], position=4)[0]
    assert "has blocks (5, 5]" in faults((0, 5, 5, "1.run"), files=[one])[0]
    keys = {"level": 1, "first_offset": 0}
    merged = [
        described("1.pack", group=0, first_queue=0, last_queue=3, **keys),
        described("2.pack", group=0, first_queue=2, last_queue=5, **keys),
    ]
    assert "keys overlap" in faults((0, 0, 5, "1.pack"), (0, 0, 5, "2.pack"), files=merged)[0]
    merged = [msgspec.structs.replace(merged[0], group=1)]
    assert "is of write group 1 and counts for 0" in faults((0, 0, 5, "1.pack"), files=merged)[0]


def test_a_node_may_merge_meanwhile(tmp_path: Path) -> None:
    """Files that go under the eyes of the check are no damage."""
    gone = 0

    async def scenario(bench: Bench) -> None:
        nonlocal gone
        merges = await story(bench, seed)
        checking = asyncio.ensure_future(check_store([bench.files, bench.files], bench.database))
        while not checking.done():
            await asyncio.sleep(merges.choice.choice([0, 0.001, 0.003]))
            await merges.merge(merges.choice.randrange(2))
        report = await checking
        assert report.findings == []
        gone += report.gone

    for seed in range(8):
        (tmp_path / str(seed)).mkdir()
        Bench(tmp_path / str(seed)).run(scenario)
    assert gone, "some files went"


def test_the_manifest_of_a_running_node_is_read_without_being_written(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def state() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.endswith("-shm")}

    async def scenario(bench: Bench) -> None:
        merges = await story(bench, 2, steps=3)
        before = state()
        contents = Database(bench.database).read()
        assert {file.name: file for file in contents.files} == bench.store.manifest.files
        assert state() == before
        await merges.split()

    bench.run(scenario)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.sqlite"]
    Database(bench.database).read()
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.sqlite"]


def test_a_crash_leaves_a_log_that_is_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "live")
    (tmp_path / "live").mkdir()
    copies = tmp_path / "copies"

    async def scenario(bench: Bench) -> None:
        merges = await story(bench, 2, steps=2)
        await merges.split(1, 2)
        shutil.copytree(tmp_path / "live", copies)
        assert {file.name for file in Database(str(copies / "manifest.sqlite")).read().files} == set(
            bench.store.manifest.files
        )

    bench.run(scenario)


def test_a_manifest_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    import sqlite3

    copy = tmp_path / "manifest.sqlite"
    shutil.copy(kept().database, copy)
    database = sqlite3.connect(copy)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(FormatError, match="manifest schema 99"):
        Database(str(copy)).read()
