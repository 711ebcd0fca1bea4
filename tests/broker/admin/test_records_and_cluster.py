"""DeleteRecords, DescribeCluster and DescribeLogDirs against fakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from tests.broker.admin.admin_broker import AdminBroker, versions_of
from tests.fakes.files import SimulatedFiles
from tests.fakes.memory_store import MemoryStore

from mainstem.broker.broker import LogDir, NodeFacts
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.handlers import create_topics, delete_records, describe_cluster, describe_log_dirs
from mainstem.errors import MainstemError
from mainstem.model import ListenerAddress, Node, NodeRole, QueueRange, QueueUsage, queue_id_of
from mainstem.ports import DiskUsage
from mainstem.protocol.encoded_array import elements
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from mainstem.protocol.messages.describe_cluster import DescribeClusterRequest
from mainstem.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from mainstem.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from mainstem.storage.errors import (
    ChangesFailed,
    CorruptJournal,
    NotTheLeader,
    StorageBusy,
    StorageError,
    StorageFailed,
    WriteGroupEnded,
)


def deleted(
    admin: AdminBroker, name: str, *offsets: tuple[int, int], version: int | None = None
) -> list[tuple[int, int, int]]:
    """(partition, low watermark, error) per (partition, offset)."""
    parts = tuple(DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in offsets)
    request = DeleteRecordsRequest(topics=(DeleteRecordsTopic(name=name, partitions=parts),), timeout_ms=1000)
    (topic,) = admin.ask(delete_records.handle, request, version).topics
    assert topic.name == name
    return [(part.partition_index, part.low_watermark, part.error_code) for part in topic.partitions]


@pytest.mark.parametrize("version", versions_of(DeleteRecordsRequest))
def test_log_starts_move_in_every_version(version: int) -> None:
    admin = AdminBroker()
    admin.create("a", 3)
    for partition in range(3):
        admin.append("a", partition, 5)
    assert deleted(admin, "a", (0, 2), (1, -1), (2, 0), version=version) == [(0, 2, 0), (1, 5, 0), (2, 0, 0)]
    assert [queue.log_start for queue in admin.store.queues.values()] == [2, 5, 0]
    assert deleted(admin, "a", (0, 1), version=version) == [(0, 2, 0)]  # never back


def test_refused_deletions_move_nothing() -> None:
    admin = AdminBroker()
    admin.create("a", 4)
    for partition in range(4):
        admin.append("a", partition, 5)
    topic = admin.metadata.topic("a")
    assert topic is not None
    admin.metadata.leaders[topic.queue_id(3)] = 2
    answers = deleted(admin, "a", (0, 6), (1, -2), (2, 1), (2, 2), (3, 1), (4, 1), (-1, 1))
    assert answers == [
        (0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (1, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (2, -1, ErrorCode.INVALID_REQUEST),
        (2, -1, ErrorCode.INVALID_REQUEST),
        (3, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (4, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert [queue.log_start for queue in admin.store.queues.values()] == [0, 0, 0, 0]


class FailedDisk(MemoryStore):
    """Disk 1 of this node failed."""

    async def truncate(self, before: Mapping[int, int]) -> dict[int, int | MainstemError | None]:
        raise StorageFailed("a sync of disk 1 failed")


def test_clients_look_for_another_leader_where_the_disk_failed() -> None:
    admin = AdminBroker()
    admin.create("a", 2)
    admin.append("a", 0, 5)
    admin.broker.queue_admin = FailedDisk()
    assert deleted(admin, "a", (0, 2), (7, 1)) == [
        (0, -1, ErrorCode.KAFKA_STORAGE_ERROR),
        (7, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


class OneGroupEnded(MemoryStore):
    """This node has no part in one write group any more."""

    def __init__(self, ended: Callable[[int], bool]) -> None:
        super().__init__()
        self._ended = ended

    async def truncate(self, before: Mapping[int, int]) -> dict[int, int | MainstemError | None]:
        starts = await super().truncate({queue: start for queue, start in before.items() if not self._ended(queue)})
        return starts | {queue: WriteGroupEnded("of it") for queue in before if self._ended(queue)}

    async def create(self, ranges: Sequence[QueueRange]) -> None:
        await super().create(ranges)
        groups = {queue_id_of(one.topic_number, one.first_partition) for one in ranges}  # as the fakes place queues
        if ended := set(filter(self._ended, groups)):
            raise ChangesFailed(dict.fromkeys(ended, WriteGroupEnded("of it")))


def test_partitions_of_a_write_group_that_has_ended_fail_alone() -> None:
    admin = AdminBroker()
    ended = {queue_id_of(1, 1), queue_id_of(3, 0)}
    admin.store = OneGroupEnded(ended.__contains__)
    admin.broker.queue_admin = admin.broker.store = admin.store
    admin.create("a", 3)
    for partition in range(3):
        admin.append("a", partition, 5)
    assert deleted(admin, "a", (0, 2), (1, 2), (2, 2)) == [
        (0, 2, ErrorCode.NONE),
        (1, -1, ErrorCode.KAFKA_STORAGE_ERROR),
        (2, 2, ErrorCode.NONE),
    ]
    request = CreateTopicsRequest(
        topics=tuple(
            CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
            for name in ("b", "c", "d")
        ),
        timeout_ms=1000,
    )
    answer = admin.ask(create_topics.handle, request)
    assert [(topic.name, topic.error_code) for topic in elements(answer.topics)] == [
        ("b", ErrorCode.NONE),
        ("c", ErrorCode.KAFKA_STORAGE_ERROR),
        ("d", ErrorCode.NONE),
    ]


@pytest.mark.parametrize("kind", [StorageFailed, StorageBusy, CorruptJournal])
def test_what_disks_do_to_a_change_can_be_tried_again(kind: type[StorageError]) -> None:
    assert error_of_refusal(kind("disk 1")) == ErrorCode.KAFKA_STORAGE_ERROR
    assert error_of_refusal(NotTheLeader("of write group 3")) == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("__consumer_offsets", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("compacted", ErrorCode.POLICY_VIOLATION),
        ("both", ErrorCode.NONE),
    ],
)
def test_which_topics_records_may_be_deleted_from(name: str, error: ErrorCode) -> None:
    admin = AdminBroker()
    admin.create("__consumer_offsets", internal=True)
    admin.create("compacted", configs={"cleanup.policy": "compact"})
    admin.create("both", configs={"cleanup.policy": "compact,delete"})
    for known in ("__consumer_offsets", "compacted", "both"):
        admin.append(known, 0, 3)
    assert [answer[2] for answer in deleted(admin, name, (0, 1))] == [error]
    moved = [queue.log_start for queue in admin.store.queues.values()]
    assert moved == ([0, 0, 1] if error == ErrorCode.NONE else [0, 0, 0])


@pytest.mark.parametrize("version", versions_of(DescribeClusterRequest))
def test_the_cluster_in_every_version(version: int) -> None:
    admin = AdminBroker()
    admin.metadata.nodes_known.append(Node(node_id=2, host="other", port=7, rack="r"))
    for asked in (False, True):
        request = DescribeClusterRequest(include_cluster_authorized_operations=asked)
        answer = admin.ask(describe_cluster.handle, request, version)
        assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, "fake-cluster", 1)
        assert [(node.broker_id, node.host, node.port, node.rack) for node in answer.brokers] == [
            (1, "127.0.0.1", 9092, None),
            (2, "other", 7, "r"),
        ]
        assert (answer.cluster_authorized_operations > 0) == asked


def test_dead_brokers_are_fenced_and_told_of_when_asked_for() -> None:
    admin = AdminBroker()
    apart = frozenset({NodeRole.STORAGE})
    admin.metadata.nodes_known += [
        Node(node_id=2, host="other", port=7, rack="r"),
        Node(node_id=3, host="no broker", port=0, roles=apart),
        Node(node_id=4, host="elsewhere", port=8, endpoints=(ListenerAddress("INSIDE", "elsewhere", 8),)),
    ]
    admin.metadata.dead |= {2, 3, 4}
    for asked in (False, True):
        request = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=asked)
        answer = admin.ask(describe_cluster.handle, request)
        told = [(node.broker_id, node.host, node.port, node.rack, node.is_fenced) for node in answer.brokers]
        assert told == [(1, "127.0.0.1", 9092, None, False)] + [(2, "other", 7, "r", True)] * asked


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_other_endpoints_are_refused(endpoint_type: int, error: ErrorCode) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=endpoint_type)
    answer = AdminBroker().ask(describe_cluster.handle, request)
    assert (answer.error_code, answer.brokers) == (error, ())


class FailingDisk(SimulatedFiles):
    async def usage(self) -> DiskUsage:
        raise OSError(5, "Input/output error")


class SplitAdminBroker(AdminBroker):
    """Partition 1 of every topic has 1,000 bytes in the queue store."""

    def __init__(self, facts: NodeFacts) -> None:
        super().__init__(facts)
        unsplit = self.store.usage

        async def usage(queue_ids: list[int]) -> list[QueueUsage | None]:
            found = await unsplit(queue_ids)
            return [
                None if use is None else QueueUsage(use.unsplit_bytes, 1000 * (queue_id & 0xFFFF == 1))
                for queue_id, use in zip(queue_ids, found, strict=True)
            ]

        self.store.usage = usage  # type: ignore[method-assign, assignment]


def log_dirs(
    admin: AdminBroker, asked: dict[str, tuple[int, ...]] | None, version: int | None = None
) -> dict[str, dict[tuple[str, int], int]]:
    """Per directory, bytes per (topic, partition)."""
    topics = None
    if asked is not None:
        topics = tuple(DescribableLogDirTopic(topic=name, partitions=parts) for name, parts in asked.items())
    answer = admin.ask(describe_log_dirs.handle, DescribeLogDirsRequest(topics=topics), version)
    assert answer.error_code == ErrorCode.NONE
    return {
        result.log_dir: {
            (topic.name, part.partition_index): part.partition_size
            for topic in elements(result.topics)
            for part in elements(topic.partitions)
        }
        for result in answer.results
    }


@pytest.mark.parametrize("version", versions_of(DescribeLogDirsRequest))
def test_both_disks_in_every_version(version: int) -> None:
    admin = SplitAdminBroker(NodeFacts(write_dir=LogDir("/one", SimulatedFiles()), store_dir=LogDir("s3://two")))
    admin.create("a", 2)
    admin.append("a", 0, 3)
    assert log_dirs(admin, None, version) == {
        "/one": {("a", 0): 300, ("a", 1): 0},
        "s3://two": {("a", 1): 1000},
    }


def test_a_shared_store_is_told_of_by_the_leader_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_log_dirs, "QUEUES_PER_TURN", 1)
    admin = SplitAdminBroker(NodeFacts(write_dir=LogDir("/one"), store_dir=LogDir("s3://two", is_shared=True)))
    for name in ("a", "b"):
        admin.create(name, 2)
    elsewhere = admin.metadata.topic("b")
    assert elsewhere is not None
    admin.store.led_elsewhere.add(elsewhere.queue_id(1))
    assert log_dirs(admin, None) == {
        "/one": {("a", 0): 0, ("a", 1): 0, ("b", 0): 0, ("b", 1): 0},
        "s3://two": {("a", 1): 1000},
    }


def test_only_what_was_asked_for_and_exists() -> None:
    admin = SplitAdminBroker(NodeFacts(write_dir=LogDir("/one"), store_dir=LogDir("/two")))
    for name in ("a", "b"):
        admin.create(name, 2)
    assert log_dirs(admin, {"a": (1, 1, 5, -1), "nowhere": (0,)}) == {
        "/one": {("a", 1): 0},
        "/two": {("a", 1): 1000},
    }
    assert log_dirs(admin, {}) == {"/one": {}, "/two": {}}


def test_how_full_the_disks_are_and_one_that_fails() -> None:
    disk = SimulatedFiles(capacity_bytes=1000)
    disk.put("x", b"123")
    facts = NodeFacts(write_dir=LogDir("/one", disk), store_dir=LogDir("/two", FailingDisk()))
    admin = AdminBroker(facts)
    good, bad = admin.ask(describe_log_dirs.handle, DescribeLogDirsRequest(topics=None)).results
    assert (good.error_code, good.total_bytes, good.usable_bytes) == (0, 1000, 997)
    assert (bad.error_code, bad.total_bytes) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


def test_a_node_that_stores_nothing_has_no_directories() -> None:
    admin = AdminBroker()
    admin.create("a")
    assert log_dirs(admin, None) == {}
