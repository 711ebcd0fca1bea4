"""FindCoordinator tells of rights where rights are lacking, and of nothing else: clients give up at "authorization
failed", and ask again where a coordinator is merely not there."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, cast

import pytest
from tests.broker.harness import Fakes, call, make_broker
from tests.broker.serving_node_of import serving_node_of
from tests.fakes.access.acls import MemoryAcls
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.broker import BrokerTransactions
from mainstem.broker.handlers import find_coordinator
from mainstem.broker.transactions.config import TransactionsConfig
from mainstem.broker.transactions.served_transactions import ServedTransactions
from mainstem.broker.transactions.transaction import TopicPartition, Transaction
from mainstem.broker.transactions.transaction_coordinator import TransactionCoordinator
from mainstem.broker.transactions.verification import CoordinatorVerification
from mainstem.model import FeatureLevel, Node
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.protocol import codec
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import (
    KEY_TYPE_GROUP,
    KEY_TYPE_SHARE,
    KEY_TYPE_TRANSACTION,
    FindCoordinatorRequest,
)
from mainstem.protocol.schema import declaration_of
from mainstem.security.acls.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceKind

NEWEST = declaration_of(FindCoordinatorRequest).versions.last
SEVERAL_KEYS_FROM, TYPES_FROM = 4, 1
GROUP, TRANSACTION = "a group that nobody has heard of", "an id that nobody has heard of"
AT_ONCE = 2
NONE_HERE = ErrorCode.COORDINATOR_NOT_AVAILABLE

NEEDED = {
    KEY_TYPE_GROUP: (Operation.DESCRIBE, ResourceKind.GROUP, GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    KEY_TYPE_TRANSACTION: (
        Operation.DESCRIBE, ResourceKind.TRANSACTIONAL_ID, TRANSACTION, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    KEY_TYPE_SHARE: (
        Operation.CLUSTER_ACTION, ResourceKind.CLUSTER, CLUSTER_NAME, ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ),
}  # fmt: skip
"""The right that each type of key takes, and the answer to those who lack it."""


class NoMarkers:
    async def write(
        self, transaction: Transaction, coordinator_epoch: int, partitions: Iterable[TopicPartition]
    ) -> set[TopicPartition]:
        raise AssertionError("no transaction ends here")


class Asking(NamedTuple):
    """A broker with all kinds of coordinators, and what is asked of it. `level`: the cluster's feature level."""

    fakes: Fakes
    level: list[FeatureLevel]

    async def answers(self, key_type: int, key: str, version: int) -> set[tuple[ErrorCode, int]]:
        """Error and node: of each key, where there may be several."""
        if version < SEVERAL_KEYS_FROM:
            request = FindCoordinatorRequest(key=key, key_type=key_type)
        else:
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,) * AT_ONCE)
        arrived = codec.read(FindCoordinatorRequest, version, codec.write(request, version))
        answer: Any = await find_coordinator.handle(self.fakes.broker, arrived, call(version))
        rows = answer.coordinators if version >= SEVERAL_KEYS_FROM else (answer,)
        assert len(rows) == (AT_ONCE if version >= SEVERAL_KEYS_FROM else 1)
        assert version == 0 or all(bool(row.error_message) == bool(row.error_code) for row in rows)
        return {(ErrorCode(row.error_code), row.node_id) for row in rows}

    async def key_of(self, key_type: int) -> str:
        if key_type != KEY_TYPE_SHARE:
            return GROUP if key_type == KEY_TYPE_GROUP else TRANSACTION
        topic = self.fakes.metadata.topic("t") or await self.fakes.topic()
        return f"{GROUP}:{urlsafe_b64encode(topic.topic_id.bytes).decode().rstrip('=')}:0"


Situation = Callable[[Fakes], None]


def is_well(fakes: Fakes) -> None: ...


def is_without_leaders(fakes: Fakes) -> None:
    """As behind a majority that is gone."""
    fakes.metadata.leaders = dict.fromkeys(fakes.store.queues, -1)


def is_led_by_a_dead_node(fakes: Fakes) -> None:
    fakes.metadata.nodes_known.append(Node(node_id=2, host="two", port=9092))
    fakes.metadata.dead.add(2)
    fakes.metadata.leaders = dict.fromkeys(fakes.store.queues, 2)


def is_led_by_a_node_that_nobody_knows(fakes: Fakes) -> None:
    fakes.metadata.leaders = dict.fromkeys(fakes.store.queues, 3)


