"""The nameserver over a disk that loses power: what was answered is there, nothing else was lost or invented."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.fakes.files import SimulatedFiles

from mainstem.model import SLOTS, NewTopic, Node, Topic, queue_id_of
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.disk.log_format import (
    RECORD_HEADER_BYTES,
    LogEntry,
    LogRecordKind,
    encode_record,
    read_log,
)
from mainstem.nameserver.disk.metadata_log import MetadataLog
from mainstem.nameserver.errors import (
    ForeignDirectory,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopicName,
    MetadataCorrupt,
    MetadataUnavailable,
    TopicExists,
    UnknownTopic,
)
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.changes import COMMANDS_PER_TURN, Made
from mainstem.nameserver.state.commands import (
    AdvanceCounters,
    DeleteTopic,
    Event,
    PartitionsAdded,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
    encode_command,
)
from mainstem.nameserver.state.topic_table import PARTITIONS_PER_TOPIC_MAX, PARTITIONS_TOTAL_MAX

NODE = Node(node_id=1, host="127.0.0.1", port=9092)
LOG = "metadata/00000000000000000001.log"


VOTE = "metadata/vote"


def changes_in(disk: SimulatedFiles) -> list[bytes]:
    """The changes in the first log; every start adds an entry that is none."""
    records = read_log(LOG, disk.content(LOG), 1).records
    return [record.payload for record in records if record.kind == LogRecordKind.CHANGE]


def contents(disk: SimulatedFiles) -> dict[str, bytes]:
    return {path: disk.content(path) for path in disk.paths()}


def disk_of(files: dict[str, bytes]) -> SimulatedFiles:
    disk = SimulatedFiles()
    for path, content in files.items():
        disk.put(path, content)
    return disk


Body = Callable[[Nameserver], Coroutine[Any, Any, None]]


def config(**changes: Any) -> NameserverConfig:
    return NameserverConfig(**{"log_bytes_max": 8192, **changes})


async def opened(disk: SimulatedFiles, node: Node = NODE, seed: int = 1, **changes: Any) -> Nameserver:
    return await Nameserver.open(disk, random.Random(seed), config(**changes), node)


def run(disk: SimulatedFiles, body: Body, node: Node = NODE, **changes: Any) -> None:
    async def session() -> None:
        nameserver = await opened(disk, node, **changes)
        try:
            await body(nameserver)
        finally:
            await nameserver.close()

    asyncio.run(session())


async def nothing(nameserver: Nameserver) -> None:
    pass


def test_the_first_start_makes_a_cluster() -> None:
    disk = SimulatedFiles()
    seen: list[tuple[str, list[int]]] = []

    async def look(nameserver: Nameserver) -> None:
        seen.append((nameserver.lookups.cluster_id(), list(nameserver.lookups.slots())))
        assert nameserver.lookups.write_groups() == 3
        assert list(nameserver.lookups.nodes()) == [NODE]
        assert list(nameserver.lookups.topics()) == []

    run(disk, look, write_groups=3)
    run(disk, look, write_groups=9)  # only a new cluster asks for a number
    assert seen[0] == seen[1]
    cluster_id, slots = seen[0]
    assert len(cluster_id) == 22
    assert len(slots) == SLOTS
    assert set(slots) == {0, 1, 2}


def test_topics_survive_a_restart_and_numbers_are_never_reused() -> None:
    disk = SimulatedFiles()

    async def change(nameserver: Nameserver) -> None:
        first = await nameserver.administration.create_topic("a", 2, 1, {"retention.ms": "5"})
        await nameserver.administration.create_topic("b", 1, 1, {})
        await nameserver.administration.create_partitions("a", 4)
        await nameserver.administration.alter_configs("a", {"cleanup.policy": "compact"})
        (gone,) = await nameserver.administration.delete_topics(["b"])
        assert isinstance(gone, Topic)
        assert (first.number, gone.number) == (1, 2)

    async def look(nameserver: Nameserver) -> None:
        topic = nameserver.lookups.topic("a")
        assert topic is not None
        assert (topic.partitions, topic.settings.retention_ms) == (4, 5)
        assert topic.configs == {"retention.ms": "5", "cleanup.policy": "compact"}
        assert nameserver.lookups.topic_by_id(topic.topic_id) is topic
        assert nameserver.lookups.topic_by_number(1) is topic
        assert nameserver.lookups.topic("b") is None
        assert [nameserver.lookups.was_deleted(number) for number in (1, 2, 3)] == [False, True, False]
        assert nameserver.lookups.leader(topic.queue_id(3)) == 1
        assert nameserver.lookups.leader(topic.queue_id(4)) == nameserver.lookups.leader(queue_id_of(2, 0)) == -1
        assert (await nameserver.administration.create_topic("c", 1, 1, {})).number == 3

    run(disk, change)
    run(disk, look)


def test_validate_only_changes_nothing() -> None:
    disk = SimulatedFiles()

    async def ask(nameserver: Nameserver) -> None:
        await nameserver.administration.create_topic("a", 2, 1, {})
        changes = disk.changes
        asked = await nameserver.administration.create_topic("b", 3, 1, {"retention.ms": "1"}, validate_only=True)
        assert (asked.partitions, asked.settings.retention_ms) == (3, 1)
        assert (await nameserver.administration.create_partitions("a", 9, validate_only=True)).partitions == 9
        altered = await nameserver.administration.alter_configs("a", {"retention.ms": "7"}, validate_only=True)
        assert altered.settings.retention_ms == 7
        with pytest.raises(TopicExists):
            await nameserver.administration.create_topic("a", 1, 1, {}, validate_only=True)
        with pytest.raises(InvalidConfig):
            await nameserver.administration.alter_configs("a", {"retention.ms": "x"}, validate_only=True)
        with pytest.raises(UnknownTopic):
            await nameserver.administration.create_partitions("b", 9, validate_only=True)
        assert disk.changes == changes
        topic = nameserver.lookups.topic("a")
        assert topic is not None
        assert (topic.partitions, topic.configs) == (2, {})

    run(disk, ask)


def test_refusals_reach_the_one_who_asked_and_write_nothing() -> None:
    disk = SimulatedFiles()

    async def ask(nameserver: Nameserver) -> None:
        await nameserver.administration.create_topic("a", 2, 1, {})
        changes = disk.changes
        created, deleted, altered = await asyncio.gather(
            nameserver.administration.create_topic("a", 1, 1, {}),
            nameserver.administration.delete_topics(["b"]),
            nameserver.administration.alter_configs("a", {"retention.ms": "soon"}),
            return_exceptions=True,
        )
        assert isinstance(deleted, list)
        assert [type(answer) for answer in (created, *deleted, altered)] == [TopicExists, UnknownTopic, InvalidConfig]
        assert disk.changes == changes
        samples = {sample.labels: sample.value for sample in nameserver.samples() if sample.labels}
        assert samples[(("result", "refused"),)] == 3

    run(disk, ask)


def test_of_many_who_create_one_name_one_wins() -> None:
    async def race(nameserver: Nameserver) -> None:
        answers = await asyncio.gather(
            *(nameserver.administration.create_topic("a", count, 1, {}) for count in range(1, 9)),
            return_exceptions=True,
        )
        assert sum(isinstance(answer, TopicExists) for answer in answers) == 7

    run(SimulatedFiles(), race)


def test_a_caller_that_goes_away_leaves_log_and_state_the_same() -> None:
    disk = SimulatedFiles()
    numbers: list[int] = []

    async def leave(nameserver: Nameserver) -> None:
        for name in ("a", "b"):
            for turns in range(4):
                task = asyncio.ensure_future(nameserver.administration.create_topic(f"{name}{turns}", 1, 1, {}))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
        await nameserver.administration.create_topic("last", 1, 1, {})
        numbers.extend(topic.number for topic in nameserver.lookups.topics())

    async def look(nameserver: Nameserver) -> None:
        assert [topic.number for topic in nameserver.lookups.topics()] == numbers

    run(disk, leave)
    run(disk, look)


def test_followers_hear_of_changes_in_order_before_the_answer() -> None:
    heard: list[Event] = []

    async def change(nameserver: Nameserver) -> None:
        def broken(event: Event) -> None:
            raise RuntimeError("a follower's fault")

        nameserver.subscribe(broken)
        nameserver.subscribe(heard.append)
        topic = await nameserver.administration.create_topic("a", 1, 1, {})
        assert heard == [TopicCreated(topic)]
        await nameserver.administration.create_partitions("a", 3)
        await nameserver.administration.alter_configs("a", {"retention.ms": "1"})
        await nameserver.administration.allocate_producer_id()
        await nameserver.administration.delete_topics(["a"])

    run(SimulatedFiles(), change)
    assert [type(event) for event in heard] == [
        TopicCreated,
        PartitionsAdded,
        TopicConfigsChanged,
        TopicDeleted,
    ]


def test_producer_ids_are_given_once_across_restarts() -> None:
    disk = SimulatedFiles()
    given_ids: list[int] = []

    async def allocate(nameserver: Nameserver) -> None:
        given_ids.extend(await asyncio.gather(*(nameserver.administration.allocate_producer_id() for _ in range(1500))))

    run(disk, allocate)
    run(disk, allocate)
    assert len(set(given_ids)) == 3000
    assert min(given_ids) == 0
    assert max(given_ids) < 4000


def test_a_node_that_moved_is_registered_anew() -> None:
    disk = SimulatedFiles()
    moved = Node(node_id=1, host="127.0.0.1", port=9999)

    async def look(nameserver: Nameserver) -> None:
        assert list(nameserver.lookups.nodes()) == [moved]

    run(disk, nothing)
    run(disk, look, node=moved)
    before = changes_in(disk)
    run(disk, look, node=moved)
    assert changes_in(disk) == before


@pytest.mark.parametrize(
    ("changes", "node", "words"),
    [
        ({"cluster_id": "x" * 22}, NODE, "belongs to cluster"),
        ({"node_id": 2}, Node(node_id=2, host="h", port=1), "belongs to node 1"),
    ],
)
def test_another_nodes_directory_is_refused(changes: dict[str, Any], node: Node, words: str) -> None:
    disk = SimulatedFiles()
    run(disk, nothing, cluster_id="y" * 22)
    before = contents(disk)
    with pytest.raises(ForeignDirectory, match=words):
        run(disk, nothing, node=node, **changes)
    assert contents(disk) == before
    run(disk, nothing, cluster_id="y" * 22)  # the lock was let go


def test_a_directory_in_use_is_refused() -> None:
    disk = SimulatedFiles()

    async def second(nameserver: Nameserver) -> None:
        with pytest.raises(ForeignDirectory, match="in use"):
            await opened(disk)

    run(disk, second)


@pytest.mark.parametrize("kept", [[], ["lock"]])
def test_m_messages_without_metadata_are_kept_and_refused(kept: list[str]) -> None:
    """Invariant M: a new cluster would give old topic numbers to new topics."""
    disk = disk_of({"journal/00000000000000000001.wal": b"messages"})
    for name in kept:
        disk.put(f"metadata/{name}", b"")
    for _ in range(2):
        with pytest.raises(ForeignDirectory, match="no metadata"):
            run(disk, nothing)
    assert disk.content("journal/00000000000000000001.wal") == b"messages"


def test_a_failed_disk_stops_changes_but_not_lookups() -> None:
    disk = SimulatedFiles()

    async def fail(nameserver: Nameserver) -> None:
        await nameserver.administration.create_topic("a", 1, 1, {})
        disk.fail("sync")
        with pytest.raises(MetadataUnavailable, match="Input/output error"):
            await nameserver.administration.create_topic("b", 1, 1, {})
        with pytest.raises(MetadataUnavailable):
            await nameserver.administration.create_topic("c", 1, 1, {})
        assert [topic.name for topic in nameserver.lookups.topics()] == ["a"]

    run(disk, fail)


def test_changes_that_wait_are_bounded() -> None:
    async def crowd(nameserver: Nameserver) -> None:
        answers = await asyncio.gather(
            *(nameserver.administration.create_topic(f"t{index}", 1, 1, {}) for index in range(50)),
            return_exceptions=True,
        )
        assert sum(isinstance(answer, MetadataUnavailable) for answer in answers) == 40
        await nameserver.administration.create_topic("later", 1, 1, {})

    run(SimulatedFiles(), crowd, changes_waiting_max=10)


def test_a_closed_nameserver_takes_no_changes() -> None:
    async def scenario() -> None:
        nameserver = await opened(SimulatedFiles())
        accepted = asyncio.ensure_future(nameserver.administration.create_topic("a", 1, 1, {}))
        await asyncio.sleep(0)
        await nameserver.close()
        assert (await accepted).name == "a"
        with pytest.raises(MetadataUnavailable):
            await nameserver.administration.create_topic("b", 1, 1, {})

    asyncio.run(scenario())


def test_the_log_stays_short_and_old_files_go() -> None:
    disk = SimulatedFiles()

    async def churn(nameserver: Nameserver) -> None:
        for index in range(400):
            await nameserver.administration.create_topic(f"t{index}", 1, 1, {})
            await nameserver.administration.delete_topics([f"t{index}"])

    async def look(nameserver: Nameserver) -> None:
        assert list(nameserver.lookups.topics()) == []
        assert (await nameserver.administration.create_topic("a", 1, 1, {})).number == 401

    run(disk, churn)
    names = [path for path in disk.paths() if path not in ("metadata/lock", VOTE)]
    assert sorted(path.rpartition(".")[2] for path in names) == ["log", "snapshot"]
    assert sum(len(disk.content(path)) for path in names) < 40_000
    run(disk, look)


@pytest.mark.parametrize(("operation", "path"), [("rename", ".snapshot"), ("write", ".snapshot"), ("rename", ".log")])
def test_a_full_disk_during_a_snapshot_costs_only_the_snapshot(operation: str, path: str) -> None:
    disk = SimulatedFiles()
    run(disk, nothing)
    for nth in (1, 2):
        disk.fail(operation, path=f"{path}.tmp", nth=nth, error=errno.ENOSPC)

    async def churn(nameserver: Nameserver) -> None:
        for index in range(300):
            await nameserver.administration.create_topic(f"t{index}", 1, 1, {})
        tried = {sample.name: sample.value for sample in nameserver.samples()}
        assert tried["mainstem_metadata_snapshots_total"] >= 3

    async def look(nameserver: Nameserver) -> None:
        assert len(list(nameserver.lookups.topics())) == 300

    run(disk, churn)
    run(disk, look)
    assert not any(name.endswith(".tmp") for name in disk.paths())
    assert any(name.endswith(".snapshot") for name in disk.paths())


@pytest.mark.parametrize("suffix", ["log", "snapshot"])
def test_a_missing_file_is_refused_and_the_rest_left_alone(suffix: str) -> None:
    disk = SimulatedFiles()

    async def churn(nameserver: Nameserver) -> None:
        for index in range(200):
            await nameserver.administration.create_topic(f"t{index}", 1, 1, {})

    run(disk, churn)
    kept = {path: data for path, data in contents(disk).items() if not path.endswith(suffix)}
    assert len(kept) == len(disk.paths()) - 1
    disk = disk_of(kept)
    before = contents(disk)
    with pytest.raises(MetadataCorrupt, match="missing"):
        run(disk, nothing)
    assert contents(disk) == before


def test_flips_anywhere_in_the_files_are_refused_by_name() -> None:
    disk = SimulatedFiles()

    async def churn(nameserver: Nameserver) -> None:
        for index in range(150):
            await nameserver.administration.create_topic(f"t{index}", 1, 1, {})

    run(disk, churn)
    files = {path: data for path, data in contents(disk).items() if path != "metadata/lock"}
    assert len(files) == 3
    randomness = random.Random(5)
    for path, data in files.items():
        if path == VOTE:
            continue  # is there twice
        mark_bytes = RECORD_HEADER_BYTES if path.endswith("log") else 0
        for position in randomness.sample(range(len(data) - mark_bytes), 60):
            damaged = bytearray(data)
            damaged[position] ^= 1 << randomness.randrange(8)
            copy = disk_of({**files, path: bytes(damaged)})
            with pytest.raises(MetadataCorrupt) as raised:
                run(copy, nothing)
            assert raised.value.path == path
            assert raised.value.position <= position
            assert copy.content(path) == damaged


def test_a_command_that_makes_no_sense_is_refused_by_name() -> None:
    disk = SimulatedFiles()
    run(disk, nothing)
    content = read_log(LOG, disk.content(LOG), 1)
    record = encode_record(content.end, len(content.records) + 1, content.end, encode_command(DeleteTopic(9)), term=1)
    disk.put(LOG, disk.content(LOG)[: content.end] + record)
    with pytest.raises(MetadataCorrupt, match="number 9") as raised:
        run(disk, nothing)
    assert raised.value.position == content.end


def test_damage_of_the_newest_command_is_refused_even_after_an_unclean_stop() -> None:
    """Once a command was answered nothing may pass it off as a torn write, close or no close."""
    disk = SimulatedFiles()
    after_answer: list[bytes] = []

    async def change(nameserver: Nameserver) -> None:
        await nameserver.administration.create_topic("a", 1, 1, {})
        after_answer.append(disk.content(LOG))

    run(disk, change)
    newest = read_log(LOG, after_answer[0], 1).records[-1]
    for position in range(newest.position, newest.end):
        damaged = bytearray(after_answer[0])
        damaged[position] ^= 1 << position % 8
        with pytest.raises(MetadataCorrupt) as raised:
            run(disk_of({LOG: bytes(damaged)}), nothing)
        assert raised.value.position == newest.position


def test_a_torn_end_is_cut_off_before_anything_follows() -> None:
    disk = SimulatedFiles()
    run(disk, nothing)
    whole = disk.content(LOG)
    before = changes_in(disk)
    disk.put(LOG, whole + random.Random(3).randbytes(5000))
    run(disk, nothing)
    assert len(disk.content(LOG)) < len(whole) + 100
    assert changes_in(disk) == before


def test_no_other_log_follows_one_whose_end_is_unknown() -> None:
    async def scenario() -> None:
        disk = SimulatedFiles()
        metadata_log, found = await MetadataLog.open(disk, bytes_max=1)
        await metadata_log.start(found)
        await metadata_log.append([LogEntry(1, 1, LogRecordKind.CHANGE, b"one")])
        assert metadata_log.wants_snapshot
        disk.fail("sync")
        with pytest.raises(MetadataUnavailable):
            await metadata_log.append([LogEntry(2, 1, LogRecordKind.CHANGE, b"two")])
        assert not metadata_log.wants_snapshot
        await metadata_log.close()

    asyncio.run(scenario())


def test_a_fault_of_our_own_is_told_and_ends_all_changes() -> None:
    """Nobody is left waiting when a command that passed its check cannot be applied."""

    async def break_it(nameserver: Nameserver) -> None:
        async def forge() -> Made:
            return Made([AdvanceCounters(topic_number=0, producer_id=0)], [])

        answers = await asyncio.gather(
            nameserver.proposer.propose(forge, b""),
            nameserver.administration.create_topic("a", 1, 1, {}),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [MetadataUnavailable, MetadataUnavailable]
        assert "counters go back" in str(answers[0])
        with pytest.raises(MetadataUnavailable):
            await nameserver.administration.create_topic("b", 1, 1, {})

    run(SimulatedFiles(), break_it)


# --- many topics together ----------------------------------------------------------------------------------


CHANGES_PER_WRITE = 3
"""The records, the sync, the mark behind them."""


def wanted(*names: str, partitions: int = 1) -> list[NewTopic]:
    return [NewTopic(name, partitions, 1, {}) for name in names]


def test_topics_created_together_are_one_write_and_each_has_its_own_answer() -> None:
    disk = SimulatedFiles()

    async def create(nameserver: Nameserver) -> None:
        await nameserver.administration.create_topic("there", 1, 1, {})
        before = disk.changes
        asked = [*wanted("a", "there", "b.c", "b_c", "a"), NewTopic("d", 1, 1, {"retention.ms": "soon"})]
        answers = await nameserver.administration.create_topics([*asked, *wanted("e", partitions=3)])
        assert disk.changes == before + CHANGES_PER_WRITE
        assert [answer.name if isinstance(answer, Topic) else type(answer) for answer in answers] == [
            "a", TopicExists, "b.c", InvalidTopicName, TopicExists, InvalidConfig, "e",
        ]  # fmt: skip
        assert [topic.number for topic in nameserver.lookups.topics()] == [1, 2, 3, 4]

    async def look(nameserver: Nameserver) -> None:
        assert {topic.name: topic.partitions for topic in nameserver.lookups.topics()} == {
            "there": 1, "a": 1, "b.c": 1, "e": 3,
        }  # fmt: skip

    run(disk, create)
    run(disk, look)


def test_topics_together_meet_the_bounds_that_one_by_one_would() -> None:
    async def create(nameserver: Nameserver) -> None:
        size = PARTITIONS_PER_TOPIC_MAX
        most = PARTITIONS_TOTAL_MAX // size
        answers = await nameserver.administration.create_topics(
            wanted(*(f"t{number}" for number in range(most + 1)), partitions=size)
        )
        assert [type(answer) for answer in answers] == [Topic] * most + [InvalidPartitions]
        await nameserver.administration.create_topic("__inside", 50, 1, {}, internal=True)
        with pytest.raises(InvalidPartitions):
            await nameserver.administration.create_topic("one_more", 1, 1, {})

    run(SimulatedFiles(), create)


def test_topics_validated_together_are_not_created() -> None:
    disk = SimulatedFiles()

    async def validate(nameserver: Nameserver) -> None:
        changes = disk.changes
        answers = await nameserver.administration.create_topics(wanted("a", "b", "a"), validate_only=True)
        assert [type(answer) for answer in answers] == [Topic, Topic, TopicExists]
        assert (list(nameserver.lookups.topics()), disk.changes) == ([], changes)

    run(disk, validate)


def test_topics_deleted_together_are_one_write() -> None:
    disk = SimulatedFiles()

    async def delete(nameserver: Nameserver) -> None:
        await nameserver.administration.create_topics(wanted("a", "b", "c"))
        before = disk.changes
        answers = await nameserver.administration.delete_topics(["a", "nobody", "c", "a"])
        assert disk.changes == before + CHANGES_PER_WRITE
        assert [answer.name if isinstance(answer, Topic) else type(answer) for answer in answers] == [
            "a", UnknownTopic, "c", UnknownTopic,
        ]  # fmt: skip
        assert [topic.name for topic in nameserver.lookups.topics()] == ["b"]

    run(disk, delete)


def test_more_topics_than_one_turn_takes() -> None:
    disk = SimulatedFiles()
    count = 2 * COMMANDS_PER_TURN + 1

    async def create(nameserver: Nameserver) -> None:
        answers = await nameserver.administration.create_topics(wanted(*(f"t{number}" for number in range(count))))
        assert [answer.name for answer in answers if isinstance(answer, Topic)] == [f"t{n}" for n in range(count)]

    async def look(nameserver: Nameserver) -> None:
        assert len(list(nameserver.lookups.topics())) == count

    run(disk, create)
    run(disk, look)


def test_a_failing_disk_refuses_all_topics_of_a_write() -> None:
    disk = SimulatedFiles()

    async def fail(nameserver: Nameserver) -> None:
        disk.fail("write", path="metadata/")
        with pytest.raises(MetadataUnavailable):
            await nameserver.administration.create_topics(wanted("a", "b"))
        assert list(nameserver.lookups.topics()) == []

    run(disk, fail)
