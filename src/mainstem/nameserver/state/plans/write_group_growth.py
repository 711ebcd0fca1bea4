"""How a cluster comes to more write groups: which nodes begin them, and which slots they take over. No I/O.

A slot moves only while no queue hashes to it, and only to a write group that comes with the same command. So nobody can
append to a queue in two write groups, however far nodes lag behind in the metadata: whoever knows a queue of such a
slot heard of the queue later than of the slot, and whoever leads the new write group has heard of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from mainstem.model import SLOTS, Location, Topic, slot_of
from mainstem.nameserver.errors import InvalidPlacement
from mainstem.nameserver.state.commands import AddWriteGroups
from mainstem.nameserver.state.plans.replica_placement import place_write_groups

WRITE_GROUPS_MAX = 256
"""Write groups that a cluster can grow to. Each costs every node that has it ten heartbeats a second and an open block;
beyond some dozens, more of them spread nothing that was not spread before."""


def used_slots(topics: Iterable[Topic]) -> set[int]:
    """The slots to which queues of these topics hash. Few queues are looked at where there are many: once all slots are
    used, nothing is left to find out."""
    used: set[int] = set()
    for topic in topics:
        first = topic.queue_id(0)
        for queue_id in range(first, first + topic.partitions):
            used.add(slot_of(queue_id))
            if len(used) == SLOTS:
                return used
    return used


def grown(
    total: int,
    slots: Sequence[int],
    used: Collection[int],
    placements: Mapping[int, Sequence[int]],
    locations: Mapping[int, Location],
    replicas: int,
) -> AddWriteGroups:
    """The command after which there are `total` write groups; `locations` names the nodes that can begin new ones.
    Raises `InvalidPlacement`."""
    first = len(placements)
    check_total(total, first)
    if len(locations) < replicas:
        raise InvalidPlacement(
            f"a write group takes {replicas} nodes that store, live and are not drained, and there are "
            f"{len(locations)}: start the others first"
        )
    new = place_write_groups(total - first, locations, replicas, placements)
    return AddWriteGroups(first, new, _spread(slots, used, first, total))


def check_total(total: int, present: int) -> None:
    """Raises `InvalidPlacement` for a number of write groups that the cluster cannot grow to."""
    if total <= present:
        raise InvalidPlacement(f"the cluster has {present} write groups: it can have more, not {total}")
    if total > WRITE_GROUPS_MAX:
        raise InvalidPlacement(f"a cluster grows to {WRITE_GROUPS_MAX} write groups, not to {total}")


def check_slots(command: AddWriteGroups, slots: Sequence[int], used: Collection[int]) -> None:
    """Raises `InvalidPlacement` for slots that must not move as the command says."""
    last = command.first + len(command.founders)
    for slot, (before, after) in enumerate(zip(slots, command.slots, strict=True)):
        if before == after:
            continue
        if slot in used:
            raise InvalidPlacement(f"slot {slot} has queues by now, and stays in write group {before}: try again")
        if not command.first <= after < last:
            raise InvalidPlacement(f"slot {slot} cannot move to write group {after}, which is none of the new ones")
    if lacking := set(range(command.first, last)).difference(command.slots):
        raise InvalidPlacement(
            f"every slot that could be given to write group {min(lacking)} has queues, which cannot move to another "
            "write group: fewer new ones may find slots"
        )


def _spread(slots: Sequence[int], used: Collection[int], first: int, total: int) -> list[int]:
    """The slots as they are spread over `total` write groups: each new one takes unused slots from those that have more
    than their share, as evenly as these have some."""
    share = SLOTS // total
    left = Counter(slots)
    after = list(slots)
    new = list(range(first, total))
    held = Counter[int]()
    for slot, group in enumerate(slots):
        if slot in used or left[group] <= share:
            continue
        taker = min(new, key=lambda it: (held[it], it))
        if held[taker] >= share:
            break
        left[group] -= 1
        held[taker] += 1
        after[slot] = taker
    return after
