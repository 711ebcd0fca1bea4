"""The storage role of a node, opened: its disks, and its part in the write groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from mainstem.broker.queue_routing import QueueRouting
from mainstem.broker.topics.queue_care import QueueCare
from mainstem.model import FeatureLevel, QueueRange, Topic
from mainstem.nameserver.cluster.node_liveness import NodeState
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.disk.starts_file import StartsFile
from mainstem.nameserver.errors import FeatureLevelTooLow
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import (
    Event,
    PartitionsAdded,
    SlotWished,
    TopicCreated,
    TopicDeleted,
    WriteGroupsAdded,
)
from mainstem.node.broker_role.compute import BrokersStore
from mainstem.node.config import NodeConfig
from mainstem.node.roles_setup import RolesSetup
from mainstem.node.storage_role.served_write_groups import ServedWriteGroups
from mainstem.node.storage_role.store_directory import MANIFEST_NAME, StoreUnsupported
from mainstem.ports import ForwardedClients, QueueAdmin, TransactionMarkers, TransactionVerification
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.other_nodes import CallsWithBytes
from mainstem.storage.cluster.leader_balance import LeaderBalance
from mainstem.storage.cluster.membership_steps import MembershipSteps
from mainstem.storage.cluster.queue_leadership import WriteGroupLeadership
from mainstem.storage.cluster.slot_mover import MetadataOfMoves, Wish
from mainstem.storage.cluster.write_group_replication import Consensus
from mainstem.storage.object_stores.guards.read_only import ReadOnlyStore
from mainstem.storage.object_stores.store_folder import StoreFolder
from mainstem.storage.object_stores.urls import parsed_url
from mainstem.storage.queues.cluster_queue_admin import ClusterQueueAdmin
from mainstem.storage.role import Storage
from mainstem.storage.serving.broker_service import BrokerService
from mainstem.storage.serving.tail_sessions import TailSessions
from mainstem.storage.serving.transaction_service import TransactionService
from mainstem.storage.setup import StorageSetup
from mainstem.storage_link.leader_calls import LeaderCalls
from mainstem.storage_link.leader_transactions import LeaderTransactionMarkers
from mainstem.storage_link.remote_message_store import RemoteMessageStore

JOURNAL_DIRECTORY = "journal"

NODE_ALONE = 1
"""Raft numbers members from 1: a node 0, which can only be a cluster of its own, goes by this number."""


@dataclass(frozen=True, slots=True)
class HeldStorage:
    """Storage of this node, with what others ask it. `open` makes it, and `start` has it take part in the cluster."""

    storage: Storage
    leadership: WriteGroupLeadership
    queue_admin: QueueAdmin
    served: ServedWriteGroups
    next_leaders: RemoteMessageStore | None
    """The way of what clients still send to a former leader; None on a node alone."""
    _setup: RolesSetup
    _nameserver: Nameserver

    @classmethod
    async def open(cls, setup: RolesSetup, starts: StartsFile, nameserver: Nameserver) -> HeldStorage:
        """Recover from the disks. Raises a `MainstemError` that names the obstacle."""
        served = ServedWriteGroups(nameserver.lookups.topics, nameserver.lookups.was_deleted, nameserver.waits.current)
        if setup.config.shares_store:
            await _check_level(setup.config, nameserver)
        storage = await Storage.open(_storage_setup(setup, nameserver, _consensus(setup, starts, nameserver, served)))
        setup.stack.push_async_callback(storage.close)
        _register(storage, setup.ports.handlers)
        setup.watch.storage_opened(storage)
        leadership = WriteGroupLeadership(
            setup.config.node_id,
            storage.placement,
            storage.groups,
            nameserver.lookups.heard,
            nameserver.lookups.placements,
        )
        queue_admin = _queue_admin(setup, nameserver, storage, leadership)
        next_leaders = _next_leaders(setup, nameserver, storage, leadership)
        nameserver.subscribe(partial(_grow, storage, queue_admin, next_leaders))
        lookups = nameserver.lookups  # write groups may have been added while the disks were read
        numbers, others = dict(lookups.moving_slots.numbers), dict(lookups.moving_slots.others)
        added = WriteGroupsAdded(lookups.placements(), lookups.slots(), numbers, others)
        _grow(storage, queue_admin, next_leaders, added)
        storage.mover.metadata = _metadata_of_moves(nameserver, has_objects=bool(setup.config.objects_url))
        return cls(storage, leadership, queue_admin, served, next_leaders, setup, nameserver)

    async def start(self, clients: ForwardedClients) -> None:
        """Take part in the write groups, and look after the queues of those that this node leads."""
        nameserver, storage, background = self._nameserver, self.storage, self._setup.background
        nameserver.when_found_late(storage.give_up)
        await storage.start()
        if nameserver.others is not None:
            BrokerService(
                storage.messages,
                storage.queues,
                self.leadership,
                clients,
                lacks_memory=storage.write_loop.lacks_memory,
                metadata_index=lambda: nameserver.replica.applied_index,
            ).register(self._setup.ports.handlers)
            TailSessions(storage.messages, self.leadership, clients).register(self._setup.ports.handlers)
            TransactionService(storage.markers, storage.committed_reads, storage.messages, self.leadership).register(
                self._setup.ports.handlers
            )
        if nameserver.others is None:
            await self.served.settle(storage.queues)
        background.begin(partial(self.served.run, storage.queues), "served groups")
        if nameserver.others is not None:
            left_over = partial(storage.queues.left_over, nameserver.lookups.was_deleted)
            clock = self._setup.ports.clock

            async def lacking(topic: Topic | None) -> list[QueueRange]:
                return await storage.queues.lacking(nameserver.lookups.topics() if topic is None else [topic])

            care = QueueCare(
                nameserver.lookups, self.leadership, storage.messages, self.queue_admin, clock, left_over, lacking
            )
            nameserver.subscribe(partial(look_after, care))
            background.begin(care.run, "queue care")

    def for_broker(self) -> BrokersStore:
        """This storage as the broker of the same node works over it."""
        storage = self.storage
        routing = QueueRouting(self._setup.config.node_id, self._nameserver.lookups, self.leadership, apart=False)
        return BrokersStore(
            storage.messages,
            self.leadership,
            routing,
            self.queue_admin,
            self._markers(),
            storage.committed_reads,
            storage.agreed_clock,
            self.served.subscribe,
        )

    def verify_transactions(self, verification: TransactionVerification) -> None:
        """Ask these coordinators before the first batch of a transaction is appended to a queue that is led here."""
        self.storage.transaction_checks.verification = verification

    def _markers(self) -> TransactionMarkers:
        others, storage = self._nameserver.others, self.storage
        if others is None:
            return storage.markers
        leaders = LeaderCalls(_record_calls(others), self._nameserver.lookups.heard)
        return LeaderTransactionMarkers(storage.placement.group_of, leaders, self.leadership.leads, storage.markers)

    def balance(self) -> None:
        """From now on lead what this node should lead, and hand it over at a stop."""
        nameserver, storage, setup = self._nameserver, self.storage, self._setup
        if nameserver.others is None:
            return
        balance = LeaderBalance(
            setup.config.node_id,
            storage.groups,
            nameserver.lookups.preferred_leader,
            lambda node_id: nameserver.lookups.verdict(node_id).state is NodeState.ALIVE,
            lambda: storage.messages.refusing or storage.write_loop.out_of_space,
            setup.ports.clock,
            storage.repair.unfit,
        )
        steps = MembershipSteps(
            setup.config.node_id,
            storage.groups,
            nameserver.lookups.placements,
            lambda node_id: nameserver.lookups.verdict(node_id).state is NodeState.ALIVE,
            storage.replication.take_part,
            storage.departures.look,
            setup.ports.clock,
            storage.replication.founds,
            nameserver.lookups.guests,
            storage.mover.has_later,
            storage.mover.is_ahead,
        )
        setup.stack.push_async_callback(balance.hand_over)
        setup.background.begin(balance.run, "leader balance")
        setup.background.begin(steps.run, "membership steps")


async def _check_level(config: NodeConfig, nameserver: Nameserver) -> None:
    """Raises `StoreUnsupported` where the cluster's logs may not yet say what lies in a shared store. A new cluster
    begins at a level at which they may; this node may only not have heard of it."""
    if nameserver.lookups.feature_level < FeatureLevel.TIERED:
        await nameserver.waits.current()
    if (level := nameserver.lookups.feature_level) < FeatureLevel.TIERED:
        raise StoreUnsupported(
            f"store_dir = {config.store_dir!r}: a shared store takes feature level {FeatureLevel.TIERED}, "
            f"and the cluster is at {level}. A shared store begins with a new cluster whose nodes all read that "
            "level"
        )


def _consensus(setup: RolesSetup, starts: StartsFile, nameserver: Nameserver, served: ServedWriteGroups) -> Consensus:
    config, ports, others = setup.config, setup.ports, nameserver.others
    consensus = Consensus(
        node_id=config.node_id or NODE_ALONE,
        randomness=ports.randomness(),
        serving_changed=served.changed,
        founders=nameserver.lookups.founders,
        quorum_times=lambda: nameserver.lookups.quorum_times() or [ports.clock.now_ms()],
    )
    if others is None:
        return consensus
    return replace(
        consensus,
        exchange=others.exchange,
        calls=others.calls,
        forgotten=starts,
        placements=nameserver.lookups.placements,
        leader_heard=nameserver.lookups.write_group_leader,
        replicas=nameserver.lookups.placements(),
        leader_changed=lambda group, leader, term: nameserver.learned_leader(group, leader, term) if leader else None,
    )


def _storage_setup(setup: RolesSetup, nameserver: Nameserver, consensus: Consensus) -> StorageSetup:
    config, ports = setup.config, setup.ports
    remote_store, remote_url, remote_folder = None, "", ""
    if ports.remote_store is not None:
        remote_folder = nameserver.lookups.cluster_id()
        whole = ReadOnlyStore(ports.remote_store) if config.read_only else ports.remote_store
        remote_store = StoreFolder(whole, remote_folder)
        remote_url = str(parsed_url(config.objects_url).absolute())
    return StorageSetup(
        write_files=ports.write_files,
        store_files=ports.store_files,
        clock=ports.clock,
        config=config.storage,
        journal_config=config.journal,
        store_config=config.queue_store,
        manifest_path=str(ports.write_dir / MANIFEST_NAME),
        journal_path=str(ports.write_dir / JOURNAL_DIRECTORY),
        slots=nameserver.lookups.slots(),
        write_groups=nameserver.lookups.write_groups(),
        topics=nameserver.lookups.topics,
        was_deleted=nameserver.lookups.was_deleted,
        consensus=consensus,
        feature_level=lambda: nameserver.lookups.feature_level,
        side_work=ports.side_work,
        turns=setup.turns,
        supervision=setup.supervision,
        new_id=ports.new_uuid,
        remote_store=remote_store,
        topics_as_of=nameserver.lookups.topics_as_of,
        read_cache_config=config.read_cache,
        remote_url=remote_url,
        remote_folder=remote_folder,
        remote_config=config.object_store,
        shared=config.shares_store,
        read_only=config.read_only,
    )


def _register(storage: Storage, handlers: Handlers) -> None:
    """Answer what other nodes ask the storage role."""
    storage.snapshots.register(handlers)
    storage.departures.register(handlers)
    storage.remote_recovery.register(handlers)
    storage.rejoining.register(handlers)
    storage.stretch_giving.register(handlers)
    storage.damage.register(handlers)
    storage.losses.register(handlers)
    storage.producer_mending.register(handlers)


def _record_calls(others: ClusterPorts) -> CallsWithBytes:
    return others.record_calls if others.record_calls is not None else others.calls


def _next_leaders(
    setup: RolesSetup, nameserver: Nameserver, storage: Storage, leadership: WriteGroupLeadership
) -> RemoteMessageStore | None:
    """Has the storage pass on to the next leaders what clients send to this node while it hands over."""
    if nameserver.others is None:
        return None

    def led_here(group: int) -> bool:
        return leadership.leader(group) == setup.config.node_id

    def led_by_others(group: int) -> tuple[int, int]:
        nodes = leadership.replicas(group)
        return (-1 if nodes.leader == setup.config.node_id else nodes.leader), nodes.leader_epoch

    leaders = LeaderCalls(_record_calls(nameserver.others), led_by_others, led_here)
    messages = RemoteMessageStore(len(storage.groups), storage.placement.group_of, leaders, setup.ports.randomness())
    setup.stack.push_async_callback(messages.close)
    setup.stack.callback(storage.messages.hand_overs.close)
    storage.messages.hand_overs.next_leaders = messages
    return messages


def _queue_admin(
    setup: RolesSetup, nameserver: Nameserver, storage: Storage, leadership: WriteGroupLeadership
) -> QueueAdmin:
    if nameserver.others is None:
        return storage.queues
    queue_admin = ClusterQueueAdmin(
        storage.queues,
        setup.config.node_id,
        len(storage.groups),
        leadership.leader,
        nameserver.others.calls,
        setup.ports.clock,
        nameserver.waits.deleted,
    )
    queue_admin.register(setup.ports.handlers)
    return queue_admin


def _grow(storage: Storage, queue_admin: QueueAdmin, next_leaders: RemoteMessageStore | None, event: Event) -> None:
    """Listens to the nameserver: has the storage host more write groups, and move slots between them."""
    if isinstance(event, SlotWished):
        storage.mover.wake()
    if isinstance(event, WriteGroupsAdded):
        storage.grow(event.slots, len(event.placements), event.numbers, event.others)
        if isinstance(queue_admin, ClusterQueueAdmin):
            queue_admin.grow(len(event.placements))
        if next_leaders is not None:
            next_leaders.grow(len(event.placements))


def _metadata_of_moves(nameserver: Nameserver, *, has_objects: bool) -> MetadataOfMoves:
    """`has_objects`: whether files of the queue store lie in an object store, or may."""
    lookups, operations = nameserver.lookups, nameserver.operations

    def wishes() -> dict[int, Wish]:
        return {slot: Wish(*wish) for slot, wish in lookups.moving_slots.wishes.items()}

    async def moved(slot: int, wish: Wish, others: Sequence[int]) -> None:
        await operations.slot_moved(slot, wish.group, wish.number, others)

    async def settled(slot: int) -> None:
        await operations.slot_settled(slot, lookups.moving_slots.numbers[slot])

    async def begins(slot: int, wish: Wish) -> None:
        await operations.slot_move_begins(slot, wish.group, wish.number)

    def refused() -> str:
        """A broker without storage, that a client asked, and the metadata may not know of a shared store."""
        level = lookups.feature_level
        is_low = has_objects and level < FeatureLevel.STORED
        return str(FeatureLevelTooLow.of(level, FeatureLevel.STORED)) if is_low else ""

    def topic_refused(topic: Topic) -> str:
        """It may have been created in a slot that was to move already."""
        level, needed = lookups.feature_level, topic.level_to_move
        return str(FeatureLevelTooLow.of(level, needed)) if level < needed else ""

    return MetadataOfMoves(
        wishes, lambda: lookups.moving_slots.others, moved, settled, begins,
        lookups.placements if nameserver.others is not None else dict, lookups.guests, refused, topic_refused,
    )  # fmt: skip


def look_after(care: QueueCare, event: Event) -> None:
    """Listens to the nameserver: has the care check the queues of changed topics."""
    if isinstance(event, (TopicCreated, PartitionsAdded, TopicDeleted)):
        care.changed(event.topic)
