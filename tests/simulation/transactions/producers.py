"""Transactional producers, of both client generations (KIP-890): they write to several partitions and commit a group's
offsets in one transaction, and commit or abort it. Now and then one dies in the middle of it, or another producer of
the same transactional id takes its place, and the older one, a zombie then, goes on until it is told.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.oracle import require
from tests.simulation.transactions.atomicity import Atomicity, ProducerName, Transaction
from tests.simulation.whole.admin import ELSEWHERE
from tests.simulation.whole.client import Partition
from tests.simulation.whole.clients import (
    NONE,
    REFUSALS,
    TOPIC_UNKNOWN,
    Batch,
    Work,
    flat,
    in_order,
    may_be_told,
    produce_request,
)
from tests.simulation.whole.connection import NoAnswer
from tests.simulation.whole.ledger import Place

from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import KEY_TYPE_TRANSACTION, FindCoordinatorRequest
from mainstem.protocol.messages.init_producer_id import InitProducerIdRequest
from mainstem.protocol.messages.producer_transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

TIMEOUTS_MS = (1_000, 3_000, 10_000)

DIES = 0.04
"""How often a producer is not heard of any more in the middle of a transaction."""

COMMITS = 0.7
"""How often it means to commit."""

AGAIN = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
"""Answers after which a producer asks again, besides those of a node that coordinates nothing."""

FENCED = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
"""Answers after which it is nobody any more: it was replaced, or its time was over."""

ABORT = {ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.OPERATION_NOT_ATTEMPTED}
"""Answers after which the transaction cannot be committed any more."""

NEVER_LOGGED = REFUSALS | FENCED | ABORT | {ErrorCode.CONCURRENT_TRANSACTIONS}


class Fenced(Exception):
    """The producer is nobody any more."""


class MustAbort(Exception):
    """The transaction cannot be committed any more."""


class TransactionalProducer:
    """A seat for producers of one transactional id, one after the other. Two seats of one id fence each
    other's producers."""

    def __init__(self, work: Work, atomicity: Atomicity, transactional_id: str, rng: random.Random) -> None:
        self._work = work
        self._atomicity = atomicity
        self._id = transactional_id
        self._rng = rng
        self._group = f"group of {transactional_id}"

    async def begin(self) -> None:
        """A first producer becomes somebody: from then on there are coordinators."""
        producer = self._new()
        await producer.initialize()
        producer.client.close()

    def _new(self) -> _Producer:
        return _Producer(self._work, self._atomicity, self._id, self._group, self._rng)

    async def die_in_a_transaction(self, topic: Topic, partition: int, timeout_ms: int) -> None:
        """A producer dies with a transaction open in this partition, which takes so long if nobody takes its place
        (`begin`). Raises `Fenced`, `MustAbort`."""
        producer = self._new()
        await producer.initialize(timeout_ms)
        await producer.begin_in(topic, partition)
        producer.client.close()

    async def run(self) -> None:
        while not self._work.ending:
            producer = self._new()
            try:
                await producer.live()
            except (Fenced, MustAbort):
                pass
            producer.client.close()
            await self._work.pause(0.2, 1.0, 3.0)


