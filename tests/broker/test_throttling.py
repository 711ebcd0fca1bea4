"""Clients are held to their quotas, behind a real server: answered first, and muted then.

The clock of these tests is moved by hand; the loop's own timers wake muted connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.broker.dispatch.test_guard import fetching, producing
from tests.broker.harness import Serving, call, make_broker, serving
from tests.fakes.clock import FakeClock
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.broker.flood_watch import SHARED_SECONDS
from mainstem.broker.throttling import HELD_BACK_SECONDS, THROTTLE_SECONDS_MAX, UNLIMITED, Throttling
from mainstem.model import Sample, Topic
from mainstem.ports import Session
from mainstem.protocol import codec
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.headers import RequestHeader, request_frame
from mainstem.protocol.messages import list_offsets, topics
from mainstem.security.quotas.quota import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    TENANT,
    USER,
    Entity,
)
from mainstem.security.quotas.quota_table import QuotaTable
from mainstem.security.tenants import traffic
from mainstem.security.tenants.tenant import Tenant
from mainstem.security.tenants.tenant_table import TenantTable

EVERY_CLIENT: Entity = ((CLIENT_ID, None),)
SOON_MS = 400
"""For which a client is muted that a test waits for."""


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_SECONDS))


@asynccontextmanager
async def limited(entity: Entity = EVERY_CLIENT, **quotas: float) -> AsyncIterator[tuple[Serving, QuotaTable, Topic]]:
    """A node whose clients are under quotas, and its topic t."""
    table = QuotaTable()
    table.change(entity, quotas)
    async with serving(quotas=table) as node:
        yield node, table, await node.topic()


def test_a_consumer_counts_as_held_back_while_it_is_muted_and_a_little_longer() -> None:
    clock, table = FakeClock(), QuotaTable()
    table.change(EVERY_CLIENT, {CONSUMER_BYTE_RATE: 100.0, PRODUCER_BYTE_RATE: 100.0})
    throttling = Throttling(lambda: table, clock)
    session = Session("10.0.0.1", 5, 1)
    assert throttling.produced(session, "c", 1_000) > 0
    assert not throttling.held_back("c", "10.0.0.1"), "as a producer"
    throttle_ms = throttling.fetched(session, "c", 1_000)
    assert throttling.held_back("c", "10.0.0.1")
    assert not throttling.held_back("c", "10.0.0.2")
    assert not throttling.held_back("d", "10.0.0.1")
    clock.advance(throttle_ms / 1000 + HELD_BACK_SECONDS + 0.1)
    assert not throttling.held_back("c", "10.0.0.1")


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_a_producer_over_its_quota_is_answered_and_muted_then(version: int) -> None:
    async def story() -> None:
        async with limited(producer_byte_rate=1000.0) as (node, table, topic):
            request = producing(version, topic.topic_id)
            client = await node.connect()
            loop = asyncio.get_running_loop()
            throttled: list[int] = []
            while not throttled or not throttled[-1]:
                throttled.append((await client.call(request, version)).throttle_time_ms)
            assert throttled[0] == 0  # a burst is free
            answered_at = loop.time()
            table.change(EVERY_CLIENT, {PRODUCER_BYTE_RATE: None})  # who is muted stays so for as long as it was told
            await client.call(request, version)
            assert loop.time() - answered_at >= throttled[-1] / 1000 - 0.05
            await client.close()

    run(story())


def test_requests_that_come_together_are_charged_together() -> None:
    async def story() -> None:
        async with limited(producer_byte_rate=20_000.0) as (node, _, topic):
            request = producing(9, topic.topic_id)
            client = await node.connect()
            for _ in range(100):
                await client.request(request, 9)
            times = [(await client.response(0, 9)).throttle_time_ms for _ in range(100)]
            assert max(times) > 0
            await client.close()

    run(story())


@pytest.mark.parametrize("version", [4, 7, 12, 13])
def test_a_reader_over_its_quota_gets_its_data_and_is_muted_then(version: int) -> None:
    async def story() -> None:
        async with limited(consumer_byte_rate=100.0) as (node, table, topic):
            writer = await node.connect()
            for _ in range(3):
                await writer.call(producing(9, topic.topic_id), 9)
            client = await node.connect()
            response = await client.call(fetching(version, topic.topic_id), version)
            (partition,) = response.responses[0].partitions
            assert partition.records
            assert response.throttle_time_ms > 0
            assert len(partition.records) <= 200, (
                "a response is no larger than one batch, which is more than the quota has for now"
            )
            table.change(EVERY_CLIENT, {CONSUMER_BYTE_RATE: None})
            later = await client.call(fetching(version, topic.topic_id), version)
            assert later.throttle_time_ms == 0
            for each in (writer, client):
                await each.close()

    run(story())


def test_requests_of_a_muted_client_wait_and_others_do_not() -> None:
    async def story() -> None:
        async with limited(((CLIENT_ID, "raw"), (USER, "ANONYMOUS")), producer_byte_rate=1.0) as (node, _, topic):
            muted = await node.connect()
            first = await muted.call(producing(9, topic.topic_id), 9)
            assert first.throttle_time_ms == THROTTLE_SECONDS_MAX * 1000
            await muted.request(producing(9, topic.topic_id), 9)
            other = await node.connect()  # of the same client: its request is taken, and muted behind it
            assert (await other.call(producing(9, topic.topic_id), 9)).throttle_time_ms > 0
            (offset,) = await node.store.offsets([topic.queue_id(0)])
            assert offset is not None
            assert offset.high_watermark == 2, "the request of the muted connection is not taken"
            for each in (muted, other):
                await each.close()

    run(story())


def test_a_muted_client_that_goes_leaves_nothing_behind() -> None:
    async def story() -> None:
        async with limited(producer_byte_rate=1.0) as (node, _, topic):
            client = await node.connect()
            await client.call(producing(9, topic.topic_id), 9)
            await client.request(producing(9, topic.topic_id), 9)
            await client.reset()
            while True:
                await asyncio.sleep(0.01)
                if not node.server.connections:
                    break

    run(story())


def test_time_of_requests_is_charged() -> None:
    """Of an API that has a task of its own, and of the two that begin in their dispatch."""

    async def story() -> None:
        async with limited(request_percentage=0.0001) as (node, _, topic):
            partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
            asked = list_offsets.ListOffsetsTopic(name="t", partitions=(partition,))
            client = await node.connect()
            request = list_offsets.ListOffsetsRequest(replica_id=-1, topics=(asked,))
            response = await client.call(request, 7)
            assert response.throttle_time_ms > 0
            assert response.topics[0].partitions[0].error_code == 0
            await client.close()
            for begun in (producing(9, topic.topic_id), fetching(12, topic.topic_id)):
                before = throttled(node)
                client = await node.connect()
                await client.call(begun, 9 if begun.__class__.__name__ == "ProduceRequest" else 12)
                assert throttled(node) > before
                await client.close()

    run(story())


def throttled(node: Serving) -> int:
    """How often clients were, by the metric."""
    return sum(
        int(sample.value)
        for sample in node.dispatcher.samples()
        if isinstance(sample, Sample) and sample.name == "mainstem_quota_throttled_total"
    )


def creating(*names: str, partitions: int = 1) -> topics.CreateTopicsRequest:
    new = tuple(
        topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=())
        for name in names
    )
    return topics.CreateTopicsRequest(topics=new)


def deleting(*names: str) -> topics.DeleteTopicsRequest:
    return topics.DeleteTopicsRequest(topic_names=names, timeout_ms=1000)


def growing(name: str, count: int) -> topics.CreatePartitionsRequest:
    topic = topics.CreatePartitionsTopic(name=name, count=count, assignments=None)
    return topics.CreatePartitionsRequest(topics=(topic,), timeout_ms=1000, validate_only=False)


def test_changes_of_topics_over_the_quota_are_refused_where_the_client_knows_the_error() -> None:
    async def story() -> None:
        async with limited(controller_mutation_rate=1.0) as (node, table, _):
            client = await node.connect()
            made = await client.call(creating("a", "b", partitions=20), 6)
            over = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            assert {it.name: it.error_code for it in made.topics} == {"a": 0, "b": over}
            assert made.throttle_time_ms > 0
            assert node.metadata.topic("b") is None
            client = await node.connect()
            gone = await client.call(deleting("a"), 5)
            assert [it.error_code for it in gone.responses] == [over]
            client = await node.connect()
            grown = await client.call(growing("t", 3), 3)
            assert [it.error_code for it in grown.results] == [over]
            assert grown.throttle_time_ms > 0
            # clients that do not know it are throttled alone
            client = await node.connect()
            made = await client.call(creating("b"), 5)
            assert [it.error_code for it in made.topics] == [0]
            assert made.throttle_time_ms > 0
            for request, version in ((deleting("b"), 4), (growing("t", 3), 2)):
                client = await node.connect()
                assert (await client.call(request, version)).throttle_time_ms > 0
            assert node.metadata.topic("b") is None
            # to try a change costs nothing
            table.change(EVERY_CLIENT, {CONTROLLER_MUTATION_RATE: 5.0})
            assert throttled(node) == 6

    run(story())


def test_an_address_makes_only_so_many_connections_in_a_second() -> None:
    async def story() -> None:
        async with limited(((IP, "127.0.0.1"),), connection_creation_rate=2.0) as (node, table, topic):
            first, second, third = [await node.connect() for _ in range(3)]
            assert await third.closed_by_server()
            for client in (first, second):
                assert (await client.call(producing(9, topic.topic_id), 9)).responses
            table.change(((IP, "127.0.0.1"),), {CONNECTION_CREATION_RATE: None})
            fourth = await node.connect()
            assert (await fourth.call(producing(9, topic.topic_id), 9)).responses

    run(story())


# by itself


def charged(table: QuotaTable) -> tuple[Throttling, FakeClock, Session]:
    clock = FakeClock()
    clock.advance(100)
    return Throttling(lambda: table, clock), clock, Session("127.0.0.1", 1, 1, principal="User:alice")


def test_a_session_goes_by_the_quotas_of_this_moment() -> None:
    table = QuotaTable()
    throttling, _, session = charged(table)
    assert not throttling.active
    table.change(((USER, "alice"),), {PRODUCER_BYTE_RATE: 100.0})
    assert throttling.active
    assert throttling.produced(session, "x", 125) == 1000
    table.change(((USER, "alice"),), {PRODUCER_BYTE_RATE: 200.0})
    assert throttling.produced(session, "x", 0) == 500
    session.principal = "User:bob"
    assert throttling.produced(session, "x", 1000) == 0
    session.principal = "User:alice"
    table.change(((USER, "alice"),), {PRODUCER_BYTE_RATE: None})
    assert throttling.produced(session, "x", 1000) == 0


def test_sessions_of_one_user_share_what_it_may_use() -> None:
    table = QuotaTable()
    table.change(((USER, None),), {CONSUMER_BYTE_RATE: 100.0})
    throttling, clock, session = charged(table)
    other = Session("127.0.0.1", 2, 2, principal="User:alice")
    assert throttling.fetch_bytes_max(session, "x") == 25
    assert throttling.fetched(session, "x", 35) == 100
    assert throttling.fetch_bytes_max(session, "x") == 15, "what the others are behind is not given twice"
    assert throttling.fetched(session, "x", 90) == 1000
    assert throttling.fetched(other, "y", 0) == 1000
    assert session.muted_until == other.muted_until == clock.monotonic() + 1
    assert throttling.fetch_bytes_max(session, "x") == 3, "an eighth at least"
    assert throttling.fetch_bytes_max(Session("127.0.0.1", 3, 3, principal="User:bob"), None) == 25
    clock.advance(1)
    assert throttling.fetched(other, "y", 25) == 250


def test_users_of_a_tenant_share_its_quota_beside_their_own() -> None:
    table, tenants = QuotaTable(), TenantTable()
    clock = FakeClock()
    clock.advance(100)
    throttling = Throttling(lambda: table, clock, lambda: tenants)
    alice, bob = (Session("127.0.0.1", 1, 1, principal=f"User:{name}") for name in ("alice", "bob"))
    assert not throttling.active
    tenants.set(Tenant("acme", "acme.", users=("alice", "bob")))
    assert throttling.active
    assert throttling.produced(alice, "x", 500) == 0
    table.change(((TENANT, "acme"),), {PRODUCER_BYTE_RATE: 100.0, CONSUMER_BYTE_RATE: 40.0})
    table.change(((USER, "bob"),), {PRODUCER_BYTE_RATE: 10.0, CONSUMER_BYTE_RATE: 400.0})
    assert throttling.produced(alice, "x", 125) == 1000
    assert throttling.produced(bob, "x", 0) == 1000  # acme's debt, which is longer than its own
    assert throttling.produced(bob, "x", 12.5 + 10) == 2000  # its own, which is longer than acme's
    assert throttling.fetch_bytes_max(bob, "x") == 10
    tenants.set(Tenant("acme", "acme.", users=("bob",)))
    assert throttling.produced(alice, "x", 10_000) == 0
    told = {(it.name, it.labels): it.value for it in throttling.samples()}
    assert told["mainstem_tenant_produced_bytes_total", (("tenant", "acme"),)] == 500 + 125 + 22.5


def test_tenants_share_as_long_as_they_have_produced_lately() -> None:
    table, tenants = QuotaTable(), TenantTable()
    tenants.set(Tenant("acme", "acme.", users=("alice",)))
    clock = FakeClock()
    throttling = Throttling(lambda: table, clock, lambda: tenants)
    alice, bob = (Session("127.0.0.1", 1, 1, principal=f"User:{name}") for name in ("alice", "bob"))
    throttling.produced(bob, "x", 1)
    assert not throttling.floods.takes_turns()
    throttling.produced(alice, "x", 1)
    assert throttling.floods.takes_turns()
    assert (alice.tenant, bob.tenant) == ("acme", "")
    clock.advance(SHARED_SECONDS)
    throttling.produced(alice, "x", 1)
    assert not throttling.floods.takes_turns()


def test_connections_of_a_tenant_wait_when_too_many_come() -> None:
    table, tenants = QuotaTable(), TenantTable()
    tenants.set(Tenant("acme", "acme.", users=("alice",)))
    table.change(((TENANT, None),), {CONNECTION_CREATION_RATE: 2.0})
    clock = FakeClock()
    throttling = Throttling(lambda: table, clock, lambda: tenants)
    sessions = [Session("127.0.0.1", number, number, principal="User:alice") for number in range(4)]
    for session in sessions:
        for client_id in ("a", "b"):  # a connection counts once
            throttling.produced(session, client_id, 1)
    assert [session.muted_until - clock.monotonic() if session.muted_until else 0 for session in sessions] == [
        0, 0, 0.5, 1,
    ]  # fmt: skip


def test_a_changing_crowd_of_tenants_is_counted_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "LABELS_MAX", 2)
    counts, tenants = traffic.TenantTraffic(), TenantTable()
    for number in range(50):
        tenants.set(Tenant(f"t{number}", f"t{number}."))
        counts.of(f"t{number}", tenants).produced_bytes += 1
        tenants.remove(f"t{number}")
        assert len(counts) <= 3
    told = {it.labels[0][1]: it.value for it in counts.samples() if it.name == "mainstem_tenant_produced_bytes_total"}
    assert told == {"t0": 1, "t1": 1, traffic.OTHERS: 48}


def test_each_request_of_a_burst_is_charged_to_its_own_client() -> None:
    async def story() -> None:
        async with limited(((CLIENT_ID, "heavy"),), producer_byte_rate=1.0) as (node, _, topic):
            for client_ids, slow in ((["light", "heavy", "light"], True), (["light", "light", "none"], False)):
                client = await node.connect()
                body = codec.write(producing(9, topic.topic_id), 9)
                headers = [RequestHeader(0, 9, number, client_id) for number, client_id in enumerate(client_ids)]
                await client.send(b"".join(request_frame(header, body) for header in headers))
                answers = [await client.response(0, 9) for _ in client_ids]
                assert any(answer.throttle_time_ms > 0 for answer in answers) == slow
                await client.close()

    run(story())


def test_nobody_is_muted_for_longer_than_clients_wait() -> None:
    table = QuotaTable()
    table.change(((USER, None),), {PRODUCER_BYTE_RATE: 1.0, REQUEST_PERCENTAGE: 50.0})
    throttling, clock, session = charged(table)
    assert throttling.took(session, None, 1.0) > 0
    assert throttling.produced(session, None, 2**31) == THROTTLE_SECONDS_MAX * 1000
    assert session.muted_until == clock.monotonic() + THROTTLE_SECONDS_MAX
    assert throttling.mutations(session, None, strict=True) is UNLIMITED


def test_without_quotas_nothing_is_charged() -> None:
    broker = make_broker().broker
    context = call(9)
    assert broker.mutations(context.session, None, strict=True) is UNLIMITED
    broker.throttling, _, _ = charged(QuotaTable())
    assert broker.mutations(context.session, None, strict=True) is UNLIMITED
    assert UNLIMITED.take(10**9)
    assert UNLIMITED.throttle_ms() == 0


def test_a_tenant_waits_that_has_filled_the_disk_of_another_leader() -> None:
    tenants = TenantTable()
    clock = FakeClock()
    throttling = Throttling(lambda: QuotaTable(), clock, lambda: tenants)
    alice, bob, carol = (Session("127.0.0.1", 1, 1, principal=f"User:{name}") for name in ("alice", "bob", "carol"))
    throttling.leader_waits("User:carol", 5)
    assert throttling.produced(carol, "x", 1) == 0, "there are no tenants"
    tenants.set(Tenant("acme", "acme.", users=("alice", "bob")))
    throttling.leader_waits("User:alice", 2)
    throttling.leader_waits("User:bob", 1)
    assert throttling.produced(alice, "x", 1) == throttling.produced(bob, "y", 1) == 2000
    assert bob.muted_until == clock.monotonic() + 2
    clock.advance(2)
    assert throttling.produced(alice, "x", 1) == 0
    throttling.leader_waits("User:carol", 100)
    assert throttling.produced(alice, "x", 1) == 0
    assert throttling.produced(carol, "x", 1) == 1000 * THROTTLE_SECONDS_MAX
    told = {(it.name, it.labels): it.value for it in throttling.samples()}
    assert told["mainstem_quota_throttled_total", (("quota", "disk_share"),)] == 3
