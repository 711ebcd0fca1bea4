"""The batches picked for many partitions at once from the files of a disk: both kernels against what the queues hold,
and against each other where files and indexes are damaged."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import google_crc32c
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernel.fetch.fetch_requests import KERNELS
from tests.kernel.fetch.fetch_world import LARGE, World, asking, at, plan_of, resolver, whole

from mainstem.kernel import NO_SLOT, PICK_SOURCES_MAX, PickLimits, PickSource
from mainstem.model import QueueRead, queue_id_of, slot_of
from mainstem.protocol.messages.fetch import FetchPartition
from mainstem.storage.extents.extent_format import EXTENT_ROW

both = pytest.mark.parametrize("kernel", KERNELS, ids=["pure", "compiled"])

ANYWHERE = 1 << 40
FAR = PickLimits(1 << 30, 1 << 30, 1 << 30, 1 << 30, 0, ANYWHERE, 0, ANYWHERE)


class DiskFile(NamedTuple):
    content: bytes
    rows: Any
    groups: bytes | None = None

    @property
    def source(self) -> PickSource:
        return PickSource(self.rows.tobytes(), self.groups)


def file_of(extents: list[list[tuple[int, int, int, bytes]]], groups: bytes | None = None) -> DiskFile:
    """A file of extents in this order, each of (queue id, first offset, next offset, bytes) of its batches."""
    content, rows = b"head", []
    for batches in extents:
        data = b"".join(batch[3] for batch in batches)
        crc = google_crc32c.value(data)
        leader_epoch = int.from_bytes(batches[-1][3][12:16], "big", signed=True)
        place = len(content), len(data), len(batches), 0, crc, leader_epoch, 0
        rows.append((batches[0][0], batches[0][1], batches[-1][2] - 1, 0, *place))
        content += data
    rows.sort()
    return DiskFile(content, numpy.array(rows, EXTENT_ROW), groups)


def journal_of(world: World, segment_batches: int) -> list[DiskFile]:
    """All batches, queue by queue in turns, so many in a file."""
    lines = [[(queue_id, *batch) for batch in batches] for queue_id, batches in world.batches.items()]
    mixed = [line[turn] for turn in range(max(map(len, lines), default=0)) for line in lines if turn < len(line)]
    return [
        file_of([[batch] for batch in mixed[start : start + segment_batches]])
        for start in range(0, len(mixed), segment_batches)
    ]


def runs_of(world: World, extent_batches: int, groups: bytes | None = None) -> list[DiskFile]:
    """The first half of every queue's batches in one run, the others in another."""
    halves: list[list[list[tuple[int, int, int, bytes]]]] = [[], []]
    for queue_id, batches in sorted(world.batches.items()):
        found = [(queue_id, *batch) for batch in batches]
        middle = (len(found) + 1) // 2
        for half, part in zip(halves, (found[:middle], found[middle:]), strict=True):
            half += [part[start : start + extent_batches] for start in range(0, len(part), extent_batches)]
    return [file_of(half, groups) for half in halves if half]


def chunks_of(files: list[DiskFile], wanted: list[tuple[int, int, int]], size: int) -> list[bytes]:
    return [files[source].content[number * size : (number + 1) * size] for source, number, _asked in wanted]


class Round(NamedTuple):
    plan: Any
    picks: Any
    table: Any

    def state(self) -> Any:
        return [tuple(row) for row in self.plan.partitions()], self.plan.bytes, bool(self.plan.final)


def chosen(
    kernel: ModuleType, world: World, asked: Any, files: list[DiskFile], chunk_bytes: int, extents: bool,
    limits: PickLimits, bytes_max: int,
) -> Round:  # fmt: skip
    where = KERNELS.index(kernel)
    plan = plan_of(kernel, 12, asked)
    plan.begin(resolver(kernel), bytes_max)
    picks = kernel.DiskPicks(plan, chunk_bytes, extents=extents)
    sources = [file.source for file in files]
    picks.choose(world.tables[where], world.indexes[where], world.logs, world.slots, sources, limits)
    return Round(plan, picks, world.tables[where])


queue_ids = st.builds(queue_id_of, st.integers(0, 1), st.integers(0, 3))
blocks = st.lists(
    st.lists(st.tuples(queue_ids, st.integers(1, 3), st.sampled_from([100, 300, LARGE])), min_size=1, max_size=8),
    min_size=1, max_size=8,
)  # fmt: skip
asked_topics = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.lists(
            st.builds(at, st.integers(-1, 5), st.integers(0, 9), st.sampled_from([0, 150, 700, 1 << 20])), max_size=6
        ),
    ),
    max_size=3,
)  # fmt: skip
limits_of = st.builds(
    PickLimits,
    room=st.sampled_from([0, 500, 1 << 30]),
    bytes_max=st.sampled_from([1, 700, 1 << 30]),
    partitions_max=st.sampled_from([1, 3, 1 << 30]),
    source_bytes=st.sampled_from([0, 4096, 1 << 30]),
    start=st.sampled_from([0, 0, 150, 5000]),
    window_bytes=st.sampled_from([250, ANYWHERE]),
    sparse_bytes=st.sampled_from([0, 250]),
    sparse_window_bytes=st.sampled_from([1000, ANYWHERE]),
)
chunk_sizes = st.sampled_from([64, 256, 4096, 1 << 20])


