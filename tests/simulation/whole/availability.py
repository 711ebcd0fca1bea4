"""Stories of one fault at a time that leaves a majority which can hear each other: every partition is served again
within a bound of simulated time, to clients that behave as Kafka's do, and stays so as long as the fault lasts (S).

A customer publishes to one partition. It goes to the leader it knows until it is told that this one does not lead, and
asks who does then, any of the nodes that it was told of the last time. A forgetful one asks before most batches, and
always the same node, as librdkafka asks where it is connected.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.simulation.cluster.planted import Plant
from tests.simulation.cluster.run import HEALED_SECONDS, Outcomes
from tests.simulation.oracle import Violation, require, seed_failed
from tests.simulation.whole.admin import Admin, Asker, Committer
from tests.simulation.whole.client import Client, Partition
from tests.simulation.whole.clients import REFUSALS, Batch, Producer, Work
from tests.simulation.whole.connection import NoAnswer
from tests.simulation.whole.node import WholeNode
from tests.simulation.whole.run import WholeRun

from mainstem.model import AppendResult, BatchAppend, Outcome, Topic
from mainstem.nameserver.cluster.reach import Reacher
from mainstem.protocol.error_codes import ErrorCode
from mainstem.storage.cluster.queue_leadership import UNKNOWN, WriteGroupLeadership
from mainstem.storage.queues.message_store import LocalMessageStore

SERVED_SECONDS = 8.0
"""Within which a partition is served again: a full leader is noticed and replaced within six."""

FAULT_SECONDS = 20.0
"""How long a fault lasts: several times what it takes to hold a silent node for dead."""

CALM_SECONDS = 5.0
"""Between two faults: leaders lead, and everybody has been heard."""

ROUNDS = 2
PATIENCE_SECONDS = 2.0
LOOK_SECONDS = 0.25
GROUP = "customers"


class Customer(Producer):
    def __init__(self, work: Work, topic: Topic, partition: int, *, forgetful: bool) -> None:
        super().__init__(work, -1)
        self.what = f"{topic.name}-{partition}" + (" to who asks" if forgetful else " to who knows")
        self.served_at = 0.0
        self._place = Partition(topic.topic_id, partition)
        self._topic = topic
        self._forgetful = forgetful
        if forgetful:
            asked = self._client.any_node()
            self._client.node_ids = [asked]
            self.what += f" node {asked}"
        self._client.patience = lambda: PATIENCE_SECONDS  # type: ignore[method-assign]

    async def run(self) -> None:
        work = self._work
        while not work.ending:
            if self._forgetful and self._rng.random() < 0.8:
                self._client.doubt(self._place)
            batch = work.new_batch(self._topic, self._place.index, (-1, -1, -1), 1)
            waiting = {self._place: batch}
            while waiting and not work.ending:
                try:
                    await self._send_to(await self._leader(self._client), [batch], waiting)
                except NoAnswer:
                    self._client.doubt(self._place)
                await work.pause(0.05, 0.2)
            if not waiting:
                self.served_at = work.cluster.loop.time()

    async def _leader(self, client: Client) -> int:
        """The one it knows, or is told of now. Raises `NoAnswer`."""
        led = client.leaders.get(self._place)
        if led is None or led.node_id == -1:
            await client.look([self._topic.name])
            if not self._forgetful:
                client.node_ids = client.told_nodes or client.node_ids
            led = client.leaders.get(self._place)
        if led is None or led.node_id == -1:
            raise NoAnswer
        return led.node_id

    def _refused(self, batch: Batch, error_code: int) -> None:
        """If there is no room, it tries again: only another leader has clients look for one."""
        if error_code != ErrorCode.NOT_ENOUGH_REPLICAS:
            self._client.doubt(self._place)
        if error_code in REFUSALS:
            self._work.cluster.history.refused(batch.crc)


class Availability(WholeRun):
    """One fault after another, each the same kind; what goes wrong is chosen by the seed."""

    async def _story(self) -> None:
        await self._start_nodes()
        await Admin(self.work).create(partitions=4, configs={"retention.ms": "-1"})
        await self._create_topics()
        self._customers = [
            Customer(self.work, topic, partition, forgetful=forgetful)
            for topic, partition in self.work.partitions() for forgetful in (False, True)
        ]  # fmt: skip
        committer = Committer(self.work, GROUP)
        working = [
            self.loop.create_task(self._looked_after(task))
            for task in (*(customer.run() for customer in self._customers), committer.run())
        ]
        for _ in range(ROUNDS):
            await asyncio.sleep(CALM_SECONDS)
            await self._suffer()
        self.clients.ending = True
        async with asyncio.timeout(HEALED_SECONDS):
            await self.faults.heal()
            await asyncio.gather(*working)
        await self._settle()

    async def _suffer(self) -> None:
        raise NotImplementedError

    async def _watch(self, fault: str) -> None:
        """As long as the fault lasts nobody waits for longer than the bound."""
        loop, asker = self.cluster.loop, Asker(self.work, [GROUP])
        began = told_at = loop.time()
        while (now := loop.time()) < began + FAULT_SECONDS:
            for customer in self._customers:
                waits = now - max(customer.served_at, began)
                require(waits <= SERVED_SECONDS, f"{fault}: {customer.what} is not served for {waits:.1f} s", "S")
            asking = asyncio.create_task(asker.ask(GROUP, everything=True))
            await asyncio.sleep(LOOK_SECONDS)
            if await asking:
                told_at = loop.time()
            require(
                loop.time() - told_at <= SERVED_SECONDS + PATIENCE_SECONDS,
                f"{fault}: committed offsets are not told for {loop.time() - told_at:.1f} s",
                "S",
            )

    # --- who has which role -------------------------------------------------------------------------------

    def _roles(self) -> Iterator[tuple[str, int]]:
        """Role and node: the metadata's leader, and those of the write groups."""
        for node in self.cluster.nodes.values():
            if node.roles is not None and node.roles.nameserver.lookups.leads_metadata:
                yield "the metadata's leader", node.node_id
        for group in range(self.cluster.settings.groups):
            if leaders := self.cluster.leaders(group):
                yield f"the leader of write group {group}", leaders[0].node_id


