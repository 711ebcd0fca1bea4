"""A ShareFetch that renews locks fetches nothing, so that its limits are 0; Kafka refuses any other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.harness import Fakes, batch, call, make_broker
from tests.broker.serving_node_of import serving_node_of
from tests.broker.share_groups_of import share_groups_of
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.handlers import share_fetch
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import (
    ACCEPT,
    RENEW,
    AcknowledgementBatch,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
)
from mainstem.protocol.records import NewBatch

VERSION = 2
LIMITS: dict[str, int] = {"max_wait_ms": 1, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500}
NOTHING = dict.fromkeys(LIMITS, 0)


def asked(topic: Topic, epoch: int, kind: int | None = None, **limits: Any) -> ShareFetchRequest:
    """`kind`: how the record at offset 0 is acknowledged."""
    batches = () if kind is None else (AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=(kind,)),)
    followed = (ShareFetchPartition(partition_index=0, acknowledgement_batches=batches),)
    return ShareFetchRequest(
        group_id="g", member_id="m", share_session_epoch=epoch, batch_size=500, is_renew_ack=kind == RENEW,
        topics=(ShareFetchTopic(topic_id=topic.topic_id, partitions=followed),), forgotten_topics_data=(), **limits,
    )  # fmt: skip


async def begun() -> tuple[Fakes, Topic]:
    """A member that has acquired one record; its next request has epoch 1."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    fakes = make_broker(loop)
    node = serving_node_of(fakes.metadata, fakes.leadership, fakes.store, loop)
    fakes.broker.shares = share_groups_of(node, ShareGroupsConfig(auto_offset_reset="earliest"))
    fakes.broker.shares.served.start()
    topic = await fakes.topic()
    for _ in range(2):
        await fakes.store.append([NewBatch.parse(batch(b"value")).to_append(topic.queue_id(0))], -1)
    first = await share_fetch.handle(fakes.broker, asked(topic, 0, **LIMITS | {"max_records": 1}), call(VERSION))
    assert first.responses[0].partitions[0].acquired_records
    return fakes, topic


def answers(*requests: tuple[int, dict[str, int]]) -> list[ShareFetchResponse]:
    """To each kind of acknowledgement with these limits, one after the other in one session."""

    async def story() -> list[ShareFetchResponse]:
        fakes, topic = await begun()
        told: list[ShareFetchResponse] = []
        for kind, limits in requests:
            epoch = 1 + sum(one.error_code == ErrorCode.NONE for one in told)
            told.append(await share_fetch.handle(fakes.broker, asked(topic, epoch, kind, **limits), call(VERSION)))
        await fakes.broker.shares.served.close()
        return told

    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(story())
    finally:
        loop.close()


@pytest.mark.parametrize("limit", LIMITS)
def test_a_renewal_that_wants_records_is_refused_and_the_session_stays_where_it_was(limit: str) -> None:
    refused, renewed = answers((RENEW, NOTHING | {limit: LIMITS[limit]}), (RENEW, NOTHING))
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert limit.replace("_", "") in (refused.error_message or "").lower()
    assert not refused.responses
    assert renewed.error_code == ErrorCode.NONE, "the refused request has taken no epoch"
    assert [row.acknowledge_error_code for row in renewed.responses[0].partitions] == [ErrorCode.NONE]


def test_a_request_that_accepts_may_want_records() -> None:
    renewed, accepted = answers((RENEW, NOTHING), (ACCEPT, LIMITS))
    assert (renewed.error_code, accepted.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert not renewed.responses[0].partitions[0].acquired_records
    assert accepted.responses[0].partitions[0].acquired_records, "the fetch brings more"
