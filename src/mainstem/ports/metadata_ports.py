"""The metadata: topics, nodes and who leads what, and the changes that may be asked of them."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from mainstem.errors import MainstemError
from mainstem.model import (
    MoveUnderWay,
    NewTopic,
    Node,
    QuorumStanding,
    ResourceType,
    ScramChange,
    ScramCredential,
    ScramMechanism,
    Topic,
    WriteGroupBurdens,
    WriteGroupNodes,
)

if TYPE_CHECKING:
    from numpy import int64, uint64
    from numpy.typing import NDArray


class Metadata(Protocol):
    """The node's own view of the cluster's metadata: synchronous, always at hand."""

    def topic(self, name: str) -> Topic | None: ...

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None: ...

    def topics(self) -> Iterable[Topic]: ...

    def nodes(self) -> Sequence[Node]: ...

    def cluster_id(self) -> str: ...


class QueueLeadership(Protocol):
    """The leaders of the queues' write groups, and the nodes of their replicas, as this node knows them."""

    def group_of(self, queue_id: int) -> int:
        """The write group of a queue, whether or not it exists."""
        ...

    def groups_of(self, queue_ids: NDArray[uint64]) -> NDArray[int64]:
        """The write groups of these queues, in their order."""
        ...

    def has_moved(self, queue_id: int) -> bool:
        """Whether a queue was in another write group before, or queues of the same slot were."""
        ...

    def replicas(self, group: int) -> WriteGroupNodes: ...

    def leads(self, group: int) -> bool:
        """Whether this node leads a write group and has applied all that was committed before it did: appends to it are
        taken here, and what is committed in it is known here first."""
        ...

    def serves_here(self, queue_id: int) -> bool:
        """Whether clients bring a queue's requests to this node, whether or not the queue exists. A node with replicas
        serves the queues of the write groups that it leads; a broker without any serves queues that others lead."""
        ...

    async def confirm(self, group: int) -> None:
        """Return once a majority has confirmed, after the call, that this node leads a write group: no client
        was told anything before the call that this node has not applied. Raises `errors.LeaderMissing` when
        it does not lead, or no majority confirms it for seconds."""
        ...


class LeadershipHealth(Protocol):
    """How well the write groups do in which this node takes part, in sum."""

    @property
    def leaderless(self) -> bool:
        """Whether this node knows of no leader in any of the write groups in which it takes part."""
        ...

    def in_sync_fewest(self, classes: Collection[int]) -> int:
        """The number of in-sync replicas of that write group of these classes led here which has the fewest; 0 when
        this node leads none."""
        ...


class FollowerProgress(Protocol):
    """How near the replicas of the write groups that this node leads are to it."""

    def abreast(self) -> Mapping[int, Sequence[int]]:
        """For each write group that this node leads, the other nodes whose replicas lack hardly anything of what is
        committed; first the one that has most."""
        ...


class BrokerLeadership(QueueLeadership, LeadershipHealth, FollowerProgress, Protocol):
    """All that a broker asks about leaders."""


class Cluster(Protocol):
    """The nodes, as the metadata's leader sees them and this node has heard."""

    def alive_nodes(self) -> Sequence[Node]:
        """The brokers that are not held for dead: where clients may go."""
        ...

    @property
    def metadata_leader(self) -> int:
        """The node id of the metadata's leader; -1 when none is known."""
        ...

    @property
    def out_of_touch(self) -> bool:
        """Whether this node has not heard from the metadata's leader for longer than a heartbeat may be late:
        its knowledge of the others may be outdated."""
        ...


class ClusterStanding(Protocol):
    """How the cluster stands, as the leaders of the metadata and of the write groups tell when they are asked. Raises a
    `MainstemError` when nobody tells."""

    async def metadata_quorum(self) -> QuorumStanding: ...

    async def moves(self) -> Sequence[MoveUnderWay]:
        """The replicas of write groups that are on their way; none of a write group whose leader does not answer."""
        ...

    def placed(self, group: int) -> tuple[int, ...]:
        """The nodes that shall have the replicas of a write group, the one that shall lead it first."""
        ...

    async def lead(self, group: int, node_id: int) -> None:
        """Ask the leader of a write group to hand over to a node that is alive and in sync; a `MainstemError` says why
        it cannot. Whether that node takes over shows a moment later."""
        ...

    def address(self, node_id: int) -> tuple[str, int] | None:
        """The address at which other nodes reach a node; None: it has none."""
        ...