@given(
    added=blocks, topics=asked_topics, limits=limits_of, chunk_bytes=chunk_sizes, extents=st.booleans(),
    bytes_max=st.sampled_from([0, 150, 900, 1 << 30]), cache_bytes=st.sampled_from([0, 2000]),
    in_one=st.integers(1, 9),
)  # fmt: skip
def test_what_is_put_is_what_the_queues_hold(
    added: list[list[tuple[int, int, int]]], topics: list[tuple[int, list[FetchPartition]]], limits: PickLimits,
    chunk_bytes: int, extents: bool, bytes_max: int, cache_bytes: int, in_one: int,
) -> None:  # fmt: skip
    world = World(cache_bytes)
    for rows in added:
        world.add_block(rows)
    files = runs_of(world, in_one) if extents else journal_of(world, 4 * in_one)
    rounds = [
        chosen(kernel, world, asking(12, *topics), files, chunk_bytes, extents, limits, bytes_max) for kernel in KERNELS
    ]
    pure, compiled = (found.picks for found in rounds)
    assert rounds[0].state() == rounds[1].state()
    assert (pure.bytes, pure.partitions, pure.served_from_memory, len(pure)) == (
        compiled.bytes, compiled.partitions, compiled.served_from_memory, len(compiled)
    )  # fmt: skip
    assert sorted(pure.chunks()) == sorted(compiled.chunks())
    served = [found.picks.put(found.table, chunks_of(files, found.picks.chunks(), chunk_bytes)) for found in rounds]
    assert served[0] == served[1] <= len(pure)
    assert rounds[0].state() == rounds[1].state()
    assert pure.partitions <= limits.partitions_max
    for row in rounds[0].plan.partitions():
        if row.settled and row.verdict == 0 and row.size:
            stored = world.batches[row.queue_id]
            held = [data for _base, following, data in stored if following > row.fetch_offset]
            sizes = [sum(map(len, held[: count + 1])) for count in range(len(held))]
            assert row.size in sizes
    answers = [whole(found.plan) for found in rounds]
    assert answers[0] == answers[1]
    for row in rounds[0].plan.partitions():
        if row.size:
            held = [data for _base, following, data in world.batches[row.queue_id] if following > row.fetch_offset]
            assert b"".join(held)[: row.size] in answers[0]


@given(added=blocks, extents=st.booleans(), in_one=st.integers(1, 5))
def test_without_limits_every_partition_gets_all_there_is(
    added: list[list[tuple[int, int, int]]], extents: bool, in_one: int
) -> None:
    world = World(0)
    for rows in added:
        world.add_block(rows)
    files = runs_of(world, in_one) if extents else journal_of(world, 4 * in_one)
    everything = asking(12, (0, [at(number) for number in range(4)]), (1, [at(number) for number in range(4)]))
    for kernel in KERNELS:
        found = chosen(kernel, world, everything, files, 1 << 20, extents, FAR, 1 << 30)
        found.picks.put(found.table, chunks_of(files, found.picks.chunks(), 1 << 20))
        for row in found.plan.partitions():
            if world.led(row.queue_id):
                assert row.settled
                assert row.size == sum(len(data) for _base, _next, data in world.batches.get(row.queue_id, []))


damage = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**20), st.integers(1, 255)), max_size=4)
hostile = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 40),
        st.sampled_from(["queue_id", "base_offset", "last_offset", "position", "length", "batch_count", "crc"]),
        st.sampled_from([0, 1, 26, 61, 4095, -1, *(2**bits - less for bits in (31, 32, 62, 63) for less in (0, 1))]),
    ),
    max_size=4,
)  # fmt: skip


