"""Slots that are kept fewer times than their class promises. No I/O.

A topic that is to have fewer copies takes its slots along, to write groups with fewer replicas. Other topics must not
lose copies by that:

- a slot is reduced only if all of its queues were asked to be, in one request (`check_named`);
- no topic that is created later has a queue in a reduced slot: it gets a number by which none hashes there
  (`number_beside`), and no topic gets more partitions there that has none there yet (`check_more_partitions`);
- slots without queues, as their topics were deleted, go back to where their class is once it has many reduced ones
  (`slot_to_restore`): before, they do no harm, and nodes copy a write group to take one back.

Which slots are reduced follows from where they are, or are about to be, and what their class has: nothing is written
down for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from mainstem.model import CLASSED, CLASSES_MAX, SLOTS, Topic, class_of, queue_id_of, slot_of
from mainstem.nameserver.errors import InvalidPartitions, InvalidPlacement, InvalidReplicationFactor
from mainstem.nameserver.state.plans.replica_classes import Factors

REDUCED_MAX = 256
"""Of the 4,096 slots of a class. With one in sixteen a topic of fifty partitions, as the internal ones have, finds a
number beside them within some 25 that are tried."""

RESTORED_FROM = 128
"""Reduced slots of a class, from which on those without queues go back: half of what there may be."""

QUEUES_TRIED_MAX = 200_000
"""Queues that are hashed to find a topic's number: they take 20 ms or so of the metadata leader's event loop."""

QUEUES_TRIED_FOR_ALL_MAX = 10 * QUEUES_TRIED_MAX
"""The same for all topics of one request: ten of a width that no number has room for are looked for in earnest, and
thousands that find theirs at once."""

_SPREAD = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF
_SLOT_SHIFT = 64 - (SLOTS - 1).bit_length()
"""The steps of `model.slot_of`, from each partition to the next."""

NONE_REDUCED: frozenset[int] = frozenset()


def first_in(slots: Collection[int], number: int, partitions: range) -> int | None:
    """The first of these partitions of a topic that hashes to one of the slots."""
    if not slots or not partitions:
        return None
    base = class_of(number) * SLOTS
    spread = queue_id_of(number, partitions.start) * _SPREAD & _MASK
    for partition in partitions:
        if base + (spread >> _SLOT_SHIFT) in slots:
            return partition
        spread = spread + _SPREAD & _MASK
    return None


def check_named(slot: int, topics: Iterable[Topic], named: Collection[tuple[str, int]], copies: int) -> None:
    """Raises `InvalidPlacement` if a slot that is about to have so many copies, fewer than now, has a queue for which
    nobody asked that, or whose topic asks for more copies of each batch (min.insync.replicas)."""
    which, wanted = slot // SLOTS, {slot}
    for topic in topics:
        if class_of(topic.number) != which:
            continue
        partition = first_in(wanted, topic.number, range(topic.partitions))
        while partition is not None:
            if (topic.name, partition) not in named:
                raise InvalidPlacement(
                    f"slot {slot} has partition {partition} of topic {topic.name!r} as well, and all queues of a slot "
                    f"move together: it would be kept {copies} times though nobody asked for that. Ask for both in one "
                    "request, or leave both"
                )
            if (demanded := topic.settings.min_insync_replicas) > copies:
                raise InvalidPlacement(
                    f"topic {topic.name!r} has min.insync.replicas = {demanded}, and would be kept {copies} times: "
                    "every batch with acks=all would be refused. Change that first"
                )
            partition = first_in(wanted, topic.number, range(partition + 1, topic.partitions))


def check_room(slot: int, reduced: Collection[int]) -> None:
    """Raises `InvalidPlacement` if no other slot of this one's class can be reduced."""
    which = slot // SLOTS
    if sum(other // SLOTS == which for other in reduced if other != slot) >= REDUCED_MAX:
        raise InvalidPlacement(
            f"{REDUCED_MAX} of {SLOTS} slots are kept fewer times already than topics ask for that are created here, "
            "and no more can be: topics that are created with the smaller replication factor have slots of their own"
        )


def number_beside(reduced: Collection[int], number: int, partitions: int, queues_max: int) -> tuple[int, int]:
    """The first number from this one on, of the same class, by which no queue of a new topic is in one of these slots;
    this one if none is found by hashing so many queues, which `check_new_topic` refuses. And how many were hashed in
    vain."""
    step = CLASSES_MAX if number >= CLASSED else 1
    tried, candidate = 0, number
    while tried < queues_max:
        met = first_in(reduced, candidate, range(partitions))
        if met is None:
            return candidate, tried
        tried += met + 1
        candidate += step
    return number, tried


def check_new_topic(name: str, number: int, partitions: int, reduced: Collection[int]) -> None:
    """Raises `InvalidReplicationFactor` for a new topic with a queue in a reduced slot."""
    if (partition := first_in(reduced, number, range(partitions))) is not None:
        raise InvalidReplicationFactor(
            f"topic {name!r}: of its {partitions} partitions some, like {partition}, would be in one of "
            f"{len(reduced)} slots that are kept fewer times for the sake of other topics (mainstem topic alter TOPIC "
            "--replication-factor N): give these their copies again, or ask for fewer partitions"
        )


def check_more_partitions(topic: Topic, total: int, reduced: Collection[int]) -> None:
    """Raises `InvalidPartitions` if a topic would get a partition in a reduced slot where it has none yet."""
    partition = first_in(reduced, topic.number, range(topic.partitions, total))
    while partition is not None:
        slot = slot_of(topic.queue_id(partition))
        if first_in({slot}, topic.number, range(topic.partitions)) is None:
            raise InvalidPartitions(
                f"partition {partition} of topic {topic.name!r} would be in slot {slot}, which is kept fewer times for "
                "the sake of another topic: give that its copies again (mainstem topic alter TOPIC "
                "--replication-factor N), or stay with fewer partitions"
            )
        partition = first_in(reduced, topic.number, range(partition + 1, total))


def slot_to_restore(
    reduced: Collection[int],
    waiting: Collection[int],
    slots: Sequence[int],
    placements: Mapping[int, Sequence[int]],
    factors: Factors,
    topics: Iterable[Topic],
) -> tuple[int, int] | None:
    """A reduced slot that has no queue any more, and the write group of its class that it goes back to. None: each has
    one, or is `waiting` for something else, or there are few."""
    of_class = Counter(slot // SLOTS for slot in reduced)
    empty = {slot for slot in reduced if slot not in waiting and of_class[slot // SLOTS] >= RESTORED_FROM}
    for topic in topics:
        if not empty:
            return None
        while (partition := first_in(empty, topic.number, range(topic.partitions))) is not None:
            empty.discard(slot_of(topic.queue_id(partition)))
    for slot in sorted(empty):
        which = slot // SLOTS
        held = Counter(slots[which * SLOTS : (which + 1) * SLOTS])
        whole = [group for group, nodes in placements.items() if len(nodes) == factors[which] and group in held]
        if whole:
            return slot, min(whole, key=lambda group: (held[group], group))
    return None