class _Producer:
    """One, from its InitProducerId to its end."""

    def __init__(self, work: Work, atomicity: Atomicity, transactional_id: str, group: str, rng: random.Random) -> None:
        self.client = work.client()
        self._work = work
        self._atomicity = atomicity
        self._id = transactional_id
        self._group = group
        self._rng = rng
        self._speaks_2 = rng.random() < 0.5
        """Transaction version 2: a queue joins a transaction with its first batch, and each has an epoch of its own."""
        self._timeout_ms = rng.choice(TIMEOUTS_MS)
        self._name = ProducerName(-1, -1)
        self._next: dict[Partition, int] = {}
        self._coordinator = -1

    async def live(self) -> None:
        """Until it dies, or the run ends. Raises `Fenced`, `MustAbort`."""
        await self.initialize()
        while not self._work.ending and await self._transact():
            await self._work.pause(0.0, 0.01, 0.1, 0.5)

    # --- a transaction ------------------------------------------------------------------------------------

    async def _transact(self) -> bool:
        """One transaction. Whether the producer is there still."""
        rng = self._rng
        transaction = self._atomicity.begin(self._id, self._name, self._timeout_ms)
        commits, unresolved = rng.random() < COMMITS, False
        try:
            for _ in range(rng.choice([1, 1, 2, 3])):
                there = self._partitions()
                if there:
                    chosen = rng.sample(there, min(len(there), rng.choice([1, 2, 4])))
                    await self._produce(transaction, chosen)
                if rng.random() < DIES:
                    return False
                await self._work.pause(0.0, 0.01, 0.3)
            if there and rng.random() < 0.6:
                await self._commit_offsets(transaction, rng.sample(there, 1))
            if rng.random() < DIES:
                return False
        except MustAbort:
            commits, unresolved = False, True
        if not await self._end(transaction, commit=commits):
            return False
        if unresolved and not self._speaks_2:  # with other sequence numbers nothing late is taken for anything new
            await self.initialize()
        return True

    async def begin_in(self, topic: Topic, partition: int) -> None:
        """A transaction with a batch in this partition."""
        await self._produce(self._atomicity.begin(self._id, self._name, self._timeout_ms), [(topic, partition)])

    def _partitions(self) -> list[tuple[Topic, int]]:
        return [one for one in self._work.partitions() if "compact" not in one[0].settings.cleanup_policy]

    async def _produce(self, transaction: Transaction, chosen: Sequence[tuple[Topic, int]]) -> None:
        """A batch for each of these partitions, sent until it is acknowledged. Raises `Fenced`, `MustAbort`."""
        if not self._speaks_2:
            await self._add_partitions(chosen)
        waiting: dict[Partition, Batch] = {}
        for topic, partition in chosen:
            place = Partition(topic.topic_id, partition)
            names = (*self._name, self._next.get(place, 0))
            waiting[place] = self._work.new_batch(
                topic, partition, names, self._rng.choice([1, 1, 3]), transactional=True
            )
        for _ in self._tries():
            for node_id, batches in (await self._by_leader(waiting)).items():
                try:
                    await self._send(transaction, node_id, batches, waiting)
                except NoAnswer:
                    for batch in batches:
                        self.client.doubt(batch.place)
            if not all(self._work.wanted(batch.topic) for batch in waiting.values()):
                break
            if not waiting:
                return
            await self._work.pause(0.0, 0.05, 0.2)
        raise MustAbort

    def _tries(self) -> Iterable[int]:
        """A producer's patience: it is over with the run, and with the transaction's time, long before that mostly."""
        for number in range(self._rng.choice([5, 20, 100])):
            if self._work.ending:
                return
            yield number

    async def _by_leader(self, waiting: dict[Partition, Batch]) -> dict[int, list[Batch]]:
        by_node: dict[int, list[Batch]] = {}
        for place, batch in waiting.items():
            try:
                led = await self.client.leader(batch.topic.name, place)
            except NoAnswer:
                continue
            by_node.setdefault(led.node_id, []).append(batch)
        return by_node

    async def _send(
        self, transaction: Transaction, node_id: int, batches: list[Batch], waiting: dict[Partition, Batch]
    ) -> None:
        version = self._rng.choice([12, 13] if self._speaks_2 else [9, 11])
        plain = produce_request(batches, -1, by_id=version >= 13)
        request = replace(plain, transactional_id=self._id)
        connection, history = self.client.connection(node_id), self._work.cluster.history
        for batch in batches:
            self._atomicity.sending(transaction, batch.crc)
            history.sending(batch.data)
        response = await connection.ask(request, version, patience=self.client.patience())
        codes = set()
        for batch, answered in zip(in_order(batches), flat(response.responses, "partition_responses"), strict=True):
            code = answered.error_code
            allowed = AGAIN | FENCED | ABORT | TOPIC_UNKNOWN | ELSEWHERE | {NONE}
            require(
                code in allowed or may_be_told(self._work.cluster, node_id, code),
                f"node {node_id}: {batch.topic.name}-{batch.partition} of {transaction}: {answered}",
                "D",
            )
            codes.add(code)
            if code == NONE:
                self._next[batch.place] = self._next.get(batch.place, 0) + batch.record_count
                del waiting[batch.place]
                self._work.acknowledged += 1
                if self._work.wanted(batch.topic):
                    history.acknowledged(batch.queue_id, answered.base_offset, batch.crc, promised=True)
            else:
                self.client.doubt(batch.place)
                if code in NEVER_LOGGED:
                    history.refused(batch.crc)
        self._check(codes)

    async def _add_partitions(self, chosen: Sequence[tuple[Topic, int]]) -> None:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in chosen:
            by_topic.setdefault(topic.name, []).append(partition)
        topics = tuple(AddPartitionsToTxnTopic(name=name, partitions=tuple(them)) for name, them in by_topic.items())
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._name.producer_id,
            v3_and_below_producer_epoch=self._name.epoch,
            v3_and_below_topics=topics,
        )
        await self._ask(request, 3, lambda answer: {
            result.partition_error_code for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        })  # fmt: skip

    async def _commit_offsets(self, transaction: Transaction, chosen: Sequence[tuple[Topic, int]]) -> None:
        """Raises `Fenced`, `MustAbort`."""
        producer_id, epoch = self._name
        if not self._speaks_2:
            await self._ask(
                AddOffsetsToTxnRequest(
                    transactional_id=self._id, producer_id=producer_id, producer_epoch=epoch, group_id=self._group
                ), 3, _code,
            )  # fmt: skip
        ledger, offsets = self._work.cluster.ledger, {}
        topics = []
        for topic, partition in chosen:
            place: Place = (self._group, topic.topic_id, partition)
            offsets[place] = transaction.number
            ledger.offset(place)
            self._atomicity.committing(transaction, place, transaction.number)
            item = TxnOffsetCommitRequestPartition(
                partition_index=partition, committed_offset=transaction.number, committed_metadata=None
            )
            topics.append(TxnOffsetCommitRequestTopic(name=topic.name, partitions=(item,)))
        request = TxnOffsetCommitRequest(
            transactional_id=self._id, group_id=self._group, producer_id=producer_id, producer_epoch=epoch,
            topics=tuple(topics),
        )  # fmt: skip
        for _ in self._tries():
            try:
                node_id = await self.client.coordinator(self._group)
                answer = await self.client.ask(node_id, request, 5 if self._speaks_2 else 3)
            except NoAnswer:
                self.client.doubt_coordinator(self._group)
                await self._work.pause(0.0, 0.1)
                continue
            codes = {item.error_code for topic in answer.topics for item in topic.partitions}
            allowed = ELSEWHERE | AGAIN | FENCED | ABORT | TOPIC_UNKNOWN | {NONE}
            require(codes <= allowed, f"node {node_id}: offsets of {transaction}: {answer}", "E")
            if codes == {NONE}:
                transaction.offsets.update(offsets)
                return
            self.client.doubt_coordinator(self._group)
            self._check(codes)
            await self._work.pause(0.05, 0.2)
        raise MustAbort

    # --- its beginning and its end ------------------------------------------------------------------------

    async def initialize(self, timeout_ms: int = 0) -> None:
        """`timeout_ms`: of its transactions, if not what was drawn. Raises `Fenced`, `MustAbort`."""
        self._timeout_ms = timeout_ms or self._timeout_ms
        producer_id, epoch = self._name
        request = InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout_ms=self._timeout_ms, producer_id=producer_id,
            producer_epoch=epoch,
        )  # fmt: skip
        answer = await self._ask(request, 4, _code)
        self._has_become(ProducerName(answer.producer_id, answer.producer_epoch))

    def _has_become(self, name: ProducerName) -> None:
        ledger = self._work.cluster.ledger
        self._name = name
        self._next.clear()
        if self._atomicity.given(self._id, name, self):
            ledger.new_producer(name.producer_id)

    async def _end(self, transaction: Transaction, *, commit: bool) -> bool:
        """Whether the producer knows how its transaction ended. Raises `Fenced`."""
        producer_id, epoch = self._name
        request = EndTxnRequest(
            transactional_id=self._id, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )
        transaction.wants_commit = commit
        try:
            answer = await self._ask(request, 5 if self._speaks_2 else 3, _code)
        except MustAbort:
            return False
        self._atomicity.told(transaction, committed=commit)
        if self._speaks_2:
            self._has_become(ProducerName(answer.producer_id, answer.producer_epoch))
        return True

    # --- asking the coordinator ---------------------------------------------------------------------------

    async def _ask(self, request: Any, version: int, codes_of: Any) -> Any:
        """The answer without an error. Raises `Fenced`, `MustAbort`."""
        while not self._work.ending:
            try:
                node_id = await self._find_coordinator()
                answer = await self.client.ask(node_id, request, version)
            except NoAnswer:
                self._coordinator = -1
                await self._work.pause(0.0, 0.05, 0.2)
                continue
            codes = codes_of(answer)
            allowed = ELSEWHERE | AGAIN | FENCED | ABORT | TOPIC_UNKNOWN | self._before_the_level() | {NONE}
            require(codes <= allowed, f"node {node_id}: {request}: {answer}", "E")
            if codes <= {NONE}:
                return answer
            if codes & ELSEWHERE:
                self._coordinator = -1
            self._check(codes)
            await self._work.pause(0.02, 0.1, 0.3)
        raise MustAbort

    def _check(self, codes: set[int]) -> None:
        """Raises `Fenced`, `MustAbort`."""
        if codes & FENCED:
            raise Fenced
        if codes & (ABORT | TOPIC_UNKNOWN | {ErrorCode.INVALID_TIMESTAMP}):
            raise MustAbort

    def _before_the_level(self) -> set[int]:
        """Answers of a cluster that knows no transactions until its feature level is raised."""
        return {ErrorCode.UNSUPPORTED_VERSION} if self._work.cluster.settings.begins_old else set()

    async def _find_coordinator(self) -> int:
        """Raises `NoAnswer`."""
        if self._coordinator >= 0:
            return self._coordinator
        node_id = self.client.any_node()
        request = FindCoordinatorRequest(coordinator_keys=(self._id,), key_type=KEY_TYPE_TRANSACTION)
        (found,) = (await self.client.ask(node_id, request, 4)).coordinators
        if found.error_code:
            allowed = {ErrorCode.COORDINATOR_NOT_AVAILABLE, *self._before_the_level()}
            require(found.error_code in allowed, f"node {node_id}: coordinator of {self._id}: {found}")
            raise NoAnswer
        self._coordinator = found.node_id
        return self._coordinator


def _code(answer: Any) -> set[int]:
    return {answer.error_code}
