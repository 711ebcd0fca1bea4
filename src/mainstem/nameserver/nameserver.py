"""The nameserver of a node: answers about the metadata at once, changes it one command at a time.

Strategy: lookups read the state in memory and never wait. A change is a function from the present state to a
command (or to many that share one write); one writer task takes the changes in order and for each makes the
command, checks it, logs it, applies it and tells those who follow. Nothing else touches state or log, so
nothing can come between a check and the change that rests on it, and a caller that goes away cannot leave a
logged command unapplied. With several nodes the log becomes a Raft group's, and the writer its leader's
proposer; the rest stays.

Invariants: what a caller is told has happened is on disk; state in memory equals the log replayed; a topic
number is never reused; messages are never deleted here, and a directory that holds messages but no metadata
is refused rather than taken for a new one (topic numbers would start anew and meet the old messages).
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from mainstem.errors import MainstemError
from mainstem.model import SLOTS, NewTopic, Node, Sample, Topic, partition_of, topic_number_of
from mainstem.nameserver.commands import (
    AddPartitions,
    AllocateProducerIds,
    ChangeTopicConfigs,
    Command,
    CreateCluster,
    CreateTopic,
    DeleteTopic,
    Event,
    RegisterNode,
)
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import (
    ForeignDirectory,
    MetadataUnavailable,
    NameserverError,
    UnknownTopic,
)
from mainstem.nameserver.metadata_log import COMMANDS_PER_TURN, MetadataLog
from mainstem.nameserver.state import PRODUCER_IDS_PER_BLOCK, MetadataState, PendingChanges, topic_of
from mainstem.nameserver.topic_config import topic_settings
from mainstem.ports import Files

JOURNAL_DIRECTORY = "journal"

TOGETHER_MAX = 10_000
"""Topics created or deleted with one write: a few MB of log, unless their configs are long."""

W = TypeVar("W")
R = TypeVar("R")

Listener = Callable[[Event], None]

log = logging.getLogger(__name__)


class Applied(NamedTuple):
    """A command that is logged and applied, and what it did to topics."""

    command: Command
    event: Event | None


class _Change(NamedTuple):
    """What the writer is asked to do, and who waits for what comes of it."""

    work: Callable[[], Awaitable[Any]]
    done: asyncio.Future[Any]


class Nameserver:
    """Made by `open`. Implements `ports.Metadata`, `ports.MetadataAdmin` and `ports.Statistics`."""

    def __init__(
        self,
        metadata_log: MetadataLog,
        state: MetadataState,
        randomness: random.Random,
        config: NameserverConfig,
    ) -> None:
        self._log = metadata_log
        self._state = state
        self._randomness = randomness
        self._config = config
        self._listeners: list[Listener] = []
        self._producer_ids = range(0)
        self._producer_ids_lock = asyncio.Lock()
        self._changes: asyncio.Queue[_Change | None] = asyncio.Queue()  # bounded in `_commit`
        self._closing = False
        self._applied_count = 0
        self._refused_count = 0
        self._snapshot_count = 0
        self._writer = asyncio.create_task(self._write(), name="metadata writer")

    @classmethod
    async def open(
        cls, files: Files, randomness: random.Random, config: NameserverConfig, node: Node
    ) -> Nameserver:
        """Recover the metadata below `files`, or create the cluster where there is nothing at all yet, and
        register `node`. Open it before the journal. Raises `ForeignDirectory`, `MetadataCorrupt`, OSError."""
        assert node.node_id == config.node_id, "a node registers itself"
        state = MetadataState(lambda configs: topic_settings(configs, config.topic_defaults))
        metadata_log = await MetadataLog.open(files, state.apply, bytes_max=config.log_bytes_max)
        try:
            if state.cluster is None and await files.names(JOURNAL_DIRECTORY):
                raise ForeignDirectory(
                    "the directory holds messages but no metadata that says to which topics they belong; "
                    "restore its metadata directory, or start in an empty directory"
                )
            _check_owner(state, config)
        except BaseException:
            await metadata_log.close()
            raise
        nameserver = cls(metadata_log, state, randomness, config)
        try:
            if state.cluster is None:
                await nameserver._commit(nameserver._new_cluster)
            await nameserver.register(node)
        except BaseException:
            await nameserver.close()
            raise
        return nameserver

    async def close(self) -> None:
        """Finish the changes that were accepted, and let go of the log."""
        if not self._closing:
            self._closing = True
            self._changes.put_nowait(None)
        await asyncio.wait([self._writer])
        await self._log.close()

    # Metadata

    def topic(self, name: str) -> Topic | None:
        return self._state.topic(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._state.topic_by_id(topic_id)

    def topic_by_number(self, number: int) -> Topic | None:
        return self._state.topic_by_number(number)

    def topics(self) -> Iterable[Topic]:
        return tuple(self._state.topics.values())

    def nodes(self) -> Sequence[Node]:
        return self._state.nodes

    def leader(self, queue_id: int) -> int:
        topic = self._state.topic_by_number(topic_number_of(queue_id))
        if topic is None or partition_of(queue_id) >= topic.partitions:
            return -1
        return self._config.node_id  # the only node there is, so far

    def cluster_id(self) -> str:
        assert self._state.cluster is not None
        return self._state.cluster.cluster_id

    def slots(self) -> Sequence[int]:
        """The write group of each of the 4,096 slots."""
        assert self._state.cluster is not None
        return self._state.cluster.slots

    def write_groups(self) -> int:
        """How many write groups the cluster has."""
        assert self._state.cluster is not None
        return self._state.cluster.write_groups

    def totals(self) -> tuple[int, int]:
        """How many topics there are, and how many partitions they have."""
        return len(self._state.topics), self._state.partitions_total

    def was_deleted(self, topic_number: int) -> bool:
        """Whether a topic of this number was deleted, so that what is left of its data may go. False for one
        that the metadata has never heard of."""
        return self._state.was_deleted(topic_number)

    def topic_defaults(self) -> Mapping[str, str]:
        """This node's defaults of topic configs, where they differ from Kafka's."""
        return self._config.topic_defaults

    # MetadataAdmin

    async def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        *,
        validate_only: bool = False,
        internal: bool = False,
    ) -> Topic:
        def make(state: MetadataState) -> CreateTopic:
            return CreateTopic(
                name=name,
                number=state.next_topic_number,
                topic_id=self._new_uuid(),
                partitions=partitions,
                replication_factor=replication_factor,
                configs=dict(configs),
                internal=internal,
            )

        if validate_only:
            command = make(self._state)
            self._state.check(command)
            return self._as_created(command)
        return _topic_after(await self._commit(make))

    async def create_topics(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[Topic | MainstemError]:
        def make(topic: NewTopic, created: int) -> CreateTopic:
            return CreateTopic(
                name=topic.name,
                number=self._state.next_topic_number + created,
                topic_id=self._new_uuid(),
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=dict(topic.configs),
            )

        return await self._together(make, wanted, validate_only=validate_only)

    async def delete_topics(self, names: Sequence[str]) -> list[Topic | MainstemError]:
        """The topics as they were. Their queues are still there."""

        def make(name: str, deleted: int) -> DeleteTopic:
            return DeleteTopic(_named(self._state, name).number)

        return await self._together(make, names)

    async def create_partitions(self, name: str, total: int, *, validate_only: bool = False) -> Topic:
        def make(state: MetadataState) -> AddPartitions:
            return AddPartitions(_named(state, name).number, total)

        if validate_only:
            self._state.check(make(self._state))
            return replace(_named(self._state, name), partitions=total)
        return _topic_after(await self._commit(make))

    async def alter_configs(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        def make(state: MetadataState) -> ChangeTopicConfigs:
            return ChangeTopicConfigs(_named(state, name).number, dict(changes))

        if validate_only:
            self._state.check(make(self._state))
            return self._state.with_configs(_named(self._state, name), changes)
        return _topic_after(await self._commit(make))

    async def allocate_producer_id(self) -> int:
        async with self._producer_ids_lock:
            if not self._producer_ids:
                applied = await self._commit(
                    lambda state: AllocateProducerIds(
                        self._config.node_id, state.next_producer_id, PRODUCER_IDS_PER_BLOCK
                    )
                )
                block = applied.command
                assert isinstance(block, AllocateProducerIds)
                self._producer_ids = range(block.first, block.first + block.count)
            producer_id = self._producer_ids[0]
            self._producer_ids = self._producer_ids[1:]
            return producer_id

    # the node's own

    async def register(self, node: Node) -> None:
        """Note the address that `node` advertises; no change is logged when it is the one known."""
        if self._state.node(node.node_id) == node:
            return
        await self._commit(lambda state: RegisterNode(node.node_id, node.host, node.port, node.rack))

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every change to topics from now on, after it was applied and before the one
        who asked for it hears of it. It must not block."""
        self._listeners.append(listener)

    def samples(self) -> Iterable[Sample]:
        yield Sample("mainstem_topics", "gauge", "Topics in the cluster", len(self._state.topics))
        yield Sample(
            "mainstem_partitions", "gauge", "Partitions in the cluster", self._state.partitions_total
        )
        yield Sample("mainstem_nodes", "gauge", "Nodes in the cluster", len(self._state.nodes))
        for result, count in (("applied", self._applied_count), ("refused", self._refused_count)):
            yield Sample(
                "mainstem_metadata_changes_total",
                "counter",
                "Changes to the metadata asked for",
                count,
                (("result", result),),
            )
        yield Sample("mainstem_metadata_snapshots_total", "counter", "Snapshots tried", self._snapshot_count)
        yield Sample("mainstem_metadata_log_bytes", "gauge", "Length of the metadata log", self._log.length)

    # the writer

    async def _commit(self, make: Callable[[MetadataState], Command]) -> Applied:
        """Have the writer make, check, log and apply a command."""
        return await self._by_the_writer(lambda: self._apply_logged(make))

    async def _together(
        self, make: Callable[[W, int], Command], wanted: Sequence[W], *, validate_only: bool = False
    ) -> list[Topic | MainstemError]:
        """Have the writer make, check, log and apply many commands, `TOGETHER_MAX` to a write. `make` gets what is
        wanted and how many were accepted before it since the state changed."""
        outcomes: list[Topic | MainstemError] = []
        for first in range(0, len(wanted), TOGETHER_MAX):
            part = wanted[first : first + TOGETHER_MAX]
            outcomes += await self._by_the_writer(partial(self._apply_together, make, part, validate_only))
        return outcomes

    async def _by_the_writer(self, work: Callable[[], Awaitable[R]]) -> R:
        if self._closing:
            raise MetadataUnavailable("the node is stopping and takes no more changes of the metadata")
        if self._changes.qsize() >= self._config.changes_waiting_max:
            raise MetadataUnavailable("too many changes of the metadata wait for the disk; try again")
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._changes.put_nowait(_Change(work, done))
        return await done

    async def _write(self) -> None:
        try:
            while (change := await self._changes.get()) is not None:
                if not change.done.done():
                    await self._answer(change)
                if self._log.wants_snapshot:
                    self._snapshot_count += 1
                    await self._log.snapshot(self._state.commands())
        except Exception:
            log.exception("the metadata takes no more changes")
        finally:
            self._closing = True
            while not self._changes.empty():
                left = self._changes.get_nowait()
                if left is not None and not left.done.done():
                    left.done.set_exception(MetadataUnavailable("the metadata takes no more changes"))

    async def _answer(self, change: _Change) -> None:
        """Make the change and resolve its future, whatever happens. What is no refusal ends the writer: after
        it, memory and log may differ."""
        try:
            outcome = await change.work()
        except Exception as error:
            self._refused_count += 1
            if not change.done.done():
                change.done.set_exception(error)
            if not isinstance(error, NameserverError):
                raise
        else:
            if not change.done.done():
                change.done.set_result(outcome)

    async def _apply_logged(self, make: Callable[[MetadataState], Command]) -> Applied:
        command = make(self._state)
        self._state.check(command)
        await self._log.append([command])
        return self._apply(command)

    async def _apply_together(
        self, make: Callable[[W, int], Command], wanted: Sequence[W], validate_only: bool
    ) -> list[Topic | MainstemError]:
        """Only the writer changes the state, so it stands still while this waits."""
        pending, commands = PendingChanges(), list[Command]()
        outcomes: list[Topic | MainstemError | None] = []
        for number, item in enumerate(wanted):
            try:
                command = make(item, len(commands))
                self._state.check(command, pending)
            except NameserverError as refusal:
                self._refused_count += 1
                outcomes.append(refusal)
            else:
                pending.add(command)
                commands.append(command)
                outcomes.append(None)
            if number % COMMANDS_PER_TURN == COMMANDS_PER_TURN - 1:
                await asyncio.sleep(0)
        if validate_only:
            made = iter([self._as_created(command) for command in commands])
            return [next(made) if outcome is None else outcome for outcome in outcomes]
        if commands:
            await self._log.append(commands)
        topics: list[Topic] = []
        for command in commands:
            topics.append(_topic_after(self._apply(command)))
            if len(topics) % COMMANDS_PER_TURN == 0:
                await asyncio.sleep(0)
        applied = iter(topics)
        return [next(applied) if outcome is None else outcome for outcome in outcomes]

    def _apply(self, command: Command) -> Applied:
        event = self._state.apply(command)
        self._applied_count += 1
        if event is not None:
            self._tell(event)
        return Applied(command, event)

    def _as_created(self, command: Command) -> Topic:
        assert isinstance(command, CreateTopic), "only creations are merely validated together"
        return topic_of(command, topic_settings(command.configs, self._config.topic_defaults))

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # the change stands; a follower's fault must not stop the metadata
                log.exception("a follower of the metadata failed on %s", type(event).__name__)

    # ids

    def _new_cluster(self, state: MetadataState) -> CreateCluster:
        groups = self._config.write_groups
        return CreateCluster(
            cluster_id=self._config.cluster_id or self._new_cluster_id(),
            write_groups=groups,
            slots=[slot % groups for slot in range(SLOTS)],
        )

    def _new_cluster_id(self) -> str:
        while True:
            text = base64.urlsafe_b64encode(self._new_uuid().bytes).decode().rstrip("=")
            if not text.startswith("-"):  # command lines would take it for an option
                return text

    def _new_uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._randomness.randbytes(16), version=4)


def _named(state: MetadataState, name: str) -> Topic:
    topic = state.topic(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name[:260]!r}")
    return topic


def _topic_after(applied: Applied) -> Topic:
    assert applied.event is not None, "changes of topics bring an event"
    return applied.event.topic


def _check_owner(state: MetadataState, config: NameserverConfig) -> None:
    if state.cluster is None:
        return
    found = state.cluster.cluster_id
    if config.cluster_id is not None and config.cluster_id != found:
        raise ForeignDirectory(
            f"the directory belongs to cluster {found}, the configuration says {config.cluster_id}"
        )
    node_ids = [node.node_id for node in state.nodes]
    if node_ids and config.node_id not in node_ids:
        raise ForeignDirectory(
            f"the directory belongs to node {node_ids[0]} of cluster {found}, "
            f"the configuration says node {config.node_id}"
        )
