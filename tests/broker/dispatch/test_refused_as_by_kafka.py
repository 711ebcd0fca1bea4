"""Answers to clients without some right, as Kafka 4.3.1 gave them to the matrix of access rules
(`python -m bench.access.acl_matrix`): which check comes first, and what an answer still names."""

from __future__ import annotations

import asyncio
from uuid import UUID

from tests.broker.dispatch.test_guard import called, committed, rule
from tests.broker.harness import serving
from tests.fakes.access.acls import MemoryAcls
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from mainstem.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from mainstem.protocol.messages.producer_transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from mainstem.protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
    DescribeShareOffsetsTopic,
)
from mainstem.security.acls.acl import Operation, ResourceKind

GROUP, CLUSTER, TRANSACTION = ResourceKind.GROUP, ResourceKind.CLUSTER, ResourceKind.TRANSACTIONAL_ID
DESCRIBED_AND_READ = 1 << Operation.READ | 1 << Operation.DESCRIBE


def offsets_in_transaction() -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    return TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", producer_id=1, producer_epoch=0,
        topics=(TxnOffsetCommitRequestTopic(name="t", partitions=(partition,)),),
    )  # fmt: skip


def test_a_group_that_is_refused_comes_before_topics_and_names_none() -> None:
    async def scenario() -> None:
        async with serving(acls=MemoryAcls(rule(Operation.WRITE, TRANSACTION, "x"))) as node:
            await node.topic("t")
            client = await node.connect()
            answer = await called(client, offsets_in_transaction(), 4)
            (partition,) = answer.topics[0].partitions
            assert partition.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED

            unknown = OffsetFetchRequestTopics(topic_id=UUID(int=77), partition_indexes=(0,))
            asked = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=(unknown,)),))
            (group,) = (await called(client, asked, 10)).groups
            assert (group.error_code, group.topics) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, ())

            shared = DescribeShareOffsetsTopic(topic_name="t", partitions=(0,))
            of_group = DescribeShareOffsetsGroup(group_id="g", topics=(shared,))
            (group,) = (await called(client, DescribeShareGroupOffsetsRequest(groups=(of_group,)), 1)).groups
            assert (group.error_code, group.topics) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, ())
            await client.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def test_a_group_of_another_kind_has_no_offsets_of_a_share_group() -> None:
    async def scenario() -> None:
        allowed = [rule(operation, GROUP, name) for operation in (Operation.READ, Operation.DELETE) for name in "gn"]
        acls = MemoryAcls(*allowed)
        async with serving(acls=acls) as node:
            await node.topic("t")
            client = await node.connect()
            await committed(client, acls)
            found = {}
            for group in "gn":
                altered = await called(client, AlterShareGroupOffsetsRequest(group_id=group, topics=()), 0)
                deleted = await called(client, DeleteShareGroupOffsetsRequest(group_id=group, topics=()), 0)
                found[group] = altered.error_code, deleted.error_code
            not_found = ErrorCode.GROUP_ID_NOT_FOUND
            assert found == {"g": (not_found, not_found), "n": (ErrorCode.NONE, not_found)}
            await client.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def test_what_is_not_there_is_told_with_what_would_be_allowed() -> None:
    async def scenario() -> None:
        acls = MemoryAcls(rule(Operation.READ, name="gone"), rule(Operation.CLUSTER_ACTION, CLUSTER))
        async with serving(acls=acls) as node:
            await node.topic("t")
            client = await node.connect()
            asked = DescribeTopicPartitionsRequest(topics=(TopicRequest(name="gone"), TopicRequest(name="t")))
            told = {topic.name: topic for topic in (await called(client, asked, 0)).topics}
            assert told["gone"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert told["gone"].topic_authorized_operations == DESCRIBED_AND_READ
            assert told["t"].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert told["t"].topic_authorized_operations < 0

            topics = tuple(AddPartitionsToTxnTopic(name=name, partitions=(0,)) for name in ("t", "gone"))
            asking = AddPartitionsToTxnRequest(transactions=(AddPartitionsToTxnTransaction(
                transactional_id="x", producer_id=1, producer_epoch=0, verify_only=True, topics=topics),))  # fmt: skip
            (answer,) = (await called(client, asking, 5)).results_by_transaction
            codes = {topic.name: topic.results_by_partition[0].partition_error_code for topic in answer.topic_results}
            assert codes == {
                "t": ErrorCode.OPERATION_NOT_ATTEMPTED,
                "gone": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            }
            await client.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))