class ClusterAdmin(Protocol):
    """Changes to the cluster as a whole. Each raises a `nameserver` error when refused; durable when it returns."""

    @property
    def feature_level(self) -> int:
        """The level at which the cluster may write."""
        ...

    @property
    def version(self) -> int:
        """A counter that goes up with every change of the metadata that this node has applied."""
        ...

    async def raise_feature_level(self, level: int, *, validate_only: bool = False) -> None:
        """Have the cluster write at this level from now on; with `validate_only`, ask the nodes alone that answer."""
        ...

    async def remove_node(self, node_id: int) -> None:
        """Take a node that is drained and dead out of the cluster for good."""
        ...


class QueueMoves(Protocol):
    """Moves of queues from one write group to another, slot by slot: all queues of a slot move together."""

    def placements(self) -> Mapping[int, tuple[int, ...]]:
        """Per write group the nodes that shall have its replicas, the one that shall lead it first."""
        ...

    def under_way(self) -> Mapping[int, int]:
        """Per slot that is to move, its next write group."""
        ...

    def left(self, slot: int) -> Collection[int]:
        """The write groups that may still have records of a slot's queues, besides the one in which it is. The slot
        does not come back there as long as that is so."""
        ...

    async def burdens(self) -> WriteGroupBurdens: ...

    async def move(self, topic: str, partition: int, group: int, beside: Sequence[tuple[str, int]] = ()) -> None:
        """Have the slot of a partition move. It begins at once and goes on by itself, whoever is started anew; a
        `nameserver` error says why it cannot. `beside`: other partitions that may have as few copies as that write
        group keeps; others of the slot must not lose any."""
        ...

    async def make_group(self, node_ids: Sequence[int]) -> None:
        """Have a write group begin on exactly these nodes, of which the first one shall lead it; a `nameserver` error
        says why none can."""
        ...

    async def take_back(self, slot: int) -> None:
        """Have a slot stay where it is that has not begun to move; a `nameserver` error says why it cannot."""
        ...


class MetadataAdmin(Protocol):
    """Changes to the metadata. Each raises a `nameserver` error when refused; durable when it returns."""

    async def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        *,
        validate_only: bool = False,
        internal: bool = False,
    ) -> Topic: ...

    async def create_topics(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[Topic | MainstemError]:
        """Create many topics with one write to the disk. One entry per wanted topic, in their order: the
        topic, or why it is refused. Raises an error that refuses all of them."""
        ...

    async def delete_topics(self, names: Sequence[str]) -> list[Topic | MainstemError]:
        """Delete many topics with one write to the disk; as `create_topics`, with the topics as they were."""
        ...

    async def create_partitions(self, name: str, total: int, *, validate_only: bool = False) -> Topic: ...

    async def alter_configs(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        """Set (value) or remove (None) topic configs; list operations are resolved by the caller."""
        ...

    async def allocate_producer_id(self) -> int:
        """A producer id that was never given out before."""
        ...


class ResourceConfigs(Protocol):
    """The configs that are set for client metrics, consumer groups and brokers, as this node knows them, and changes
    of these."""

    def of(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        """All that is set for a resource: of brokers the name is an id, or empty for all of them."""
        ...

    def names(self, kind: ResourceType) -> Sequence[str]:
        """The resources of a kind for which something is set."""
        ...

    def version(self) -> object:
        """Another object after every change."""
        ...

    async def change(
        self, kind: ResourceType, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set (value) or remove (None) configs, durably when it returns. Raises a `nameserver` error that refuses all
        of them."""
        ...


class Credentials(Protocol):
    """The users that the cluster keeps credentials of, as this node knows them, and changes of these."""

    def scram_credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """None: the user has none for this mechanism."""
        ...

    def scram_users(self) -> Mapping[str, Sequence[ScramCredential]]:
        """The credentials of all users, by user. The mapping is live: copy it before an await."""
        ...

    def absent_users_secret(self) -> bytes:
        """The secret that credentials of users that do not exist are made up with: the same on all nodes, and known to
        nobody else; empty as long as there has been no user."""
        ...

    async def change_scram(self, changes: Sequence[ScramChange], *, first: bool = False) -> list[MainstemError | None]:
        """Set and remove credentials, durably when it returns; `first`: only if the cluster has never had a user. Per
        change, in their order, why it is refused, or None.
        Raises an error that refuses all of them."""
        ...
