"""A node whose queue store is shared: all files lie in an object store, and the logs say which of them count."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.storage.queue_store.runs import make_batch
from tests.storage.remote.tiered_node import upload
from tests.storage.small_node import QUEUE, SmallNode, simulated, topic

from mainstem.model import Outcome, queue_id_of
from mainstem.pipeline.slices.split_slice import SplitSlice
from mainstem.rpc.messages.merge import MergeWork
from mainstem.rpc.messages.split import PASSED_OVER, FileDescription
from mainstem.storage.errors import StorageError
from mainstem.storage.merging.merge_files import merge_files
from mainstem.storage.merging.merge_inputs import InputFile
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.merging.merge_liveness import Liveness, LiveOffsets
from mainstem.storage.merging.merge_measure import facts_of, measure
from mainstem.storage.merging.merge_spans import FINAL
from mainstem.storage.store_files.object_names import file_objects, object_of
from mainstem.storage.store_files.run_target import LocalRunTarget
from mainstem.storage.store_files.store_file import StoreFile, index_path_of, path_of, paths_of
from mainstem.storage.upkeep import restored_objects
from mainstem.storage.upkeep.maintenance import RESTORED_SECONDS
from mainstem.storage.verifying.file_check import Opens, check_file
from mainstem.storage.verifying.findings import Finding
from mainstem.storage.write_groups.control import RemoteSpan

LIVE_MAX = (1 << 63) - 1


def shared(bucket: list[SimulatedBucket]) -> Callable[[SmallNode], None]:
    def prepare(node: SmallNode) -> None:
        bucket.append(SimulatedBucket(node.clock, random.Random(1)))
        node.remote_store = SimulatedObjectStore(bucket[0])
        node.shared = True

    return prepare


class Splitter:
    """Splits and merges as tasks do: names first, then objects, then the record."""

    def __init__(self, node: SmallNode, bucket: SimulatedBucket, directory: Path) -> None:
        self.node = node
        self.bucket = bucket
        self.directory = directory

    async def runs(self) -> list[SplitSlice]:
        """Slices whose runs lie in the store, and are recorded nowhere."""
        found = await self.node.slices()
        for done in found:
            for file in done.files:
                assert await self.node.storage.tier_log.intend(file.group, [file.name]) == ""
                for path in paths_of(file.name):
                    self.bucket.put(object_of(file.group, path), bytes(self.node.disk2.content(path)))
        return found

    async def record(self, slices: Sequence[SplitSlice]) -> list[str]:
        log = self.node.storage.split_log
        return [outcome for done in slices for outcome in await log.record(done.ranges, done.files)]

    async def split(self) -> list[str]:
        return await self.record(await self.runs())

    async def merge(self) -> str:
        work = await self.node.storage.merge_log.work(lambda: True, (), drain=True)
        assert work.merge_id
        files = self.merged(work)
        for file in files:
            assert await self.node.storage.tier_log.intend(file.group, [file.name]) == ""
            for path in paths_of(file.name):
                self.bucket.put(object_of(file.group, path), (self.directory / path).read_bytes())
        return await self.node.storage.merge_log.record(work.merge_id, [file.message() for file in files])

    def merged(self, work: MergeWork) -> list[StoreFile]:
        names = [one.file.name for one in work.inputs]
        for name in names:
            for path in paths_of(name):
                (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
                (self.directory / path).write_bytes(self.bucket.objects[object_of(work.group, path)].content)
        inputs = [
            InputFile(name, str(self.directory / path_of(name)), str(self.directory / index_path_of(name)))
            for name in names
        ]
        liveness = Liveness(lambda ids: LiveOffsets(ids.astype("i8") * 0, ids.astype("i8") * 0 + LIVE_MAX))
        topics = facts_of(work.topics)
        lines = self.node.storage.merge_log.lines._replace(output_files_max=work.output_files_max)
        found: list[StoreFile] = []
        for task in measure(inputs, liveness, topics, lines).tasks:
            found += merge_files(
                task,
                inputs,
                liveness,
                lambda path: LocalRunTarget((self.directory / path).parent, Path(path).name),
                group=work.group,
                level=work.level,
            )
        return found


def test_a_split_lies_in_the_object_store_and_nowhere_else(tmp_path: Path) -> None:
    bucket: list[SimulatedBucket] = []

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        await node.fill(40)
        assert await splitter.split() == ["committed"]
        await node.rounds()
        assert len(node.segments()) < 3, "what is split needs no journal"
        assert not len(node.storage.queue_store.manifest.files)
        assert len(node.storage.remote.manifest.files) == 1
        assert await node.read_offsets() == list(range(40))
        await node.restart()
        assert await node.read_offsets() == list(range(40))
        await node.fill(5)
        assert await splitter.split() == ["committed"]
        assert await node.read_offsets() == list(range(45))

    simulated(tmp_path, story, shared(bucket))


def test_what_queues_have_is_told_from_what_a_node_knows(tmp_path: Path) -> None:
    bucket: list[SimulatedBucket] = []
    other = queue_id_of(1, 1)

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        await node.fill(40)
        await node.fill(8, other)
        unsplit = await node.storage.queues.usage([QUEUE, other])
        assert await splitter.split() == ["committed"]
        await node.rounds()
        held = [None if use is None else use.unsplit_bytes for use in unsplit]
        for again in (False, True):
            found = await node.storage.queues.usage([QUEUE, other, queue_id_of(7, 0)])
            assert [use if use is None else use.stored_bytes for use in found] == [*held, None]
            (of_topic,) = (await node.storage.usage.of_topics()).values()
            assert of_topic.stored_bytes == sum(filter(None, held)) > 40_000
            if not again:
                asked, bucket[0].weather.down = bucket[0].asked, True
        assert bucket[0].asked == asked, "known once, nothing is asked for it"
        await node.storage.queues.truncate({other: -1})
        (_one, two) = await node.storage.queues.usage([QUEUE, other])
        assert two is not None
        assert two.stored_bytes == 0, "what is not live does not count"
        await node.restart()
        found = await node.storage.queues.usage([QUEUE])
        assert [use and use.stored_bytes for use in found] == [0], "while the store is out, what is known counts"
        bucket[0].weather.down = False
        found = await node.storage.queues.usage([QUEUE])
        assert [use and use.stored_bytes for use in found] == held[:1]

    simulated(tmp_path, story, shared(bucket))


@pytest.mark.parametrize("how", ["lost", "flipped", "cut"])
def test_damage_is_named_costs_its_own_offsets_and_is_over_when_the_object_is_restored(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket: list[SimulatedBucket] = []
    looks: list[str] = []

    async def counted(files: Opens, name: str, file: StoreFile | None) -> list[Finding]:
        looks.append(name)
        return await check_file(files, name, file)

    monkeypatch.setattr(restored_objects, "check_file", counted)

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        for _ in range(3):
            await node.fill(10)
            assert await splitter.split() == ["committed"]
        await node.rounds()
        damaged = list(node.storage.remote.manifest.files)[1]
        name = object_of(0, path_of(damaged))
        whole = bytes(bucket[0].objects[name].content)
        bucket[0].remove(name)
        if how != "lost":
            bucket[0].put(
                name, whole[:-1] if how == "cut" else whole[:9_000] + bytes([whole[9_000] ^ 1]) + whole[9_001:]
            )
        await node.restart()
        history = node.storage.remote_history
        assert history is not None
        found = [(offset, await node.read(offset)) for offset in (0, 15, 19, 20, 25)]
        assert {offset for offset, read in found if read.outcome is Outcome.STORAGE_FAILED} == {15, 19}
        assert [read.next_offset for offset, read in found if offset in (0, 20, 25)] == [10, 30, 30]
        assert [damage.name for damage in history.damaged.all()] == [damaged]
        await node.fill(10)
        assert await splitter.split() == ["committed"], "what comes later is split"
        work = await node.storage.merge_log.work(lambda: True, (), drain=True)
        assert damaged not in {one.file.name for one in work.inputs}
        await asyncio.sleep(3 * RESTORED_SECONDS)
        assert looks == [damaged], "as long as its object is what it was, it is not read again"
        bucket[0].put(name, whole)
        await asyncio.sleep(2 * RESTORED_SECONDS)
        assert looks == [damaged] * 2
        assert history.damaged.all() == []
        assert node.remote_store is not None
        rounds = restored_objects.RestoredObjects(node.remote_store, history)
        for _ in range(2):
            history.damaged.note(damaged, StorageError("a read that had begun before came upon the old bytes"))
            await rounds.run()
            assert history.damaged.all() == [], "its object is as it was at the last look"
        assert await node.read_offsets() == list(range(40))
        assert await splitter.merge() == "merged"
        assert await node.read_offsets() == list(range(40))

    simulated(tmp_path, story, shared(bucket))


def test_what_is_handed_in_twice_or_late_or_lies_nowhere_is_told_apart(tmp_path: Path) -> None:
    bucket: list[SimulatedBucket] = []

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        await node.fill(10)
        done, again = await splitter.runs(), await splitter.runs()
        (lost,) = again[0].files
        for name in file_objects(lost.group, lost.name):
            bucket[0].remove(name)
        (outcome,) = await splitter.record(again)
        assert outcome.startswith("refused: "), outcome
        assert await splitter.record(done) == ["committed"]
        assert await splitter.record(done) == ["replayed"]
        unnamed = [msgspec.structs.replace(file, name=f"9-{file.name}") for file in done[0].files]
        await node.fill(1)
        (later,) = await splitter.runs()
        for file in later.files:
            for path, other in zip(paths_of(file.name), paths_of(unnamed[0].name), strict=True):
                bucket[0].put(object_of(0, other), bucket[0].objects[object_of(0, path)].content)
        (outcome,) = await splitter.record([msgspec.structs.replace(later, files=tuple(unnamed))])
        assert outcome.startswith("refused: "), "no name counts that the log was not told"
        assert await node.read_offsets() == list(range(11))

    simulated(tmp_path, story, shared(bucket))


def test_a_merge_takes_the_place_of_its_inputs_in_one_step_and_these_are_deleted(tmp_path: Path) -> None:
    bucket: list[SimulatedBucket] = []

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        for _ in range(3):
            await node.fill(10)
            assert await splitter.split() == ["committed"]
        before = node.storage.remote.position(0).number
        names = set(node.storage.remote.manifest.files)
        assert await splitter.merge() == "merged"
        assert node.storage.remote.position(0).number == before + 2, "names, and one change"
        left = node.storage.remote.manifest.files
        assert left
        assert not names & set(left)
        assert await node.read_offsets() == list(range(30))
        await asyncio.sleep(300.0)
        there = {name for name in bucket[0].objects if "/files/" in name}
        assert there == {one for name in left for one in file_objects(0, name)}
        await node.restart()
        assert await node.read_offsets() == list(range(30))

    simulated(tmp_path, story, shared(bucket))


def test_a_merge_makes_no_more_files_than_one_command_names(tmp_path: Path) -> None:
    """Sixty queues have enough for a segment each, of which a command of 8 KiB names two dozen."""
    bucket: list[SimulatedBucket] = []
    queues = [queue_id_of(1, partition) for partition in range(60)]

    def prepare(node: SmallNode) -> None:
        shared(bucket)(node)
        node.topics = [topic(1, partitions=60, segment_bytes=500)]

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        node.storage.merge_log.lines = MergeLines(packed_bytes=500, level_one_bytes=1 << 20, wait_bytes_max=1 << 20)
        for _ in range(2):
            for queue in queues:
                await node.fill(1, queue)
            assert await splitter.split() == ["committed"]
            assert await splitter.merge() == "merged"
        left = node.storage.remote.manifest.files
        assert 2 < len(left) < 40
        assert {left[name].level for name in left} == {FINAL}
        assert sum(left[name].batch_count for name in left) == 2 * len(queues)
        for queue in queues:
            assert await node.read_offsets(queue) == [0, 1]

    simulated(tmp_path, story, prepare)


@pytest.mark.parametrize("refused", [False, True])
def test_a_compaction_that_one_command_does_not_take_replaces_the_oldest_files_first(
    tmp_path: Path, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a tombstone never goes before what it covers, also where the leader is deposed between the commands."""
    bucket: list[SimulatedBucket] = []
    count = 60

    async def story(node: SmallNode) -> None:
        remote, changes = node.storage.remote, node.storage.store_work.changes

        async def uploaded(kind: str) -> list[StoreFile]:
            names = [f"{kind}-{number}.pack" for number in range(count)]
            assert await remote.record(0, intended=names) == "recorded"
            return [upload(bucket[0], name, [make_batch(QUEUE, number)]) for number, name in enumerate(names)]

        for number, file in enumerate(await uploaded("old")):
            span = RemoteSpan(number, number + 1, (file.message(),))
            assert await remote.record(0, upto=number + 1, spans=[span]) == "recorded"
        entries = remote.manifest.ranges(0)
        new = dict(zip(entries, [[file] for file in await uploaded("new")], strict=True))
        record, gone = remote.record, list[list[str]]()

        async def recorded(group: int, **wanted: Any) -> str:
            if refused and gone:
                return "refused: somebody else leads"
            gone.append(list(wanted["gone"]))
            return await record(group, **wanted)

        monkeypatch.setattr(remote, "record", recorded)
        shuffled = random.Random(1).sample(entries, count)
        if refused:
            with pytest.raises(StorageError, match="somebody else leads"):
                await changes.rewrite(0, {entry: new[entry] for entry in shuffled})
            assert 0 < len(gone[0]) < count
        else:
            await changes.rewrite(0, {entry: new[entry] for entry in shuffled})
            assert len(gone) > 1
        replaced = [name for names in gone for name in names]
        assert replaced == [entry.name for entry in entries[: len(replaced)]], "the oldest first"
        left = [entry.name for entry in remote.manifest.ranges(0)]
        assert sorted(left) == sorted(
            [file.name for entry in entries[: len(replaced)] for file in new[entry]]
            + [entry.name for entry in entries[len(replaced) :]]
        )

    simulated(tmp_path, story, shared(bucket))


