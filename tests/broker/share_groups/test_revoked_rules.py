"""A request that waits for records of a share group gets none once its client may not read the group, or the topic, any
more."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.harness import batch, call, make_broker
from tests.broker.serving_node_of import serving_node_of
from tests.broker.share_groups_of import share_groups_of
from tests.fakes.access.acls import MemoryAcls
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.handlers import share_fetch
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import (
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
)
from mainstem.protocol.records import NewBatch
from mainstem.security.acls.acl import Acl, Operation, PatternType, Permission, ResourceKind

VERSION = 1
WHILE_IT_WAITS_SECONDS = 1.0
"""By the clock of the simulation."""


def rule(kind: ResourceKind, name: str) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, "User:*", "*", Operation.READ, Permission.ALLOW)


OF_GROUP, OF_TOPIC = rule(ResourceKind.GROUP, "g"), rule(ResourceKind.TOPIC, "t")


@pytest.mark.parametrize("revoked", [None, OF_GROUP, OF_TOPIC])
def test_a_fetch_that_waits_gets_nothing_after_its_rule_is_revoked(revoked: Acl | None) -> None:
    async def story() -> tuple[ShareFetchResponse, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        fakes = make_broker(loop)
        acls = MemoryAcls(OF_GROUP, OF_TOPIC)
        fakes.broker.authorizer, fakes.broker.acl_admin = acls.authorizer(), acls
        node = serving_node_of(fakes.metadata, fakes.leadership, fakes.store, loop)
        fakes.broker.shares = share_groups_of(node, ShareGroupsConfig(auto_offset_reset="earliest"))
        fakes.broker.shares.served.start()
        topic = await fakes.topic("t")
        request = ShareFetchRequest(
            group_id="g", member_id="m", share_session_epoch=0, max_wait_ms=2**31 - 1, min_bytes=1, max_bytes=1 << 20,
            max_records=500, batch_size=500, forgotten_topics_data=(),
            topics=(
                ShareFetchTopic(
                    topic_id=topic.topic_id,
                    partitions=(ShareFetchPartition(partition_index=0, acknowledgement_batches=()),),
                ),
            ),
        )  # fmt: skip
        began = loop.time()
        fetching = loop.create_task(share_fetch.handle(fakes.broker, request, call(VERSION)))
        await asyncio.sleep(WHILE_IT_WAITS_SECONDS)
        assert not fetching.done()
        if revoked is not None:
            acls.table.remove(revoked)
        await fakes.store.append([NewBatch.parse(batch(b"value")).to_append(topic.queue_id(0))], -1)
        answer = await fetching
        await fakes.broker.shares.served.close()
        return answer, loop.time() - began

    loop = SimulatedLoop()
    try:
        answer, seconds = loop.run_until_complete(story())
    finally:
        loop.close()
    rows = [row for told in answer.responses for row in told.partitions]
    assert bool([row for row in rows if row.records]) == (revoked is None)
    assert answer.error_code == (ErrorCode.GROUP_AUTHORIZATION_FAILED if revoked is OF_GROUP else ErrorCode.NONE)
    refusals = [row.error_code for row in rows if row.error_code]
    assert refusals == ([ErrorCode.TOPIC_AUTHORIZATION_FAILED] if revoked is OF_TOPIC else [])
    assert seconds < 60, "and no wait is longer than that of a Fetch"
