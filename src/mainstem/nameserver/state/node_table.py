"""The nodes of the metadata state, and the nodes that hold each write group's replicas. No I/O.

Invariant: a write group's replicas are on different nodes, all of them registered with the role of storage. The
program of each can work at the cluster's feature level (`check_levels_of`, `check_own_levels`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mainstem.model import ALL_ROLES, LevelRange, ListenerAddress, Node, NodeRole
from mainstem.nameserver.errors import (
    InconsistentCommand,
    InvalidPlacement,
    InvalidRoles,
    NameserverError,
    NodeWasRemoved,
    UnreadableFeatureLevel,
)
from mainstem.nameserver.state.commands import (
    INCARNATION_BYTES,
    AddWriteGroups,
    Command,
    MoveReplica,
    NodeRegistered,
    NodeRemoved,
    PlaceWriteGroups,
    PreferLeader,
    RegisterNode,
    RemoveNode,
    SetDraining,
    WriteGroupsPlaced,
)

NODES_MAX = 1_000

REMOVED_MAX = 10_000
"""Ids of removed nodes that are remembered; those that were removed first are forgotten first."""


class NodeTable:
    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.registered: dict[int, RegisterNode] = {}
        self.placements: dict[int, tuple[int, ...]] = {}
        """Per write group its replicas' nodes, preferred leader first; empty until the write groups are
        placed."""
        self.founders: dict[int, tuple[int, ...]] = {}
        """Per write group that was added to those of the beginning, the nodes that began it."""
        self.draining: set[int] = set()
        """The nodes that give away what they hold, and those that have."""
        self.removed: dict[int, None] = {}
        """Ids of nodes that are no part of the cluster any more, in the order in which they were removed."""

    def with_role(self, role: NodeRole) -> list[Node]:
        """The nodes that have a role."""
        return [node for node in self.nodes.values() if role in node.roles]

    # before the log

    def check_node(self, command: RegisterNode) -> None:
        roles = _roles(command.roles)
        if NodeRole.STORAGE not in roles and (held := self.held_by(command.node_id)):
            raise InvalidRoles(
                f"node {command.node_id} cannot do without the role storage: it holds replicas of write groups "
                f"{', '.join(map(str, held[:10]))}{', …' if len(held) > 10 else ''}. Start it with the role, and have "
                f"another node take them over first: mainstem cluster replace {command.node_id} NODE"
            )
        if command.node_id in self.removed:
            raise NodeWasRemoved(removed_text(command.node_id))
        if command.node_id not in self.nodes and len(self.nodes) >= NODES_MAX:
            raise NameserverError(f"the cluster has {NODES_MAX} nodes already, the most it takes")
        if len(command.incarnation) not in (0, INCARNATION_BYTES):
            raise NameserverError(
                f"node {command.node_id}: an incarnation has {INCARNATION_BYTES} bytes, not {len(command.incarnation)}"
            )

    def held_by(self, node_id: int) -> list[int]:
        """The write groups of which a node has replicas."""
        return [group for group, replicas in sorted(self.placements.items()) if node_id in replicas]

    def check_placement(self, command: PlaceWriteGroups, write_groups: int) -> None:
        if self.placements:
            raise InvalidPlacement("the write groups are placed already; replicas are moved one by one")
        if len(command.replicas) != write_groups:
            raise InvalidPlacement(f"{len(command.replicas)} groups placed of {write_groups}")
        for group, replicas in enumerate(command.replicas):
            self._check_replicas(group, replicas)

    def check_added(self, command: AddWriteGroups) -> None:
        if command.first != len(self.placements):
            raise InvalidPlacement(f"the cluster has {len(self.placements)} write groups by now: try again")
        for group, replicas in enumerate(command.founders, command.first):
            self._check_replicas(group, replicas)
            if drained := self.draining.intersection(replicas):
                raise InvalidPlacement(f"node {min(drained)} is drained, and takes nothing")

    def check_move(self, command: MoveReplica) -> None:
        replicas = self.placements.get(command.group)
        if replicas is None:
            raise InvalidPlacement(f"write group {command.group} is not placed, or there is none of this number")
        if command.old not in replicas:
            held = ", ".join(map(str, replicas))
            raise InvalidPlacement(
                f"write group {command.group} has no replica on node {command.old}; it has them on {held}"
            )
        if command.new == command.old:
            raise InvalidPlacement(f"write group {command.group}: its replica is on node {command.old} already")
        if command.new in self.draining:
            raise InvalidPlacement(
                f"node {command.new} is drained, and takes nothing: mainstem cluster drain {command.new} --cancel"
            )
        self._check_replicas(command.group, _moved(replicas, command))

    def check_preference(self, command: PreferLeader) -> None:
        replicas = self.placements.get(command.group, ())
        if command.node_id not in replicas:
            held = ", ".join(map(str, replicas)) or "none"
            raise InvalidPlacement(
                f"write group {command.group} has no replica on node {command.node_id} that could lead it; it has them "
                f"on {held}"
            )
        if command.node_id in self.draining:
            raise InvalidPlacement(f"node {command.node_id} is drained, and is not to lead anything")

    def check_draining(self, command: SetDraining) -> None:
        if command.node_id not in self.nodes:
            raise InvalidPlacement(f"node {command.node_id} is not registered in this cluster")

    def check_removal(self, command: RemoveNode) -> None:
        node_id = command.node_id
        node = self.nodes.get(node_id)
        if node is None:
            again = "removed already" if node_id in self.removed else "not registered in this cluster"
            raise InvalidPlacement(f"node {node_id} is {again}")
        if held := self.held_by(node_id):
            raise InvalidPlacement(
                f"node {node_id} holds replicas of {len(held)} write groups (write group {held[0]}, …): have it give "
                f"them away first (mainstem cluster drain {node_id} --wait)"
            )
        if node_id not in self.draining and node.roles & {NodeRole.STORAGE, NodeRole.NAMESERVER}:
            raise InvalidPlacement(
                f"node {node_id} is not drained, and may get replicas: mainstem cluster drain {node_id} --wait"
            )

    def _check_replicas(self, group: int, replicas: Sequence[int]) -> None:
        unknown = [node_id for node_id in replicas if node_id not in self.nodes]
        if unknown:
            raise InvalidPlacement(f"write group {group}: node {unknown[0]} is not registered")
        for node_id in replicas:
            if not self.nodes[node_id].stores:
                raise InvalidPlacement(f"write group {group}: node {node_id} does not have the role storage")
        if not replicas or len(set(replicas)) != len(replicas):
            raise InvalidPlacement(
                f"write group {group}: its replicas must be on different nodes, not {list(replicas)}"
            )

    # after the log

    def register(self, command: RegisterNode) -> NodeRegistered:
        self.registered[command.node_id] = command
        self.nodes[command.node_id] = Node(
            node_id=command.node_id, host=command.host, port=command.port, rack=command.rack,
            machine=command.machine or None,
            endpoints=tuple(ListenerAddress(*each) for each in command.endpoints), roles=_roles(command.roles),
        )  # fmt: skip
        return NodeRegistered(command)

    def place(self, command: PlaceWriteGroups) -> WriteGroupsPlaced:
        self.placements = {group: tuple(replicas) for group, replicas in enumerate(command.replicas)}
        return WriteGroupsPlaced(dict(self.placements))

    def add(self, command: AddWriteGroups) -> None:
        """Place the write groups with those that begin them, unless they are placed: a snapshot places all first."""
        for group, replicas in enumerate(command.founders, command.first):
            self.founders[group] = tuple(replicas)
            self.placements.setdefault(group, tuple(replicas))

    def move(self, command: MoveReplica) -> WriteGroupsPlaced:
        replicas = self.placements.get(command.group, ())
        if command.old not in replicas:
            raise InconsistentCommand(f"write group {command.group} has no replica on node {command.old}")
        self.placements[command.group] = _moved(replicas, command)
        return WriteGroupsPlaced(dict(self.placements))

    def prefer(self, command: PreferLeader) -> WriteGroupsPlaced:
        replicas = self.placements.get(command.group, ())
        if command.node_id not in replicas:
            raise InconsistentCommand(
                f"write group {command.group} has no replica on node {command.node_id} to lead it"
            )
        others = (node_id for node_id in replicas if node_id != command.node_id)
        self.placements[command.group] = (command.node_id, *others)
        return WriteGroupsPlaced(dict(self.placements))

    def drain(self, command: SetDraining) -> None:
        if command.node_id not in self.nodes:
            raise InconsistentCommand(f"node {command.node_id} is drained before it is registered")
        if command.draining:
            self.draining.add(command.node_id)
        else:
            self.draining.discard(command.node_id)

    def remove(self, command: RemoveNode) -> NodeRemoved:
        node_id = command.node_id
        self.nodes.pop(node_id, None)
        self.registered.pop(node_id, None)
        self.draining.discard(node_id)
        self.removed.pop(node_id, None)
        self.removed[node_id] = None
        while len(self.removed) > REMOVED_MAX:
            del self.removed[next(iter(self.removed))]
        return NodeRemoved(node_id)

    # snapshots

    def commands(self) -> Iterator[Command]:
        commands: list[Command] = list(self.registered.values())
        if self.placements:
            commands.append(PlaceWriteGroups([list(self.placements[group]) for group in sorted(self.placements)]))
        commands += [SetDraining(node_id, draining=True) for node_id in sorted(self.draining)]
        commands += [RemoveNode(node_id) for node_id in self.removed]
        return iter(commands)


def removed_text(node_id: int) -> str:
    return (
        f"node {node_id} was removed from this cluster (mainstem cluster remove): to have its machine back, start it "
        "with another node_id and empty directories"
    )


def is_partial(command: RegisterNode) -> bool:
    """Whether the node has only some of the roles."""
    return _roles(command.roles) != ALL_ROLES


def _roles(names: Sequence[str]) -> frozenset[NodeRole]:
    """The roles by their names; all of them where none is named, as by version 0.1, whose nodes have all. Roles of
    later versions are passed over."""
    return frozenset(role for role in NodeRole if role in names) if names else ALL_ROLES


def _moved(replicas: Sequence[int], command: MoveReplica) -> tuple[int, ...]:
    return tuple(command.new if node_id == command.old else node_id for node_id in replicas)


def check_own_levels(level: int, own: LevelRange) -> None:
    """Raises `UnreadableFeatureLevel` where this program cannot work in a cluster at this level."""
    if level > own.newest:
        raise UnreadableFeatureLevel(
            f"the cluster is at feature level {level}, this program knows those up to {own.newest}: start this node "
            f"with the version that the others run; nothing was changed"
        )
    if level < own.oldest:
        raise UnreadableFeatureLevel(
            f"the cluster is at feature level {level}, this program works from level {own.oldest} on: start this node "
            f"with the version that the others run, and raise the level there first "
            f"(mainstem cluster feature-level --raise)"
        )


def check_levels_of(node_id: int, levels: LevelRange, level: int) -> None:
    """Raises `UnreadableFeatureLevel` where a node that wants to join cannot work at the cluster's level."""
    if not levels.includes(level):
        raise UnreadableFeatureLevel(
            f"the cluster is at feature level {level}, node {node_id} can work at {span(levels)}: start it with "
            f"the version that the others run"
        )


def span(levels: LevelRange) -> str:
    if levels.oldest == levels.newest:
        return f"level {levels.oldest} only"
    return f"levels {levels.oldest} to {levels.newest}"