def test_dead_runs_leave_the_store_and_dead_segments_need_no_split(tmp_path: Path) -> None:
    bucket: list[SimulatedBucket] = []

    def prepare(node: SmallNode) -> None:
        shared(bucket)(node)
        node.config = msgspec.structs.replace(node.config, retention_check_seconds=1.0)
        node.topics = [topic(retention_ms=-1)]

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        await node.fill(20)
        assert await splitter.split() == ["committed"]
        await node.fill(30)
        await node.storage.queues.truncate({QUEUE: 45})
        await node.rounds(5)
        await asyncio.sleep(300.0)
        assert not len(node.storage.remote.manifest.files)
        assert not [name for name in bucket[0].objects if "/files/" in name]
        assert len(node.segments()) < 4, "nothing in the others is live"
        assert await node.read_offsets() == list(range(45, 50))

    simulated(tmp_path, story, prepare)


def test_topics_of_their_own_retention_are_in_files_of_their_own(tmp_path: Path) -> None:
    bucket: list[SimulatedBucket] = []

    async def story(node: SmallNode) -> None:
        node.topics.append(topic(2, retention_ms=5_000))
        await node.restart()
        splitter = Splitter(node, bucket[0], tmp_path)
        await node.fill(3)
        await node.fill(3, queue_id=2 << 32)
        assert await splitter.split() == ["committed"]
        assert len(node.storage.remote.manifest.files) == 2

    simulated(tmp_path, story, shared(bucket))


