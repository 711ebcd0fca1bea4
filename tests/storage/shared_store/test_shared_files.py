"""Merges and compactions of files in a shared store write, byte for byte, what those of a disk do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy
import pytest
from tests.fakes.splitting.latest_records import latest_records
from tests.storage.compacting.test_whole_passes import QUEUES, World
from tests.storage.merging.test_merge_files import batches_of
from tests.storage.queue_store.merges import GROUP, MergeStore, PlainTarget
from tests.storage.queue_store.runs import make_batch
from tools.s3_server import CREDENTIALS, s3_server

from mainstem.model import Buffer
from mainstem.ports import ObjectRange
from mainstem.storage.compacting.compact_files import compact_file, scan_file
from mainstem.storage.compacting.compact_plan import QUEUE_ROW
from mainstem.storage.compacting.pass_places import KeyColumns
from mainstem.storage.extents.extent_format import FRAME_BYTES
from mainstem.storage.merging.merge_files import merge_files
from mainstem.storage.merging.merge_inputs import TAIL_BYTES, InputDamaged, InputFile, index_pieces
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.merging.merge_liveness import Liveness
from mainstem.storage.merging.merge_measure import TopicFacts, measure
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import ObjectStoreOutage, ObjectStoreUnavailable
from mainstem.storage.object_stores.local import LocalObjectStore
from mainstem.storage.shared_store.announced_files import AnnouncedFiles
from mainstem.storage.shared_store.blocking_store import BlockingStore
from mainstem.storage.shared_store.object_inputs import TAIL_READ_BYTES, ObjectInputs
from mainstem.storage.shared_store.shared_store import SharedStore
from mainstem.storage.store_files.object_names import file_objects, object_of
from mainstem.storage.store_files.store_file import StoreFile, index_path_of, path_of, paths_of

LINES = MergeLines(packed_bytes=20_000, level_one_bytes=4_000, wait_bytes_max=8_000, task_bytes=60_000)
PART_BYTES = 10_000


class Objects:
    """A shared store, and what was announced for it."""

    def __init__(self, store: BlockingStore) -> None:
        self.store = store
        self.announced: list[list[str]] = []
        self.files = AnnouncedFiles(store, lambda _group, names: self.announced.append(list(names)))

    def inputs(self, files: Sequence[InputFile], tail_read_bytes: int = TAIL_READ_BYTES) -> ObjectInputs:
        return ObjectInputs(self.store, [file.index_path for file in files], tail_read_bytes=tail_read_bytes)

    def put(self, root: Path, name: str) -> InputFile:
        """A file of a disk, in the store as well."""
        for path, one in zip(paths_of(name), file_objects(GROUP, name), strict=True):
            self.store.write(one, (root / path).read_bytes())
        return InputFile(name, object_of(GROUP, path_of(name)), object_of(GROUP, index_path_of(name)))

    def content(self, path: str) -> bytes:
        _size, found = self.store.begin_reading(object_of(GROUP, path), 1 << 40).result()
        return bytes(found)

    def check(self, root: Path, files: Sequence[StoreFile]) -> None:
        """The store has these files as the disk does."""
        for file in files:
            for path in paths_of(file.name):
                assert self.content(path) == (root / path).read_bytes(), path


class LocalBytes(LocalObjectStore):
    """A directory that may be out."""

    out = False

    async def read(self, name: str, ranges: Sequence[ObjectRange]) -> list[Buffer]:
        if self.out:
            raise ObjectStoreUnavailable(f"{name}: out")
        return await super().read(name, ranges)


@pytest.fixture(scope="module")
def s3() -> Iterator[SharedStore]:
    with s3_server("shared") as server:
        yield SharedStore(
            url="s3://shared", folder="", config=ObjectStoreConfig(endpoint=server.endpoint, options=CREDENTIALS)
        )


@pytest.fixture(params=["directory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Objects]:
    if request.param == "s3":
        place: SharedStore = request.getfixturevalue("s3")
        with BlockingStore.open(SharedStore(url=place.url, folder=tmp_path.name, config=place.config)) as store:
            yield Objects(store)
    else:
        with BlockingStore(LocalObjectStore(tmp_path / "objects"), part_bytes=PART_BYTES) as store:
            (tmp_path / "objects").mkdir()
            yield Objects(store)


def counted(prefix: str) -> Callable[[], str]:
    """Names that are the same every time."""
    numbers = iter(range(1_000_000))
    return lambda: f"{prefix}{next(numbers)}"


TAILS = TAIL_BYTES, 3_000, TAIL_READ_BYTES


@pytest.mark.parametrize(
    ("objects", "tail_read_bytes", "joined"),
    [
        *(("directory", tail, False) for tail in TAILS),
        *(("directory", tail, True) for tail in TAILS),
        ("s3", TAIL_READ_BYTES, False),
        ("s3", TAIL_READ_BYTES, True),
    ],
    indirect=["objects"],
)
def test_a_merge_of_objects_is_the_merge_of_files(
    objects: Objects, tmp_path: Path, tail_read_bytes: int, joined: bool
) -> None:
    local = MergeStore(tmp_path / "store", starts={1: 3, 2: 7}, ends={4: 12})
    local.facts[0] = TopicFacts("orders", "default", 30_000)
    runs = batches_of(random.Random(7), slices=12, queues=9, large=True)
    inputs = [local.run(number, batches) for number, batches in enumerate(runs)]
    shared = [objects.put(local.root, file.name) for file in inputs]
    liveness, topics = Liveness(local.ask), local.facts
    reader = objects.inputs(shared, tail_read_bytes)
    measured = measure(inputs, liveness, topics, LINES)
    assert measure(shared, liveness, topics, LINES, reader) == measured
    assert len(measured.tasks) > 1
    for number, task in enumerate(measured.tasks):
        expected = merge_files(
            task,
            inputs,
            liveness,
            lambda path: PlainTarget(local.root / path),
            group=GROUP,
            level=2,
            joined=joined,
            new_name=counted(f"{number}-"),
        )
        before = len(objects.announced)
        found = merge_files(
            task,
            shared,
            liveness,
            objects.files.open,
            group=GROUP,
            level=2,
            joined=joined,
            reader=reader,
            announce=objects.files.announce,
            new_name=counted(f"{number}-"),
        )
        assert found == expected
        objects.check(local.root, found)
        told = objects.announced[before:]
        assert {file.name for file in found} <= {name for names in told for name in names}
        assert len(told) <= 1 + 2, "one call, and one for each segment that begins in the midst of an extent"
    reader.close()


@pytest.mark.parametrize(("joined", "suffix"), [(False, "log"), (True, "seg")])
def test_a_segment_whose_first_extent_is_cut_is_announced_when_its_first_offset_is_known(
    tmp_path: Path, joined: bool, suffix: str
) -> None:
    local = MergeStore(tmp_path / "store", starts={1: 5})
    local.facts[0] = TopicFacts("orders", "default", 2_000)
    (tmp_path / "objects").mkdir()
    with BlockingStore(LocalObjectStore(tmp_path / "objects"), part_bytes=PART_BYTES) as store:
        objects = Objects(store)
        batches = [make_batch(queue, offset, size=600) for queue in (1, 2) for offset in range(8)]
        shared = [objects.put(local.root, local.run(0, batches).name)]
        reader = objects.inputs(shared)
        (task,) = measure(shared, Liveness(local.ask), local.facts, LINES, reader).tasks
        found = merge_files(
            task,
            shared,
            Liveness(local.ask),
            objects.files.open,
            group=GROUP,
            level=2,
            joined=joined,
            reader=reader,
            announce=objects.files.announce,
            new_name=lambda: "unique",
        )
        assert [file.first_offset for file in found] == [5, 0]
        assert objects.announced == [
            [f"orders/2/unique/{0:020d}.{suffix}"],
            [f"orders/1/unique/{5:020d}.{suffix}"],
        ]


@pytest.mark.parametrize("joined", [False, True])
def test_a_compaction_of_objects_is_the_compaction_of_files(objects: Objects, tmp_path: Path, joined: bool) -> None:
    """`joined`: segments of several objects become segments of one."""
    choice = random.Random(3)
    world = World(tmp_path / "store", lag_ms=0)
    for _ in range(60):
        world.produce(choice)
    world.merge(0)
    queues = numpy.zeros(1, QUEUE_ROW)
    queues["queue_id"], queues["end"], queues["last"] = QUEUES[0], 1 << 40, 1 << 40
    key = bytes(range(16))
    files = world.spans[0]
    local = [world.store.input(file.name) for file in files]
    shared = [objects.put(world.root, file.name) for file in files]
    columns: list[KeyColumns] = []
    for number, (one, other) in enumerate(zip(local, shared, strict=True)):
        like = list(scan_file(one, number, queues, key, world.now))
        scanned = list(scan_file(other, number, queues, key, world.now, reader=objects.inputs([other])))
        for piece, same in zip(scanned, like, strict=True):
            assert all(numpy.array_equal(*both) for both in zip(piece, same, strict=True))
        columns += like
    assert sum(len(column.place) for column in columns) > 20
    before = sum(file.record_count for file in files)
    after, suffixes = 0, set[str]()
    for number, (file, staying) in enumerate(zip(files, latest_records(columns, len(files)), strict=True)):
        expected = compact_file(
            file, local[number], queues, staying, lambda path: PlainTarget(world.root / path), joined=joined,
            new_name=lambda: "made",
        )  # fmt: skip
        found = compact_file(
            file,
            shared[number],
            queues,
            staying,
            objects.files.open,
            joined=joined,
            reader=objects.inputs([shared[number]]),
            announce=objects.files.announce,
            new_name=lambda: "made",
        )
        assert found == expected
        objects.check(world.root, found)
        suffixes |= {one.name.rpartition(".")[2] for one in found}
        after += sum(one.record_count for one in found)
    assert 0 < after < before
    assert suffixes == {"pack", "seg" if joined else "log"}


class Broken:
    """A run in a directory that stands for a store, and what becomes of it."""

    def __init__(self, root: Path) -> None:
        (root / "objects").mkdir()
        self.directory = LocalBytes(root / "objects")
        self.store = BlockingStore(self.directory, part_bytes=PART_BYTES)
        self.local = MergeStore(root / "store")
        self.objects = Objects(self.store)
        name = self.local.run(0, [make_batch(queue, 0, size=3_000) for queue in range(9)]).name
        self.file = self.objects.put(self.local.root, name)
        self.path = root / "objects" / self.file.path
        reader = self.objects.inputs([self.file])
        self.tasks = measure([self.file], Liveness(self.local.ask), self.local.facts, LINES, reader).tasks

    def merge(self) -> None:
        reader = self.objects.inputs([self.file])
        for task in self.tasks:
            merge_files(
                task,
                [self.file],
                Liveness(self.local.ask),
                self.objects.files.open,
                group=GROUP,
                level=2,
                reader=reader,
                announce=self.objects.files.announce,
            )


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Broken]:
    found = Broken(tmp_path)
    yield found
    found.store.close()


def flipped(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_damaged_extent_of_an_object_is_named(broken: Broken) -> None:
    (rows,) = index_pieces(broken.file, broken.objects.inputs([broken.file]))
    flipped(broken.path, int(rows["position"][4]) + 100)
    with pytest.raises(InputDamaged, match="fails its CRC") as damage:
        broken.merge()
    assert (damage.value.name, damage.value.position) == (broken.file.name, int(rows["position"][4]))


@pytest.mark.parametrize("place", ["rows", "footer"])
def test_a_damaged_index_of_an_object_is_named(broken: Broken, place: str) -> None:
    size = broken.path.stat().st_size
    flipped(broken.path, size - FRAME_BYTES // 2 if place == "footer" else size - FRAME_BYTES - 30)
    with pytest.raises(InputDamaged) as damage:
        broken.merge()
    assert (damage.value.name, damage.value.position) == (broken.file.name, -1)


def test_an_object_that_is_gone_is_a_damaged_input(broken: Broken) -> None:
    broken.path.unlink()
    with pytest.raises(InputDamaged, match="no such object") as damage:
        broken.merge()
    assert damage.value.name == broken.file.name


def test_an_object_that_goes_while_it_is_read_is_a_damaged_input(broken: Broken) -> None:
    reader = broken.objects.inputs([broken.file], TAIL_BYTES)
    reader.tail(broken.file.index_path, TAIL_BYTES)
    broken.path.write_bytes(b"short")
    with pytest.raises(InputDamaged, match="ends at") as damage:
        list(index_pieces(broken.file, reader))
    assert damage.value.name == broken.file.name


def test_an_outage_is_no_damage(broken: Broken) -> None:
    broken.directory.out = True
    with pytest.raises(ObjectStoreOutage, match=r"0\.run: out"):
        broken.merge()
    broken.directory.out = False
    broken.merge()