@given(
    added=blocks, topics=asked_topics, limits=limits_of, chunk_bytes=chunk_sizes, extents=st.booleans(),
    in_one=st.integers(1, 5), spoilt=damage, rows=hostile, cut=st.lists(st.integers(0, 300), max_size=5),
    missing=st.sets(st.integers(0, 8)),
)  # fmt: skip
def test_damage_is_found_out_alike(
    added: list[list[tuple[int, int, int]]], topics: list[tuple[int, list[FetchPartition]]], limits: PickLimits,
    chunk_bytes: int, extents: bool, in_one: int, spoilt: list[tuple[int, int, int]],
    rows: list[tuple[int, int, str, int]], cut: list[int], missing: set[int],
) -> None:  # fmt: skip
    world = World(0)
    for block in added:
        world.add_block(block)
    files = runs_of(world, in_one) if extents else journal_of(world, 4 * in_one)
    for number, row, field, value in rows:
        file = files[number % len(files)]
        kind = EXTENT_ROW[field]
        bits = 8 * kind.itemsize
        value %= 1 << bits
        if kind.kind == "i" and value >= 1 << bits - 1:
            value -= 1 << bits
        file.rows[field][row % len(file.rows)] = value
    for number, place, change in spoilt:
        file = files[number % len(files)]
        content = bytearray(file.content)
        content[place % len(content)] ^= change
        files[number % len(files)] = file._replace(content=bytes(content))
    results = []
    for kernel in KERNELS:
        found = chosen(kernel, world, asking(12, *topics), files, chunk_bytes, extents, limits, 1 << 30)
        wanted = sorted(found.picks.chunks())
        chunks = dict(zip(wanted, chunks_of(files, wanted, chunk_bytes), strict=True))
        for place, size in zip(wanted, cut, strict=False):
            chunks[place] = chunks[place][: -size or None]
        for number, place in enumerate(wanted):
            if number in missing:
                del chunks[place]
        served = found.picks.put(found.table, [chunks.get(place) for place in found.picks.chunks()])
        results.append((wanted, served, found.state(), found.plan.pending(), whole(found.plan)))
    assert results[0] == results[1]


@both
@pytest.mark.parametrize("extents", [False, True])
@pytest.mark.parametrize("rotten", [200, 12, 15, 16], ids=["record", "leader epoch", "its last byte", "magic"])
def test_rot_of_one_batch_fails_its_queue_alone(kernel: ModuleType, extents: bool, rotten: int) -> None:
    world = led_world()
    for _ in range(2):
        world.add_block([(queue_id_of(0, partition), 1, 300) for partition in range(3)])
    files = runs_of(world, 1) if extents else journal_of(world, 6)
    content = bytearray(files[0].content)
    row = files[0].rows[[int(found["queue_id"]) for found in files[0].rows].index(queue_id_of(0, 1))]
    content[int(row["position"]) + rotten] ^= 1
    files[0] = files[0]._replace(content=bytes(content))
    found = chosen(kernel, world, asking(12, (0, [at(0), at(1), at(2)])), files, 4096, extents, FAR, 1 << 30)
    assert len(found.picks) == 3
    assert found.picks.put(found.table, chunks_of(files, found.picks.chunks(), 4096)) == 2
    assert [row.size for row in found.plan.partitions()] == [600, 0, 600]
    assert found.plan.pending() == QueueRead(queue_id_of(0, 1), 0, 1 << 20)


@both
@pytest.mark.parametrize("rotten", [-1, 30, 270, 299], ids=["whole", "first part", "second part", "its last byte"])
def test_a_batch_in_two_chunks_is_checked_and_not_copied(kernel: ModuleType, rotten: int) -> None:
    world = led_world()
    world.add_block([(queue_id_of(0, 0), 1, 300)])
    (file,) = journal_of(world, 1)
    found = chosen(kernel, world, asking(12, (0, [at(0)])), [file], 256, False, FAR, 1 << 30)
    chunks = [bytearray(chunk) for chunk in chunks_of([file], found.picks.chunks(), 256)]
    place = int(file.rows[0]["position"])
    assert len(chunks) == 2
    assert place + 270 > 256
    if rotten >= 0:
        number, at_byte = divmod(place + rotten, 256)
        chunks[number][at_byte] ^= 1
        assert found.picks.put(found.table, chunks) == 0
        assert found.plan.pending() == QueueRead(queue_id_of(0, 0), 0, 1 << 20)
        return
    assert found.picks.put(found.table, chunks) == 1
    for chunk in chunks:
        chunk[:] = b"x" * len(chunk)  # what lies in them is what is sent
    assert b"x" * 300 in whole(found.plan)


@both
def test_what_comes_before_the_rot_is_served(kernel: ModuleType) -> None:
    world = led_world()
    for _ in range(3):
        world.add_block([(queue_id_of(0, 0), 1, 300)])
    files = journal_of(world, 3)
    content = bytearray(files[0].content)
    content[-1] ^= 1
    files[0] = files[0]._replace(content=bytes(content))
    found = chosen(kernel, world, asking(12, (0, [at(0)])), files, 4096, False, FAR, 1 << 30)
    assert found.picks.put(found.table, chunks_of(files, found.picks.chunks(), 4096)) == 1
    assert [row.size for row in found.plan.partitions()] == [600]
    assert found.plan.final  # there is more


