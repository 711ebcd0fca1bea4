"""Transactions in one run of whole nodes: who makes and reads them, and what must be true in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.oracle import Violation, require
from tests.simulation.transactions.atomicity import Atomicity
from tests.simulation.transactions.producers import TIMEOUTS_MS, TransactionalProducer
from tests.simulation.transactions.readers import CommittedReader, TransactionalAsker, unfinished_transactions
from tests.simulation.whole.clients import Work
from tests.simulation.whole.connection import NoAnswer

from mainstem.model import Topic

T = TypeVar("T")

TRANSACTIONS = "transactions"
"""Named among the faults of a run: it has transactions."""

TRANSACTIONS_SHARE = 0.4
"""Of the runs whose faults nobody names."""

TRANSACTIONS_SECONDS = 8.0
"""Of load and faults, at least: a leader that is lost takes a second or two of it from every transaction."""

HANGS_SECONDS = 20.0
"""Simulated, when everything works again: how long a transaction may be open past its time. Its coordinator has to be
elected and to load its log, and the queues' leaders to be found."""

POLL_SECONDS = 0.2
PATIENCE = 300
"""How often is asked for what must be there in the end."""


class TransactionLoad:
    """Draws from `rng` move nothing else that a run's seed decides."""

    def __init__(self, work: Work, rng: random.Random) -> None:
        self._work = work
        self._rng = rng
        self.atomicity = Atomicity(work.cluster.history, work.cluster.loop.time)
        self._seats = [
            TransactionalProducer(work, self.atomicity, f"transactional-{number}", random.Random(rng.random()))
            for number in range(rng.randint(1, 3))
            for _ in range(rng.choice([1, 1, 2]))
        ]
        self._reader = CommittedReader(work, self.atomicity, random.Random(rng.random()))
        self._asker = TransactionalAsker(work, self.atomicity, random.Random(rng.random()))

    async def begin(self) -> None:
        """There are coordinators when the load begins, unless the cluster is to learn of transactions first."""
        if not self._work.cluster.settings.begins_old:
            await asyncio.gather(*(seat.begin() for seat in self._seats))

    def clients(self) -> Iterator[Coroutine[Any, Any, None]]:
        for seat in self._seats:
            yield seat.run()
        for _ in range(2):
            yield CommittedReader(self._work, self.atomicity, random.Random(self._rng.random())).run()
        yield self._asker.run()

    # --- the end ------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Everything works, and nobody begins anything: all that is open ends, and groups tell what was committed."""
        for _ in range(int((max(TIMEOUTS_MS) / 1000 + HANGS_SECONDS) / POLL_SECONDS)):
            unfinished = await unfinished_transactions(self._work)
            if not unfinished and not self.atomicity.open_in(self._queue_ids()):
                break
            await asyncio.sleep(POLL_SECONDS)
        self.atomicity.check_nothing_hangs(self._queue_ids(), HANGS_SECONDS)
        require(not unfinished, f"transactions hang at their coordinators: {', '.join(unfinished)}", "E")
        for place in self.atomicity.places():
            group, topic_id, partition = place
            if self._work.cluster.ledger.fates[topic_id].unwanted:
                continue
            found = await self._told(
                partial(self._asker.ask, place, stable=True),
                f"{group} tells no stable offset of partition {partition}: a transaction hangs",
            )
            newest = self.atomicity.newest_committed(place)
            require(found >= newest, f"{group} is at {found} in partition {partition}, committed was {newest}", "E")
        await self.read_all()

    def _queue_ids(self) -> list[int]:
        return [topic.queue_id(partition) for topic, partition in self._work.partitions()]

    async def read_all(self) -> None:
        """Readers of committed transactions come to the end of every partition."""
        for topic, partition in self._work.partitions():
            queue = self._work.cluster.history.queue(topic.queue_id(partition))
            offset, end = queue.log_start, queue.end
            while offset < end:
                bytes_max = self._rng.choice([500, 5000, 1 << 20])
                before = offset
                offset = await self._told(
                    lambda: self._read(topic, partition, before, bytes_max),  # noqa: B023 - it is called at once
                    f"{topic.name}-{partition}: no reader of committed transactions gets past {offset} of {end}",
                )

    async def _read(self, topic: Topic, partition: int, offset: int, bytes_max: int) -> int | None:
        start = max(offset, self._work.cluster.history.queue(topic.queue_id(partition)).log_start)
        try:
            reached = await self._reader.read(topic, partition, start, bytes_max)
        except NoAnswer:
            self._reader.doubt(topic, partition)
            return None
        return reached if reached > offset else None

    async def _told(self, ask: Callable[[], Awaitable[T | None]], otherwise: str) -> T:
        """The answer that somebody gets in the end. Raises `Violation`."""
        for _ in range(PATIENCE):
            answer = await ask()
            if answer is not None:
                return answer
            await asyncio.sleep(POLL_SECONDS)
        raise Violation(otherwise, "E")

    async def check_files(self, node: SimulatedNode, held: Collection[int]) -> None:
        """Everything is split: the files of a node that has these queues tell which of their transactions were
        aborted."""
        for queue_id in self._queue_ids():
            if queue_id not in held:
                continue
            queue, stored = self._work.cluster.history.queue(queue_id), node.storage.stored_transactions
            start, end = queue.log_start, queue.end
            told = await node.call(stored.aborted(queue_id, start, end), patience=60)
            require(told is not None, f"node {node.node_id}: its files tell nothing of transactions in time")
            found = {(one.producer_id, one.first_offset, one.last_offset) for one in told or ()}
            all_aborted = set(self.atomicity.queue(queue_id).aborted)
            wanted = {one for one in all_aborted if one[1] >= max(start, queue.log_start)}
            what = f"node {node.node_id}: queue {queue_id:#x}: by its files"
            require(wanted <= found, f"{what} these transactions were not aborted: {sorted(wanted - found)}", "E")
            require(found <= all_aborted, f"{what} these were aborted: {sorted(found - all_aborted)}", "E")