def asked(story: Callable[[Asking], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        fakes, level = make_broker(loop), [FeatureLevel.newest()]
        config = TransactionsConfig(topic_partitions=1)
        node = serving_node_of(fakes.metadata, fakes.leadership, fakes.store, loop)
        transactions = ServedTransactions(node, config, NoMarkers())

        async def new_id() -> int:
            return 7

        coordinator = TransactionCoordinator(transactions, config, new_id, lambda: level[0])
        fakes.broker.transactions = BrokerTransactions(coordinator, cast(CoordinatorVerification, None))
        served = (fakes.broker.groups.served, fakes.broker.shares.served, transactions)
        for topic in served:
            topic.start()
        try:
            await story(Asking(fakes, level))
        finally:
            for topic in served:
                await topic.close()

    loop = SimulatedLoop()
    try:
        loop.run_until_complete(all_of_it())
    finally:
        loop.close()


def allowed(key_type: int) -> MemoryAcls:
    """Rules that give everybody the one right that a type of key takes."""
    operation, kind, name, _ = NEEDED[key_type]
    return MemoryAcls(Acl(kind, name, PatternType.LITERAL, "User:*", "*", operation, Permission.ALLOW))


def versions(key_type: int) -> list[int]:
    return list(range(0 if key_type == KEY_TYPE_GROUP else TYPES_FROM, NEWEST + 1))


@pytest.mark.parametrize("authorized", [False, True], ids=["without rules", "with rules"])
@pytest.mark.parametrize("key_type", NEEDED)
@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        (is_well, (ErrorCode.NONE, 1)),
        (is_without_leaders, (NONE_HERE, -1)),
        (is_led_by_a_dead_node, (NONE_HERE, -1)),
        (is_led_by_a_node_that_nobody_knows, (NONE_HERE, -1)),
    ],
)
def test_who_may_ask_hears_whether_there_is_a_coordinator(
    situation: Situation, expected: tuple[ErrorCode, int], key_type: int, authorized: bool
) -> None:
    async def story(asking: Asking) -> None:
        if authorized:
            asking.fakes.broker.authorizer = allowed(key_type).authorizer()
        key = await asking.key_of(key_type)
        await asking.answers(key_type, key, NEWEST)  # which makes the internal topic
        situation(asking.fakes)
        for version in versions(key_type):
            assert await asking.answers(key_type, key, version) == {expected}, version

    asked(story)


@pytest.mark.parametrize("key_type", [KEY_TYPE_GROUP, KEY_TYPE_TRANSACTION])
def test_an_internal_topic_that_cannot_be_made_is_no_matter_of_rights(key_type: int) -> None:
    async def story(asking: Asking) -> None:
        asking.fakes.broker.authorizer = allowed(key_type).authorizer()
        asking.fakes.metadata.refuse = MetadataUnavailable("no leader")
        key = await asking.key_of(key_type)
        for version in versions(key_type):
            assert await asking.answers(key_type, key, version) == {(NONE_HERE, -1)}
        asking.fakes.metadata.refuse = None
        assert await asking.answers(key_type, key, NEWEST) == {(ErrorCode.NONE, 1)}

    asked(story)


@pytest.mark.parametrize("known", [True, False], ids=["transactions off", "transactions unknown"])
def test_transactions_that_are_not_served_are_no_matter_of_rights(known: bool) -> None:
    """The cluster is at an older level, or this node knows no transactions at all."""

    async def story(asking: Asking) -> None:
        asking.fakes.broker.authorizer = allowed(KEY_TYPE_TRANSACTION).authorizer()
        if known:
            asking.level[0] = FeatureLevel(FeatureLevel.TRANSACTIONAL - 1)
        else:
            asking.fakes.broker.transactions = None
        for version in versions(KEY_TYPE_TRANSACTION):
            found = await asking.answers(KEY_TYPE_TRANSACTION, TRANSACTION, version)
            assert found == {(ErrorCode.UNSUPPORTED_VERSION, -1)}

    asked(story)


def test_a_partition_that_is_not_there_is_no_matter_of_rights() -> None:
    async def story(asking: Asking) -> None:
        asking.fakes.broker.authorizer = allowed(KEY_TYPE_SHARE).authorizer()
        group, topic_id, _ = (await asking.key_of(KEY_TYPE_SHARE)).split(":")
        nobodys = urlsafe_b64encode(bytes(range(16))).decode().rstrip("=")
        for key in (f"{group}:{topic_id}:1", f"{group}:{nobodys}:0", f":{topic_id}:0", "neither", "", "a:b:c"):
            for version in versions(KEY_TYPE_SHARE):
                assert await asking.answers(KEY_TYPE_SHARE, key, version) == {(ErrorCode.INVALID_REQUEST, -1)}, key

    asked(story)


@pytest.mark.parametrize("key_type", NEEDED)
@pytest.mark.parametrize("situation", [is_well, is_without_leaders])
def test_who_may_not_ask_hears_of_the_right_and_not_of_the_coordinator(situation: Situation, key_type: int) -> None:
    async def story(asking: Asking) -> None:
        key = await asking.key_of(key_type)
        await asking.answers(key_type, key, NEWEST)
        situation(asking.fakes)
        asking.fakes.broker.authorizer = MemoryAcls().authorizer()
        for version in versions(key_type):
            assert await asking.answers(key_type, key, version) == {(NEEDED[key_type][3], -1)}

    asked(story)