@both
def test_a_run_that_does_not_count_for_the_group_is_not_read(kernel: ModuleType) -> None:
    world = World(0)
    queues = [queue_id_of(0, partition) for partition in range(4)]
    world.add_block([(queue_id, 1, 300) for queue_id in queues])
    counts = slot_of(next(queue_id for queue_id in queues if world.led(queue_id))) % 3
    files = runs_of(world, 1, bytes(group == counts for group in range(counts + 1)))
    found = chosen(kernel, world, asking(12, (0, [at(number) for number in range(4)])), files, 4096, True, FAR, 1 << 30)
    found.picks.put(found.table, chunks_of(files, found.picks.chunks(), 4096))
    sizes = {row.queue_id: row.size for row in found.plan.partitions()}
    assert sizes == {queue_id: 300 if slot_of(queue_id) % 3 == counts else 0 for queue_id in queues}


@both
@pytest.mark.parametrize(("room", "served"), [(99, 0), (100, 1), (250, 2)])
def test_no_file_is_read_for_a_partition_whose_batches_do_not_fit(kernel: ModuleType, room: int, served: int) -> None:
    """Extents of several batches: the room for the second partition is judged by their average."""
    world = World(0)
    one, other = [number for number in range(4) if world.led(queue_id_of(0, number))][:2]
    world.add_block([(queue_id_of(0, number), 1, 100) for number in (one, other) for _ in range(4)])
    files = runs_of(world, 4)
    sizes = [len(world.batches[queue_id_of(0, number)][0][2]) for number in (one, other)]
    asked = asking(12, (0, [at(one), at(other)]))
    whole_first = 4 * sizes[0]
    room = room * sizes[1] // 100
    found = chosen(kernel, world, asked, files, 1 << 20, True, FAR, whole_first + room)
    assert len(found.picks) == 1 + (served > 0)
    found.picks.put(found.table, chunks_of(files, found.picks.chunks(), 1 << 20))
    assert [row.size for row in found.plan.partitions()] == [whole_first, served * sizes[1]]
    assert all(row.settled for row in found.plan.partitions())


@both
def test_a_round_that_is_over_gets_nothing(kernel: ModuleType) -> None:
    world = led_world()
    world.add_block([(queue_id_of(0, 0), 1, 300)])
    files = journal_of(world, 1)
    for end in ("release", "begin"):
        found = chosen(kernel, world, asking(12, (0, [at(0)])), files, 4096, False, FAR, 1 << 30)
        chunks = chunks_of(files, found.picks.chunks(), 4096)
        if end == "begin":
            found.plan.begin(resolver(kernel), 1 << 30)
        else:
            found.plan.release()
        assert found.picks.put(found.table, chunks) == 0
        assert found.plan.bytes == 0


@both
def test_retention_overtakes_a_pick(kernel: ModuleType) -> None:
    world = led_world()
    for _ in range(2):
        world.add_block([(queue_id_of(0, 0), 1, 300), (queue_id_of(0, 1), 1, 300)])
    files = journal_of(world, 4)
    found = chosen(kernel, world, asking(12, (0, [at(0), at(1)])), files, 4096, False, FAR, 1 << 30)
    world.move_log_start(queue_id_of(0, 0), 1)
    assert found.picks.put(found.table, chunks_of(files, found.picks.chunks(), 4096)) == 1
    assert [row.settled for row in found.plan.partitions()] == [False, True]


@both
def test_what_makes_no_sense_is_refused(kernel: ModuleType) -> None:
    world = led_world()
    world.add_block([(queue_id_of(0, 0), 1, 300)])
    files = journal_of(world, 1)
    found = chosen(kernel, world, asking(12, (0, [at(0)])), files, 4096, False, FAR, 1 << 30)
    with pytest.raises(ValueError):
        found.picks.put(found.table, [])
    with pytest.raises(ValueError):
        kernel.DiskPicks(found.plan, 0, extents=False)
    many = (1 + PICK_SOURCES_MAX) * files
    with pytest.raises(ValueError, match="65 sources"):
        chosen(kernel, world, asking(12, (0, [at(0)])), many, 4096, False, FAR, 1 << 30)
    where = KERNELS.index(kernel)
    picks = kernel.DiskPicks(found.plan, 4096, extents=False)
    for slots, rows in ((world.slots, b"short"), (b"", files[0].source.rows)):
        with pytest.raises(ValueError):
            picks.choose(world.tables[where], world.indexes[where], world.logs, slots, [PickSource(rows, None)], FAR)


def led_world() -> World:
    """Without a write cache; this node leads all groups."""
    world = World(0)
    world.logs = [world.logs[0]] * 3
    assert world.tables[0].find(queue_id_of(0, 0)) != NO_SLOT
    return world