def test_what_was_announced_in_an_earlier_term_is_passed_over_and_deleted(tmp_path: Path) -> None:
    bucket: list[SimulatedBucket] = []

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        await node.fill(10)
        late = await splitter.runs()
        await node.restart()
        (outcome,) = await splitter.record(late)
        assert outcome.startswith(PASSED_OVER), outcome
        assert await splitter.split() == ["committed"]
        assert await splitter.record(late) == ["passed over: its files were announced in an earlier term than 2"]
        await asyncio.sleep(300.0)
        (counts,) = node.storage.remote.manifest.files
        assert {name for name in bucket[0].objects if "/files/" in name} == set(file_objects(0, counts))
        assert await node.read_offsets() == list(range(10))

    simulated(tmp_path, story, shared(bucket))


def test_of_two_splits_of_the_same_blocks_one_counts(tmp_path: Path) -> None:
    bucket: list[SimulatedBucket] = []

    async def story(node: SmallNode) -> None:
        splitter = Splitter(node, bucket[0], tmp_path)
        await node.fill(10)
        some = await splitter.runs()
        await node.fill(5)
        more = await splitter.runs()
        outcomes = await asyncio.gather(splitter.record(some), splitter.record(more))
        assert sum(one == ["committed"] for one in outcomes) == 1, outcomes
        assert len(node.storage.remote.manifest.files) == 1
        assert await splitter.split() in (["committed"], [])
        assert await node.read_offsets() == list(range(15))

    simulated(tmp_path, story, shared(bucket))


def test_the_log_describes_a_run_as_the_manifest_does(tmp_path: Path) -> None:
    """Images in the store, of the one or the other, are then the same."""
    bucket: list[SimulatedBucket] = []

    async def story(node: SmallNode) -> None:
        logged: list[FileDescription] = []
        node.storage.remote.watch(
            lambda group, change: logged.extend(file for span in change.spans for file in span.files)
        )
        await node.fill(10)
        assert await Splitter(node, bucket[0], tmp_path).split() == ["committed"]
        await node.restart()
        files = node.storage.remote.manifest.files
        assert logged == [files[name].message() for name in files]
        assert logged

    simulated(tmp_path, story, shared(bucket))
