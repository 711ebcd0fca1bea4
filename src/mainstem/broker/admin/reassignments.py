"""Judges which move a partition needs to have its replicas on the nodes that a client asks for. No I/O.

The replicas of a partition are those of its write group. So it moves to a write group that has its replicas on exactly
these nodes; where there is none, one is made there (`Reassignments.lacking`), and the request judged once more. If none
can be made, the client is told which there are. Partitions move with their slot: a request that
wants one partition of a slot here and another one there is told so of the second.

Of the list's order the first node counts, which is to lead, and only where there is a choice: a write group that has
this node as its preferred leader goes before others on the same nodes, the present one included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mainstem.broker.broker import Broker
from mainstem.model import FeatureLevel, MoveUnderWay, Topic, WriteGroupBurdens, slot_of
from mainstem.protocol.error_codes import ErrorCode

NODE_SETS_TOLD_MAX = 10
"""Sets of nodes that a refusal names: they fit on a few lines."""

NONE_MADE: Mapping[tuple[int, ...], str] = {}


class Judgement(NamedTuple):
    error: ErrorCode
    message: str | None = None


class WantedStay(NamedTuple):
    """A slot is to stay where it is: its move is taken back."""

    slot: int


class WantedMove(NamedTuple):
    """A slot is to move, for the sake of this partition, to one of these write groups."""

    slot: int
    topic: str
    partition: int
    groups: tuple[int, ...]


DONE = Judgement(ErrorCode.NONE)
UNKNOWN = Judgement(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
NOT_MOVING = Judgement(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)


Judged = Judgement | WantedMove | WantedStay


def _refused(why: str) -> Judgement:
    return Judgement(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)


class Reassignments:
    """Judges the partitions of one request, one after the other."""

    def __init__(
        self,
        broker: Broker,
        replica_moves: Sequence[MoveUnderWay],
        *,
        may_change_factor: bool,
        not_made: Mapping[tuple[int, ...], str] = NONE_MADE,
    ) -> None:
        """`replica_moves`: those that a cancellation may mean. `not_made`: by nodes, as `lacking` has them, why no
        write group could be made there."""
        self._not_made = not_made
        self.lacking: dict[tuple[int, ...], None] = {}
        """The nodes on which write groups are to be made, the one first that shall lead, the others in order; as they
        were asked for."""
        self._broker = broker
        self._replica_moves = {move.group: move for move in replica_moves}
        self._may_change_factor = may_change_factor
        self._storing = {node.node_id for node in broker.metadata.nodes() if node.stores}
        self._placements = broker.queue_moves.placements()
        self._under_way = broker.queue_moves.under_way()
        self._groups_on: dict[frozenset[int], list[int]] = {}
        for group, replicas in sorted(self._placements.items()):
            self._groups_on.setdefault(frozenset(replicas), []).append(group)
        self._staying: dict[int, str] = {}
        """Per slot the first partition that is asked for where it is."""
        self.wanted: dict[int, WantedMove] = {}
        """By slot."""
        self.asked: dict[int, list[tuple[str, int]]] = {}
        """By slot, the partitions for which this request names nodes, as few as those of `wanted`."""

    def judged(self, name: str, partition: int, replicas: tuple[int, ...] | None) -> Judged:
        """`replicas` None: a move is to be cancelled."""
        topic = self._broker.metadata.topic(name)
        if topic is None or not 0 <= partition < topic.partitions:
            return UNKNOWN
        queue_id = topic.queue_id(partition)
        slot, group = slot_of(queue_id), self._broker.leadership.group_of(queue_id)
        if replicas is None:
            return self._cancelled(slot, group)
        if fault := self._fault(replicas, self._placements.get(group, ())):
            return fault
        if slot in self._under_way:
            return self._asked_under_way(slot, group, replicas)
        groups = self._fitting(slot, group, replicas)
        if not groups:
            return self._without_group(topic, replicas)
        if group not in groups:
            self._note(slot, name, partition, replicas)
            return self._moved(WantedMove(slot, name, partition, groups))
        if slot in self.wanted:
            return _shared(slot, f"{self.wanted[slot].topic}:{self.wanted[slot].partition}")
        self._staying.setdefault(slot, f"{name}:{partition}")
        return DONE

    def _cancelled(self, slot: int, group: int) -> Judged:
        if slot in self._under_way:
            return WantedStay(slot)
        move = self._replica_moves.get(group)
        if move is None:
            return NOT_MOVING
        return Judgement(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"a replica of write group {group} {_way(move)}, with all of its partitions. Only what began that can end "
            "it: see mainstem cluster status, mainstem cluster drain NODE --cancel",
        )

    def _fault(self, replicas: tuple[int, ...], placed: Sequence[int]) -> Judgement | None:
        """Why no partition can have these replicas, or this one not by this request."""
        if not replicas or len(set(replicas)) < len(replicas):
            return _refused("replicas are on different nodes, and there is at least one")
        unknown = [node_id for node_id in replicas if node_id not in self._storing]
        if unknown:
            return _refused(f"node {unknown[0]} is not registered in this cluster, or does not store")
        if not self._may_change_factor and len(replicas) != len(placed):
            return Judgement(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"the replication factor would change from {len(placed)} to {len(replicas)}, which the request rules "
                "out",
            )
        return None

    def _asked_under_way(self, slot: int, group: int, replicas: tuple[int, ...]) -> Judged:
        """As in Kafka, who asks for the nodes that a partition leaves wants it to stay."""
        to = self._under_way[slot]
        nodes = self._placements.get(to, ())
        if set(nodes) == set(replicas):
            return DONE
        if set(self._placements.get(group, ())) == set(replicas):
            return WantedStay(slot)
        return Judgement(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"slot {slot} is on its way to write group {to}, on nodes {_numbers(nodes)}: wait until it is there, or "
            "cancel that first",
        )

    def _fitting(self, slot: int, present: int, replicas: tuple[int, ...]) -> tuple[int, ...]:
        """The write groups on exactly these nodes that suit best; some that cannot take the slot only if none can."""
        on_nodes = self._groups_on.get(frozenset(replicas), [])
        left = self._broker.queue_moves.left(slot)
        able = [group for group in on_nodes if group == present or group not in left] or on_nodes
        led = [group for group in able if self._placements[group][0] == replicas[0]]
        return tuple(led or able)

    def _without_group(self, topic: Topic, replicas: tuple[int, ...]) -> Judgement:
        """No write group has these nodes: one is made, if it would be of use."""
        nodes = (replicas[0], *sorted(replicas[1:]))
        if not self._is_at(level := topic.level_to_move):
            policy = ",".join(sorted(topic.settings.cleanup_policy))
            why = f"queues with cleanup.policy={policy} of {topic.name} move from feature level {level.value} on"
        elif (demanded := topic.settings.min_insync_replicas) > len(nodes):
            why = f"min.insync.replicas = {demanded} would refuse every batch with acks=all there"
        elif nodes in self._not_made:
            why = self._not_made[nodes]
        else:
            self.lacking.setdefault(nodes)
            why = ""
        return _refused(self._no_such_nodes(replicas) + (f". None was made there: {why}" if why else ""))

    def _is_at(self, level: FeatureLevel) -> bool:
        admin = self._broker.cluster_admin
        return admin is None or admin.feature_level >= level

    def _note(self, slot: int, name: str, partition: int, replicas: Sequence[int]) -> None:
        wanted = self.wanted.get(slot)
        if wanted is None or len(replicas) <= len(self._placements[wanted.groups[0]]):
            self.asked.setdefault(slot, []).append((name, partition))

    def _moved(self, move: WantedMove) -> Judgement | WantedMove:
        if move.slot in self._staying:
            return _shared(move.slot, self._staying[move.slot])
        other = self.wanted.setdefault(move.slot, move)
        if other.groups != move.groups:
            return _shared(move.slot, f"{other.topic}:{other.partition}")
        return other

    def _no_such_nodes(self, replicas: Sequence[int]) -> str:
        sets = sorted(sorted(nodes) for nodes in self._groups_on)
        told = "; ".join(map(_numbers, sets[:NODE_SETS_TOLD_MAX]))
        if len(sets) > NODE_SETS_TOLD_MAX:
            told += f"; and {len(sets) - NODE_SETS_TOLD_MAX} more"
        return (
            f"no write group has its replicas on nodes {_numbers(sorted(replicas))}, and a partition has those of its "
            f"write group. There are write groups on nodes {told}. mainstem cluster write-groups TOTAL "
            f"--replication-factor {len(replicas)} adds some, on nodes that hold least; mainstem cluster rebalance, "
            "drain and replace move replicas of write groups"
        )


def least_loaded(burdens: WriteGroupBurdens, wanted: Sequence[WantedMove]) -> list[int]:
    """For each move, which of its write groups takes it. Each queue counts as much as a queue of the cluster does on
    average, so that those of a request spread."""
    of_a_queue = sum(burdens.bytes_per_second.values()) / max(1, burdens.queues)
    taken: dict[int, int] = {}
    chosen = []
    for move in wanted:

        def burden(group: int) -> tuple[float, int, int]:
            more = taken.get(group, 0)
            bytes_per_second = burdens.bytes_per_second.get(group, 0.0) + more * of_a_queue
            return bytes_per_second, burdens.slots.get(group, 0) + more, group

        group = min(move.groups, key=burden)
        taken[group] = taken.get(group, 0) + 1
        chosen.append(group)
    return chosen


def _shared(slot: int, other: str) -> Judgement:
    return _refused(
        f"it shares slot {slot} with {other}, for which the request names other nodes, and all queues of a slot move "
        "together"
    )


def _way(move: MoveUnderWay) -> str:
    away = f"from node {move.old}" if move.old else ""
    there = f"to node {move.new}" if move.new else ""
    return " ".join(part for part in ("moves", away, there) if part)


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def under_way_to(before: Sequence[int], after: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """All replicas of a partition that moves from these nodes to those, the ones that come, and the ones that go."""
    coming = tuple(node_id for node_id in after if node_id not in before)
    going = tuple(node_id for node_id in before if node_id not in after)
    return (*after, *going), coming, going
