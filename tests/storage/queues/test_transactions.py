"""Transactions in the storage of one node: what readers of committed transactions are told, against a plain model, over
appends, markers, crashes, restarts and splits."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.storage.small_node import QUEUE, SmallNode, outcomes, simulated

from mainstem.kernel import FIRST_UNSTABLE
from mainstem.model import AppendResult, AppendTransaction, BatchAppend, FeatureLevel, Outcome, TransactionMarker
from mainstem.protocol.records import (
    ControlRecord,
    ControlType,
    NewRecord,
    StoredBatch,
    build_batch,
    read_batch_header,
    read_control,
    read_records,
)

TX = AppendTransaction("tx")
QUEUES = (QUEUE, QUEUE + 1)


class Verified:
    """A coordinator that confirms everything, unless told otherwise."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, tuple[int, ...]]] = []
        self.answers: dict[int, Outcome] = {}

    async def verify(
        self, transaction: AppendTransaction, producer_id: int, producer_epoch: int, queue_ids: Sequence[int]
    ) -> Mapping[int, Outcome]:
        self.asked.append((transaction.transactional_id, producer_id, producer_epoch, tuple(queue_ids)))
        return {queue_id: self.answers.get(queue_id, Outcome.OK) for queue_id in queue_ids}


def part_of_transaction(queue_id: int, producer: tuple[int, int, int], records: int = 1) -> BatchAppend:
    new = build_batch(
        [NewRecord(1000, None, b"%d" % number) for number in range(records)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=True,
    )
    return new.to_append(queue_id)


def confirmed(node: SmallNode) -> Verified:
    """Give a node a coordinator, from now on and at later starts."""
    verification = Verified()

    def opened() -> None:
        node.storage.transaction_checks.verification = verification

    node.opened = opened
    opened()
    return verification


async def produce(node: SmallNode, *batches: BatchAppend, transaction: AppendTransaction = TX) -> list[AppendResult]:
    return await node.storage.messages.append(batches, -1, transaction=transaction)


async def end(
    node: SmallNode, queue_id: int, producer_id: int, epoch: int, *, commit: bool = True, coordinator: int = 1
) -> Outcome:
    marker = TransactionMarker(queue_id, producer_id, epoch, commit, coordinator)
    (outcome,) = await node.storage.markers.write([marker])
    return outcome


def test_the_last_stable_offset_waits_for_the_oldest_transaction(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        coordinator = confirmed(node)
        await node.fill(2)
        await produce(node, part_of_transaction(QUEUE, (7, 0, 0), 3))
        await produce(node, part_of_transaction(QUEUE, (8, 0, 0)), part_of_transaction(QUEUE + 1, (8, 0, 0)))
        assert (node.offsets().last_stable, node.offsets().high_watermark) == (2, 6)
        assert await end(node, QUEUE, 8, 0) is Outcome.OK
        assert node.offsets().last_stable == 2
        assert await end(node, QUEUE, 7, 0, commit=False) is Outcome.OK
        assert node.offsets()[1:3] == (8, 8)
        assert node.offsets().last_stable == 8
        assert node.offsets(QUEUE + 1).last_stable == 0
        assert [asked[1:] for asked in coordinator.asked] == [(7, 0, (QUEUE,)), (8, 0, (QUEUE, QUEUE + 1))]
        (marker,) = (await node.read(7)).batches
        assert bytes(marker[:8]) == (7).to_bytes(8, "big")
        assert len(marker) == 78
        assert int.from_bytes(marker[21:23], "big") == 0x30
        assert int.from_bytes(marker[53:57], "big", signed=True) == -1
        (record,) = read_records(StoredBatch(bytes(marker), read_batch_header(bytes(marker))))
        assert read_control(record) == ControlRecord(ControlType.ABORT, 1)

    simulated(tmp_path, story)


def test_what_a_coordinator_does_not_know_is_not_appended(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        coordinator = confirmed(node)
        batch = part_of_transaction(QUEUE, (7, 0, 0))
        for refusal, answer in (
            (Outcome.INVALID_TXN_STATE, Outcome.INVALID_TXN_STATE),
            (Outcome.STALE_PRODUCER_EPOCH, Outcome.STALE_PRODUCER_EPOCH),
            (Outcome.CONCURRENT_TRANSACTIONS, Outcome.STORAGE_BUSY),  # clients of these versions try again
        ):
            coordinator.answers[QUEUE] = refusal
            assert outcomes(await produce(node, batch)) == {answer}
        adding = AppendTransaction("tx", adds_queues=True)
        assert outcomes(await produce(node, batch, transaction=adding)) == {Outcome.CONCURRENT_TRANSACTIONS}
        assert outcomes(await node.append(batch)) == {Outcome.INVALID_TXN_STATE}  # the request names no transaction
        node.storage.transaction_checks.verification = None
        assert outcomes(await produce(node, batch)) == {Outcome.STORAGE_BUSY}
        node.storage.transaction_checks.verification = coordinator
        node.level = FeatureLevel.ELASTIC
        assert outcomes(await produce(node, batch)) == {Outcome.INVALID_TXN_STATE}
        assert await end(node, QUEUE, 7, 0) is Outcome.INVALID_TXN_STATE
        assert node.offsets().end == 0

    simulated(tmp_path, story)


def test_batches_of_a_producer_wait_in_their_order(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        confirmed(node)
        messages = node.storage.messages
        waiting = [
            messages.append([part_of_transaction(QUEUE, (7, 0, number))], -1, transaction=TX) for number in range(5)
        ]
        results = [(await one)[0] for one in waiting]
        assert [result.base_offset for result in results] == [0, 1, 2, 3, 4]
        # inside the transaction nobody is asked, and a repetition is known
        (again,) = await produce(node, part_of_transaction(QUEUE, (7, 0, 4)))
        assert again.base_offset == 4
        plain = build_batch([NewRecord(1, None, b"")], producer_id=7, producer_epoch=0, base_sequence=5)
        assert outcomes(await node.append(plain.to_append(QUEUE))) == {Outcome.INVALID_TXN_STATE}

    simulated(tmp_path, story)


@pytest.mark.parametrize("repeated", [False, True])
def test_a_marker_that_overtakes_the_coordinators_answer_lets_no_batch_begin_a_transaction(
    tmp_path: Path, repeated: bool
) -> None:
    """Nobody would end it. A marker that repeats the producer's last one is not written, and counts as well."""

    class Overtaken(Verified):
        ended = False

        async def verify(
            self, transaction: AppendTransaction, producer_id: int, producer_epoch: int, queue_ids: Sequence[int]
        ) -> Mapping[int, Outcome]:
            answer = await super().verify(transaction, producer_id, producer_epoch, queue_ids)
            if self.ended:
                return dict.fromkeys(queue_ids, Outcome.INVALID_TXN_STATE)
            assert await end(self.node, QUEUE, producer_id, producer_epoch, commit=False) is Outcome.OK
            self.ended = True
            return answer

        node: SmallNode

    async def story(node: SmallNode) -> None:
        confirmed(node)
        if repeated:
            await produce(node, part_of_transaction(QUEUE, (7, 0, 0)))
            assert await end(node, QUEUE, 7, 0) is Outcome.OK
        coordinator = Overtaken()
        coordinator.node = node
        node.storage.transaction_checks.verification = coordinator
        late = part_of_transaction(QUEUE, (7, 0, 1 if repeated else 0))
        assert outcomes(await produce(node, late)) == {Outcome.INVALID_TXN_STATE}
        assert len(coordinator.asked) == 2
        assert node.offsets().last_stable == node.offsets().end

    simulated(tmp_path, story)


def test_markers_fence_and_may_be_repeated(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        confirmed(node)
        await produce(node, part_of_transaction(QUEUE, (7, 3, 0)))
        assert await end(node, QUEUE, 7, 2) is Outcome.STALE_PRODUCER_EPOCH
        assert await end(node, QUEUE, 7, 4, coordinator=5) is Outcome.OK  # KIP-890: a new epoch with each transaction
        assert await end(node, QUEUE, 7, 4, coordinator=5) is Outcome.OK
        assert node.offsets().end == 2, "a repeated marker was written"
        assert await end(node, QUEUE, 7, 4, coordinator=4) is Outcome.TRANSACTION_COORDINATOR_FENCED
        assert await end(node, QUEUE + 9, 7, 4) is Outcome.UNKNOWN_QUEUE
        assert outcomes(await produce(node, part_of_transaction(QUEUE, (7, 3, 1)))) == {Outcome.STALE_PRODUCER_EPOCH}
        (result,) = await produce(node, part_of_transaction(QUEUE, (7, 4, 0)))
        assert (result.outcome, result.base_offset) == (Outcome.OK, 2)
        await node.restart()
        assert await end(node, QUEUE, 7, 4, coordinator=4) is Outcome.TRANSACTION_COORDINATOR_FENCED
        (told,) = await node.storage.markers.producers([QUEUE])
        assert not isinstance(told, Outcome)
        (producer,) = told
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 4, 0)
        assert (producer.coordinator_epoch, producer.transaction_start) == (5, 2)
        # a transaction of the same epoch goes on with its sequences behind a marker
        assert await end(node, QUEUE, 7, 4, coordinator=5) is Outcome.OK
        (result,) = await produce(node, part_of_transaction(QUEUE, (7, 4, 1)))
        assert (result.outcome, result.base_offset) == (Outcome.OK, 4)

    simulated(tmp_path, story)


def test_deleted_records_take_the_last_stable_offset_along(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        confirmed(node)
        await produce(node, part_of_transaction(QUEUE, (7, 0, 0), 4))
        await node.fill(1)
        assert await node.storage.queues.truncate({QUEUE: 3}) == {QUEUE: 3}
        assert node.offsets().last_stable == 3
        assert await end(node, QUEUE, 7, 0, commit=False) is Outcome.OK
        assert node.offsets().last_stable == 6

    simulated(tmp_path, story)


@dataclass
class Model:
    """The offsets and transactions that one queue should tell."""

    end: int = 0
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def last_stable(self) -> int:
        return min(self.open.values(), default=self.end)


@pytest.mark.parametrize("seed", range(12))
def test_random_transactions(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    async def story(node: SmallNode) -> None:
        confirmed(node)
        models = {queue_id: Model() for queue_id in QUEUES}
        epochs = dict.fromkeys(range(4), 0)
        sequences: dict[tuple[int, int], int] = {}

        async def look() -> None:
            transactions = node.storage.groups[0].transactions
            for queue_id, model in models.items():
                offsets = node.offsets(queue_id)
                assert (offsets.end, offsets.high_watermark) == (model.end, model.end)
                assert offsets.last_stable == model.last_stable
                first, last = sorted(rng.randrange(model.end + 2) for _ in range(2))
                found = transactions.aborted.find(queue_id, first, min(last, model.last_stable))
                assert list(map(tuple, found)) == sorted(
                    (one for one in model.aborted if one[2] >= first and one[1] < min(last, model.last_stable)),
                    key=lambda one: one[1],
                )

        for _ in range(120):
            queue_id, producer_id = rng.choice(QUEUES), rng.randrange(4)
            model = models[queue_id]
            action = rng.random()
            if action < 0.5:
                records = rng.randrange(1, 4)
                sequence = sequences.get((queue_id, producer_id), 0)
                (result,) = await produce(
                    node, part_of_transaction(queue_id, (producer_id, epochs[producer_id], sequence), records)
                )
                assert (result.outcome, result.base_offset) == (Outcome.OK, model.end)
                sequences[queue_id, producer_id] = sequence + records
                model.open.setdefault(producer_id, model.end)
                model.end += records
            elif action < 0.6:
                await node.fill(1, queue_id, 10)
                model.end += 1
            elif action < 0.92:
                commit, bumps = rng.random() < 0.5, rng.random() < 0.5
                epochs[producer_id] += bumps
                for ended in QUEUES:
                    outcome = await end(node, ended, producer_id, epochs[producer_id], commit=commit)
                    assert outcome is Outcome.OK
                    first = models[ended].open.pop(producer_id, None)
                    if first is not None and not commit:
                        models[ended].aborted.append((producer_id, first, models[ended].end))
                    models[ended].end = node.offsets(ended).end
                    if bumps:
                        sequences[ended, producer_id] = 0
            elif action < 0.96:
                await node.restart()
            else:
                await node.crash()
                await node.start()
            await look()
        for queue_id, model in models.items():
            slot = node.storage.state.table.find(queue_id)
            assert bool(node.storage.state.table.get(slot, FIRST_UNSTABLE)) == bool(model.open)

    simulated(tmp_path, story)
