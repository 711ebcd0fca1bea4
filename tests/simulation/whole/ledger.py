"""The requests and answers of clients, beyond records: topics, log starts, committed offsets, producer ids. And what
therefore must hold.

H: a group's committed offset never goes back. Each (group, partition) has one committer, which commits growing offsets,
one after the other, and repeats one until it is acknowledged; so whoever asks must be told at least what had been
acknowledged, or told to anybody, when he began to ask, and nothing that nobody has tried to commit. If members commit,
the owner of a partition is the one committer: in a generation each has what its one leader assigned, and nobody else
has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tests.simulation.cluster.history import History, QueueHistory
from tests.simulation.oracle import require

from mainstem.model import Topic, partition_of, topic_number_of

NOTHING = -1


@dataclass
class TopicFate:
    topic: Topic
    unwanted: bool = False
    """Somebody has asked for its deletion."""
    gone: bool = False
    """Somebody was told that it is deleted."""
    wanted_starts: dict[int, int] = field(default_factory=dict)
    """Partition → the highest log start that anybody asked for."""
    told_starts: dict[int, int] = field(default_factory=dict)
    """Partition → the highest log start that somebody was told to be done."""


@dataclass
class CommittedOffset:
    tried: int = NOTHING
    acknowledged: int = NOTHING
    told: int = NOTHING

    @property
    def floor(self) -> int:
        return max(self.acknowledged, self.told)


@dataclass
class Generation:
    """Of a consumer group, as its members were told of it."""

    mark: bytes
    shares: dict[str, list[tuple[str, int]]] = field(default_factory=dict)


Place = tuple[str, UUID, int]
"""Group, topic, partition."""


class Ledger:
    def __init__(self, history: History, now_ms: Callable[[], int], off: Callable[[], tuple[int, int]]) -> None:
        """`now_ms`: the true time of day; `off`: how far a majority's clocks may have been behind and ahead of it."""
        self.fates: dict[UUID, TopicFate] = {}
        self.by_number: dict[int, TopicFate] = {}
        self.offsets: dict[Place, CommittedOffset] = {}
        self.producer_ids: set[int] = set()
        self.generations: dict[tuple[str, int], Generation] = {}
        self.newest_generations: dict[str, int] = {}
        self._history = history
        self._now_ms = now_ms
        self._off = off
        history.may_move = self._may_move
        history.may_delete = self._may_delete

    # --- topics -------------------------------------------------------------------------------------------

    def created(self, topic: Topic) -> None:
        """Some node's metadata has this topic."""
        known = self.by_number.get(topic.number)
        if known is None:
            self.fates[topic.topic_id] = self.by_number[topic.number] = TopicFate(topic)
            return
        before = known.topic
        require(
            (before.topic_id, before.name) == (topic.topic_id, topic.name), f"two topics {topic.number}: {before}", "J"
        )

    def deleted(self, topic: Topic) -> None:
        """Some node's metadata has it no more."""
        require(self.by_number[topic.number].unwanted, f"topic {topic.name} is deleted, which nobody wanted", "M")

    def unwanted(self, topic_id: UUID) -> None:
        """Somebody asks for the deletion of a topic."""
        fate = self.fates[topic_id]
        fate.unwanted = True
        self._history.forsaken.add(fate.topic.number)

    def kept(self) -> list[Topic]:
        """Topics whose deletion nobody has asked for."""
        return [fate.topic for fate in self.fates.values() if not fate.unwanted]

    def _may_delete(self, number: int) -> None:
        fate = self.by_number.get(number)
        require(fate is not None and fate.unwanted, f"queues of topic {number} are deleted, which nobody wanted", "M")

    # --- log starts ---------------------------------------------------------------------------------------

    def wants_start(self, topic_id: UUID, partition: int, start: int) -> None:
        starts = self.fates[topic_id].wanted_starts
        starts[partition] = max(start, starts.get(partition, 0))

    def told_start(self, topic_id: UUID, partition: int, start: int) -> None:
        starts = self.fates[topic_id].told_starts
        starts[partition] = max(start, starts.get(partition, 0))

    def _may_move(self, queue: QueueHistory, start: int) -> None:
        fate = self.by_number[topic_number_of(queue.queue_id)]
        if fate.topic.internal:  # its writer cuts it
            return
        wanted = fate.wanted_starts.get(partition_of(queue.queue_id), 0)
        if start <= wanted:
            return
        what = f"queue {queue.queue_id:#x}: log start {start}"
        settings, (behind_ms, ahead_ms) = fate.topic.settings, self._off()
        oldest_kept_ms = self._now_ms() + ahead_ms - settings.retention_ms
        first, last = queue.place(max(queue.log_start, wanted)), queue.place(start - 1)
        require(queue.batches[last].end == start, f"{what}: inside a batch, moved by nobody", "M")
        require("delete" in settings.cleanup_policy, f"{what}: the topic is not to be deleted from", "M")
        left_bytes = sum(kept.length for kept in queue.batches[last + 1 :])
        outnumbered = 0 <= settings.retention_records <= queue.batches[-1].end - start
        for kept in reversed(queue.batches[first : last + 1]):
            aged = kept.is_marker or kept.max_timestamp + behind_ms < oldest_kept_ms
            expired = settings.retention_ms >= 0 and aged
            surplus = settings.retention_bytes >= 0 and left_bytes >= settings.retention_bytes
            require(
                expired or surplus or outnumbered,
                f"{what}: by a majority's clocks retention had no reason yet to remove {kept[:3]}",
                "T",
            )
            left_bytes += kept.length

    # --- committed offsets (H) ----------------------------------------------------------------------------

    def offset(self, place: Place) -> CommittedOffset:
        return self.offsets.setdefault(place, CommittedOffset())

    def committing(self, place: Place, offset: int) -> None:
        kept = self.offset(place)
        kept.tried = max(kept.tried, offset)

    def committed(self, place: Place, offset: int) -> None:
        self._history.note("committed", *place, offset)
        kept = self.offset(place)
        kept.acknowledged = max(kept.acknowledged, offset)

    def check_offset(self, what: str, place: Place, floor: int, offset: int) -> None:
        """Somebody was told that this offset is committed; `floor`: what was known when he began to ask."""
        self._history.note("told", *place, offset)
        kept = self.offset(place)
        unwanted = self.fates[place[1]].unwanted
        group, _, partition = place
        what = f"{what}: committed offset of {group} in partition {partition}"
        require(offset >= floor or (unwanted and offset == NOTHING), f"{what} went back to {offset} from {floor}", "H")
        require(offset <= kept.tried, f"{what} is {offset}, tried was {kept.tried}", "H")
        if not unwanted:
            kept.told = max(kept.told, offset)

    # --- generations of consumer groups (H) --------------------------------------------------------------

    def assigned(
        self, group: str, generation: int, member_id: str, mark: bytes, places: Sequence[tuple[str, int]]
    ) -> None:
        """A member is told what it owns, as (topic, partition); `mark` is of the leader that handed it in."""
        self._history.note("assigned", group, generation, member_id, *places)
        what = f"group {group}, generation {generation}: member {member_id}"
        self.newest_generations[group] = max(generation, self.newest_generation(group))
        known = self.generations.setdefault((group, generation), Generation(mark))
        require(known.mark == mark, f"{what} is told what another leader assigned", "H")
        before = known.shares.setdefault(member_id, list(places))
        require(before == list(places), f"{what} owns {places}, it was told {before}", "H")
        for other, share in known.shares.items():
            both = set(share) & set(places) if other != member_id else set()
            require(not both, f"{what} owns {both}, and so does {other}", "H")

    def newest_generation(self, group: str) -> int:
        """The last of which any member was told what it owns; -1: none."""
        return self.newest_generations.get(group, -1)

    # --- producer ids -------------------------------------------------------------------------------------

    def new_producer(self, producer_id: int) -> None:
        require(producer_id not in self.producer_ids, f"producer id {producer_id} was handed out twice", "D")
        self.producer_ids.add(producer_id)