class Bridges(Availability):
    """Two nodes do not hear each other, all others hear both."""

    async def _suffer(self) -> None:
        rng, network = self._rng, self.cluster.network
        role, one = rng.choice(list(self._roles()))
        others = [(other_role, other) for other_role, other in self._roles() if other != one]
        others += [("another node", other) for other in self.cluster.nodes if other != one]
        other_role, other = rng.choice(others)
        ways = {(one, other), (other, one)}
        network.cut |= ways
        self.cluster.history.note("bridge", one, other)
        await self._watch(f"{role}, node {one}, and {other_role}, node {other}, do not hear each other")
        network.cut -= ways


class FullLeaders(Availability):
    """Disk 1 of a node that leads a write group is full."""

    async def _suffer(self) -> None:
        node: WholeNode
        group = self._rng.randrange(self.cluster.settings.groups)
        node = self.cluster.leaders(group)[0]  # type: ignore[assignment]
        node.disk1.fill_up(self._rng.choice([0, 4096, 30_000]))
        self.cluster.history.note("full", node.node_id)
        await self._watch(f"disk 1 of node {node.node_id}, which led write group {group}, is full")
        node.disk1.capacity_bytes = None
        await self.faults.restart_failed(node)


def _silent_is_dead() -> tuple[type, str, Any]:
    """The metadata leader takes those for dead that it does not hear itself."""

    async def ask(reacher: Reacher, helpers: Sequence[int], about: Collection[int]) -> dict[int, frozenset[int]]:
        return {}

    return Reacher, "ask", ask


def _hears_only_itself() -> tuple[type, str, Any]:
    """A node that hears of no leader says that there is none."""
    hearsay = WriteGroupLeadership._hearsay  # noqa: SLF001  # a planted bug wraps it

    def unheard(leadership: WriteGroupLeadership, group: int) -> tuple[int, int]:
        replicated = leadership._groups[group]  # noqa: SLF001
        return UNKNOWN if replicated.consensus.core is not None else hearsay(leadership, group)

    return WriteGroupLeadership, "_hearsay", unheard


def _busy_before_who_leads() -> tuple[type, str, Any]:
    """A node that has no room says so, whoever leads."""

    def refused(messages: LocalMessageStore, batches: Sequence[BatchAppend], refusal: Outcome) -> list[AppendResult]:
        return [AppendResult(refusal) for _ in batches]

    return LocalMessageStore, "_refused", refused


AVAILABILITY_PLANTS: dict[str, Plant] = {
    "silent-is-dead": _silent_is_dead,
    "hears-only-itself": _hears_only_itself,
    "busy-before-who-leads": _busy_before_who_leads,
}
TOLD_BY = {
    "silent-is-dead": "bridges",
    "hears-only-itself": "bridges",
    "busy-before-who-leads": "full leaders",
}
"""Per planted bug the story that shows it, by a check of S."""


STORIES: dict[str, type[Availability]] = {"bridges": Bridges, "full leaders": FullLeaders}


def play(seed: int, directory: Path, *, faults: Sequence[str] = ()) -> Outcomes:
    """Play one story, that which is named or drawn; a failure names its seed."""
    directory.mkdir(parents=True, exist_ok=True)
    name = faults[0] if faults else random.Random(seed).choice(sorted(STORIES))
    try:
        return STORIES[name](seed, directory, seconds=1.0).play()
    except Exception as error:
        raise (error if isinstance(error, Violation) and not error.breaks else seed_failed(seed, error)) from error
