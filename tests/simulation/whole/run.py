"""One simulated run of a cluster of whole nodes, from one seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.simulation.cluster.lives import ClusterLoop
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import (
    COMPACTING_SHARE,
    COMPACTION,
    HEALED_SECONDS,
    LEFT_BEHIND,
    NodeSplitters,
    Outcomes,
    Run,
    compactors_of,
    mergers_of,
)
from tests.simulation.migrating_groups.load import MIGRATING_GROUPS, MIGRATING_GROUPS_SECONDS, MigratingLoad
from tests.simulation.oracle import Violation, require, seed_failed
from tests.simulation.share_groups.load import (
    SHARE_GROUPS,
    SHARE_GROUPS_SECONDS,
    ShareLoad,
)
from tests.simulation.transactions.load import TRANSACTIONS, TRANSACTIONS_SECONDS, TRANSACTIONS_SHARE, TransactionLoad
from tests.simulation.whole.admin import Admin, Asker, Committer
from tests.simulation.whole.clients import Batch, PipeliningProducer, Producer, Reader, Watchman, Work
from tests.simulation.whole.cluster import WholeCluster, WholeSettings
from tests.simulation.whole.faults import WholeFaults
from tests.simulation.whole.members import GroupMember
from tests.simulation.whole.reborn import Reborn

from mainstem.kernel import NO_SLOT
from mainstem.model import Topic, topic_number_of
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import encode_command

GROUPS = ["readers", "auditors", "billing"]
CONSUMING = ["shipping", "mailing"]
"""Consumer groups with members; those of `GROUPS` only have offsets."""
REBORN_GROUPS = ["heirs", "orphans", "widows"]
"""Each has an actor and topics of its own. Before the feature level is raised nothing tells two topics of a name apart
that follow each other while nobody coordinates the group."""
POLL_SECONDS = 0.2


class WholeRun(Run):
    """`WholeRun(seed, directory).play()` raises `Violation` when an invariant does not hold."""

    transactions: TransactionLoad | None = None
    shares: ShareLoad | None = None
    migrating: MigratingLoad | None = None

    def __init__(self, seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> None:
        self._rng = rng = random.Random(seed)
        self._seconds = seconds or rng.choice([2.0, 4.0, 8.0])
        self.loop = ClusterLoop()
        settings = self._settings(rng)
        if LEFT_BEHIND in faults:
            settings.forget_soon()
        if TRANSACTIONS in faults:
            settings.begins_old = False  # transactions take all levels
        if SHARE_GROUPS in faults or MIGRATING_GROUPS in faults:
            settings.begins_old = False
        self.cluster: WholeCluster = self._new_cluster(rng.randrange(1 << 30), self.loop, directory, settings)
        self.work = Work(self.cluster, random.Random(rng.random()))
        self.clients = self.work  # type: ignore[assignment]  # what the outcomes are counted from
        self.faults: WholeFaults = self._new_faults(random.Random(rng.random()), faults)
        self._splitters_at_work = []
        self.splitters = {
            node_id: NodeSplitters(node, random.Random(rng.random())) for node_id, node in self.cluster.nodes.items()
        }
        self.mergers = mergers_of(self.cluster, seed)
        compaction = random.Random(f"{seed} compaction")
        share = 0.0 if any(faults) else COMPACTING_SHARE
        if compaction.random() < share or COMPACTION in faults:
            self.compactors = compactors_of(self.cluster, seed)
            self.cluster.compacts = True
            self.work.compaction = compaction
        transactions = random.Random(f"{seed} transactions")
        share = 0.0 if any(faults) else TRANSACTIONS_SHARE
        if transactions.random() < share or TRANSACTIONS in faults:
            self.transactions = TransactionLoad(self.work, transactions)
            self._seconds = seconds or max(TRANSACTIONS_SECONDS, 2 * self._seconds)
        if SHARE_GROUPS in faults:
            shares = random.Random(f"{seed} share groups")
            self.shares = ShareLoad(self.work, shares, settings)
            self._seconds = seconds or max(SHARE_GROUPS_SECONDS, self._seconds)
            if self.transactions is not None:
                self.shares.read_committed(self.transactions.atomicity)
        if MIGRATING_GROUPS in faults:
            migrating = random.Random(f"{seed} migrating groups")
            self.migrating = MigratingLoad(self.work, migrating, settings)
            self._seconds = seconds or max(MIGRATING_GROUPS_SECONDS, self._seconds)

    def _settings(self, rng: random.Random) -> WholeSettings:
        return WholeSettings(rng)

    def _new_cluster(self, *arguments: Any) -> WholeCluster:
        return WholeCluster(*arguments)

    def _new_faults(self, rng: random.Random, faults: Sequence[str]) -> WholeFaults:
        return WholeFaults(self.cluster, rng, faults)

    # --- the story ----------------------------------------------------------------------------------------

    async def _start_nodes(self) -> None:
        """Together: none is there before a majority is."""
        await asyncio.gather(*(node.start() for node in self.cluster.nodes.values()))

    async def _create_topics(self) -> None:
        admin = Admin(self.work)
        for number in range(100):
            if len(self.work.partitions()) >= 2:
                if self.transactions is not None:
                    await self.transactions.begin()
                return
            how = self.work.how_to_compact() if number == 0 else {}
            await admin.create(configs={"retention.ms": "-1", "segment.bytes": "3000", **how})
        raise Violation("no topic can be created", "S")

    def _load(self) -> Iterator[Coroutine[Any, Any, None]]:
        rng, work = self._rng, self.work
        for _ in range(rng.randint(1, 3)):
            yield Producer(work, -1, idempotent=True).run()
        for _ in range(rng.randint(1, 2)):
            yield PipeliningProducer(work).run()
        for _ in range(rng.randint(1, 3)):
            yield Producer(work, rng.choice([1, -1, -1, 0])).run()
        for _ in range(2):
            yield Reader(work).run()
        for node_id in self.cluster.serving_clients:
            yield Watchman(work, node_id).run()
        for group in GROUPS:
            yield Committer(work, group).run()
        for group in CONSUMING[: rng.randint(0, len(CONSUMING))]:
            for _ in range(rng.randint(1, 4)):
                yield GroupMember(work, group).run()
        for _ in range(2):
            yield Asker(work, GROUPS + CONSUMING).run()
        yield Admin(work).run()
        for group in [] if self.cluster.settings.begins_old else REBORN_GROUPS:
            yield Reborn(work, group).run()
        if self.transactions is not None:
            yield from self.transactions.clients()
        if self.shares is not None:
            yield from self.shares.members()
        if self.migrating is not None:
            yield from self.migrating.members()

    # --- the end ------------------------------------------------------------------------------------------

    @property
    def _topics(self) -> list[Topic]:
        """Those there are in the end, according to any node."""
        roles = next(iter(self.cluster.nodes.values())).roles
        assert roles is not None
        return list(roles.nameserver.lookups.topics())

    @property
    def _queue_ids(self) -> list[int]:  # type: ignore[override]
        return [topic.queue_id(number) for topic in self._topics for number in range(topic.partitions)]

    async def _settle(self) -> None:
        await self._agree_on_metadata()
        await self._settle_deleted()
        await super()._settle()

    async def _lead_again(self) -> None:
        await self._agree_on_metadata()
        await self._settle_deleted()
        await super()._lead_again()

    async def _start_again(self) -> None:
        """Under `async` durability, after the power went everywhere: what is older than a flush is there."""
        settings = self.cluster.settings
        if not settings.is_async:
            await super()._start_again()
            return
        await asyncio.sleep(2 * settings.journal.flush_interval_seconds + 1)
        for node in self.cluster.nodes.values():
            node.lose_power(keep_all=False, even_async=True)
        await asyncio.gather(*(node.restart() for node in self.cluster.nodes.values()))
        await self._lead_again()

    async def _agree_on_metadata(self) -> None:
        """All nodes come to the same metadata, in which there is what was promised."""
        nodes = self.cluster.nodes.values()
        for node in nodes:  # who has just started has applied what it knows to be committed, which may be old
            assert node.roles is not None
            await node.call(self._up_to_date(node.roles.nameserver), patience=HEALED_SECONDS)
        for _ in range(int(HEALED_SECONDS / POLL_SECONDS)):
            states = [
                list(map(encode_command, node.roles.nameserver.replica.state.commands()))
                for node in nodes
                if node.roles
            ]
            if len(states) == len(nodes) and all(state == states[0] for state in states):
                break
            await asyncio.sleep(POLL_SECONDS)
        else:
            raise Violation("nodes do not come to the same metadata", "J")
        there = {topic.topic_id: topic for topic in self._topics}
        for fate in self.cluster.ledger.fates.values():
            topic = fate.topic
            require(fate.unwanted or topic.topic_id in there, f"topic {topic.name} is lost", "A")
            require(not fate.gone or topic.topic_id not in there, f"topic {topic.name} is back", "A")

    async def _up_to_date(self, nameserver: Nameserver) -> None:
        while True:
            try:
                return await nameserver.waits.current()
            except MetadataUnavailable:
                continue

    async def _settle_deleted(self) -> None:
        """Queues of topics that are there exist on every node that has their write groups, those of others on none."""
        numbers = {topic.number for topic in self._topics}
        for _ in range(int(HEALED_SECONDS / POLL_SECONDS)):
            wrong = {node.node_id: self._wrong_topics(node, numbers) for node in self.cluster.nodes.values()}
            if not any(wrong.values()):
                return
            await asyncio.sleep(POLL_SECONDS)
        raise Violation(f"topics {sorted(numbers)} exist; queues that are too many or missing, by node: {wrong}", "M")

    def _wrong_topics(self, node: SimulatedNode, numbers: set[int]) -> list[int]:
        """Topics of which a node lacks queues that it should have, or has some though they do not exist."""
        table = node.storage.table
        lacking = {topic_number_of(it) for it in self._held_queues(node) if table.find(it) == NO_SLOT}
        return sorted((set(table.topics()) - numbers) | lacking)

    async def _last_words(self) -> None:
        """Every queue takes one more batch, groups tell their offsets, log starts are where they were said to be; what
        was open of transactions ends."""
        if self.transactions is not None:
            await self.transactions.settle()
        if self.shares is not None:
            await self.shares.settle()
        if self.migrating is not None:
            await self.migrating.settle()
        producer = Producer(self.work, -1)
        for topic, partition in self.work.partitions():
            await self._last_batch(producer, self.work.new_batch(topic, partition, (-1, -1, -1), 1))
        asker = Asker(self.work, GROUPS + CONSUMING)
        for group in GROUPS + CONSUMING:
            for _ in range(200):
                if await asker.ask(group, everything=True):
                    break
                await asyncio.sleep(POLL_SECONDS)
            else:
                raise Violation(f"group {group} does not tell its offsets", "S")
        for fate in self.cluster.ledger.fates.values():
            for partition, start in fate.told_starts.items():
                if not fate.unwanted:
                    found = self.cluster.history.queue(fate.topic.queue_id(partition)).log_start
                    require(
                        found >= start, f"{fate.topic.name}-{partition} starts at {found}, {start} was answered", "A"
                    )

    async def _finish_work(self) -> None:
        await super()._finish_work()
        if self.transactions is not None:
            for node in self.cluster.nodes.values():
                await self.transactions.check_files(node, self._held_queues(node))
            await self.transactions.read_all()
        if self.shares is not None:
            await self.shares.settle()

    async def _last_batch(self, producer: Producer, batch: Batch) -> None:
        waiting = {batch.place: batch}
        for _ in range(200):
            await producer.send(waiting)
            if not waiting:
                return
            await asyncio.sleep(POLL_SECONDS)
        raise Violation(f"{batch.topic.name}-{batch.partition} takes nothing", "S")


def play(seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> Outcomes:
    """Play one run; a failure names its seed."""
    directory.mkdir(parents=True, exist_ok=True)
    run = WholeRun(seed, directory, seconds=seconds, faults=faults)
    try:
        return run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error
