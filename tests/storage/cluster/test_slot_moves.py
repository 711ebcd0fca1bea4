"""A slot moves to another write group with its queues, while they are written, read, split and pruned, and whatever
step a crash ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated, topic

from mainstem.model import SLOTS, Outcome, slot_of
from mainstem.nameserver.errors import InvalidPlacement
from mainstem.storage.cluster import slot_mover
from mainstem.storage.cluster.slot_mover import WAIT_SECONDS, MetadataOfMoves, Wish
from mainstem.storage.errors import NotTheLeader
from mainstem.storage.placement import Stay
from mainstem.storage.write_groups import control

SLOT = slot_of(QUEUE)
OTHER = QUEUE + 1
HOME, AWAY, FAR = 0, 1, 2
PRODUCER = 77


def in_parts(node: SmallNode) -> None:
    """Three write groups, the queue of the tests in the first of them, its neighbour in the second."""
    node.groups = 3
    node.slots = [HOME if slot == SLOT else AWAY if slot == slot_of(OTHER) else FAR for slot in range(SLOTS)]


class Moves:
    """The metadata of a node whose slots move."""

    def __init__(self, node: SmallNode) -> None:
        self.node = node
        self.wishes: dict[int, Wish] = {}
        self.numbers: dict[int, int] = {}
        self.unsettled: dict[int, Sequence[int]] = {}
        self.told: list[tuple[int, int, list[int]]] = []
        self.notes_begins = False
        self.begun: list[tuple[int, Wish]] = []
        node.opened = self.opened

    def opened(self) -> None:
        self.node.storage.grow(self.node.slots or [], 3, self.numbers)
        self.node.storage.mover.metadata = MetadataOfMoves(
            lambda: self.wishes, lambda: self.unsettled, self.moved, self.settled, self.begins
        )

    async def begins(self, slot: int, wish: Wish) -> None:
        if self.wishes.get(slot) != wish:
            raise InvalidPlacement("not any more")
        self.begun.append((slot, wish))
        self.wishes[slot] = wish._replace(begun=True)

    async def moved(self, slot: int, wish: Wish, others: Sequence[int]) -> None:
        self.told.append((slot, wish.group, list(others)))
        self.numbers[slot] = wish.number
        slots = list(self.node.slots or [])
        slots[slot] = wish.group
        self.node.slots = slots
        del self.wishes[slot]
        self.unsettled[slot] = others
        self.node.storage.grow(slots, 3, self.numbers)

    async def settled(self, slot: int) -> None:
        self.unsettled.pop(slot, None)

    def wish(self, group: int) -> None:
        self.wishes[SLOT] = Wish(group, self.numbers.get(SLOT, 0) + 1, not self.notes_begins)
        self.node.storage.mover.wake()

    async def move(self, group: int) -> None:
        self.wish(group)
        while self.wishes:  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(0.01)


def moving(
    directory: Path,
    story: Callable[[SmallNode, Moves], Awaitable[None]],
    prepare: Callable[[SmallNode], None] = in_parts,
) -> None:
    async def told(node: SmallNode) -> None:
        moves = Moves(node)
        moves.opened()
        await story(node, moves)

    simulated(directory, told, prepare)


def histories(node: SmallNode) -> list[Stay]:
    return list(node.storage.placement.history(QUEUE))


async def numbered(node: SmallNode, first: int, count: int) -> list[int]:
    """Batches of an idempotent producer; their offsets."""
    found = []
    for sequence in range(first, first + count):
        (result,) = await node.append(new_batch(QUEUE, 300, producer=(PRODUCER, 0, sequence)))
        assert result.outcome is Outcome.OK, result
        found.append(result.base_offset)
    return found


def test_a_queue_goes_on_in_another_write_group_with_its_producers(tmp_path: Path) -> None:
    async def story(node: SmallNode, moves: Moves) -> None:
        assert await numbered(node, 0, 5) == [0, 1, 2, 3, 4]
        before = node.storage.groups[HOME].last_index
        await moves.move(AWAY)
        assert moves.told == [(SLOT, AWAY, [HOME])]
        assert histories(node) == [Stay(HOME, 0), Stay(AWAY, 5)]
        assert await numbered(node, 4, 3) == [4, 5, 6], "the newest batch is known, the next ones go on"
        assert node.storage.groups[HOME].last_index == before + 1, "but for the fence, nothing is logged any more"
        assert await node.read_offsets() == list(range(7))
        await node.split()
        assert await node.read_offsets() == list(range(7))
        await moves.move(FAR)
        assert await numbered(node, 7, 2) == [7, 8]
        assert histories(node) == [Stay(HOME, 0), Stay(AWAY, 5), Stay(FAR, 7)]
        await node.restart()
        assert histories(node) == [Stay(HOME, 0), Stay(AWAY, 5), Stay(FAR, 7)]
        assert await numbered(node, 8, 2) == [8, 9]
        assert await node.read_offsets() == list(range(10))
        await node.fill(40, OTHER)
        await node.split()
        await node.rounds()
        assert node.segments()[0] > 1
        assert await node.read_offsets() == list(range(10))

    moving(tmp_path, story)


def test_a_queue_returns_to_a_write_group_that_has_records_of_it(tmp_path: Path) -> None:
    async def story(node: SmallNode, moves: Moves) -> None:
        await numbered(node, 0, 3)
        await moves.move(AWAY)
        await numbered(node, 3, 3)
        await moves.move(HOME)
        assert await numbered(node, 5, 3) == [5, 6, 7], "the newest batch of the other write group is known"
        await node.split()
        await moves.move(AWAY)
        await numbered(node, 8, 2)
        assert moves.told == [(SLOT, AWAY, [HOME]), (SLOT, HOME, [HOME, AWAY]), (SLOT, AWAY, [HOME, AWAY])]
        stays = [Stay(HOME, 0), Stay(AWAY, 3), Stay(HOME, 6), Stay(AWAY, 8)]
        for _ in range(2):
            assert histories(node) == stays
            await node.fill(40, OTHER)
            await node.split()
            await node.rounds()
            assert node.segments()[0] > 1, "what is read is in files"
            assert await node.read_offsets() == list(range(10))
            await node.restart()
        for start, left in ((2, 4), (3, 3), (7, 2), (8, 1)):
            await node.storage.queues.truncate({QUEUE: start})
            await node.storage.mover.look()
            assert histories(node) == [Stay(stays[-left].group, 0), *stays[len(stays) - left + 1 :]]
            assert await node.read_offsets() == list(range(start, 10))

    moving(tmp_path, story)


def test_no_batch_is_taken_behind_the_fence_and_reads_go_on(tmp_path: Path) -> None:
    async def story(node: SmallNode, moves: Moves) -> None:
        await node.fill(3)
        moves.wish(AWAY)
        refused = 0
        while not node.storage.state.moves.shut:  # noqa: ASYNC110 - turns of the event loop
            await asyncio.sleep(0)
        while node.storage.state.moves.shut:
            (result,) = await node.append(new_batch(QUEUE, 100))
            if node.storage.state.moves.shut:
                assert result.outcome is Outcome.NOT_LEADER
                refused += 1
            assert (await node.read(0)).outcome is Outcome.OK
            (other,) = await node.append(new_batch(OTHER, 100))
            assert other.outcome is Outcome.OK, "other slots take batches all the while"
        assert refused
        assert await node.read_offsets() == list(range(node.offsets().high_watermark))

    moving(tmp_path, story)


def test_a_move_waits_for_nodes_that_lack_what_the_write_group_before_has(tmp_path: Path) -> None:
    async def story(node: SmallNode, moves: Moves) -> None:
        await node.fill(2)
        mover, (me,) = node.storage.mover, node.storage.groups[HOME].consensus.voters
        placed: dict[int, Sequence[int]] = {HOME: [me], AWAY: [me, me + 7], FAR: [me]}
        mover.metadata = mover.metadata._replace(placements=lambda: placed)
        moves.wish(AWAY)
        await mover.look()
        assert "are on their way to other nodes" in mover.standing[SLOT], "its replica is to come"
        placed[AWAY], placed[FAR] = [me], [me + 7]
        moves.wish(FAR)
        await mover.look()
        assert "are on their way" in mover.standing[SLOT]
        assert not node.storage.state.moves.fences
        moves.wish(AWAY)
        while moves.wishes:
            assert not mover.is_ahead(HOME) or SLOT in moves.wishes
            await asyncio.sleep(0.01)
        assert not mover.is_ahead(HOME)
        assert not mover.has_later(HOME, me + 7)
        placed[AWAY] = [me, me + 7]
        assert mover.has_later(HOME, me + 7), "it may have batches that come behind those that this log has"
        assert not mover.has_later(AWAY, me + 7)

    moving(tmp_path, story)


def test_queues_are_fenced_once_the_cluster_is_at_the_level_of_their_topic(tmp_path: Path) -> None:
    async def story(node: SmallNode, moves: Moves) -> None:
        await node.fill(2)
        mover, refused = node.storage.mover, "at level 22"
        mover.metadata = mover.metadata._replace(topic_refused=lambda topic: f"{refused}" if topic.number == 1 else "")
        moves.wish(AWAY)
        node.topics[:] = [topic(cleanup_policy=frozenset({"compact"}))]
        await mover.look()
        assert mover.standing[SLOT].endswith(" does not move yet: at level 22")
        assert not node.storage.state.moves.fences
        refused = ""
        with pytest.MonkeyPatch.context() as bounds:
            bounds.setattr(slot_mover, "KEPT_QUEUES_MAX", 0)
            await mover.look()
            assert mover.standing[SLOT] == "0 queues that are compacted without delete have moved, and no more can"
        await moves.move(AWAY)
        assert await node.read_offsets() == [0, 1]

    moving(tmp_path, story)


def test_the_queue_of_a_coordinator_comes_to_a_later_term_than_any_owner_of_it_had(tmp_path: Path) -> None:
    """Owners are told apart by the term that granted theirs."""

    async def story(node: SmallNode, moves: Moves) -> None:
        await node.fill(2)
        node.topics[:] = [replace(topic(), internal=True)]
        storage, owners = node.storage, list[int]()
        for before, to in ((HOME, AWAY), (AWAY, HOME), (HOME, AWAY)):
            owners.append(await storage.queues.own(QUEUE))
            assert await storage.queues.own(QUEUE, held=owners[-1]) == owners[-1]
            storage.state.moves.close(SLOT, shut=True)
            with pytest.raises(NotTheLeader, match="is on its way to another write group"):
                await storage.queues.own(QUEUE)
            storage.state.moves.close(SLOT, shut=False)
            await moves.move(to)
            assert storage.groups[to].term > storage.groups[before].term
            for owner in owners:
                with pytest.raises(NotTheLeader, match="another writer owns queue"):
                    await storage.queues.own(QUEUE, held=owner)
        assert owners == sorted(set(owners))

    moving(tmp_path, story)


def test_a_slot_is_fenced_only_once_it_is_noted_that_it_moves(tmp_path: Path) -> None:
    async def story(node: SmallNode, moves: Moves) -> None:
        moves.notes_begins = True
        await node.fill(2)
        known = {SLOT: Wish(AWAY, 1, begun=False)}
        mover = node.storage.mover
        mover.metadata = mover.metadata._replace(wishes=lambda: known)  # lags: the wish was taken back
        await mover.look()
        assert mover.standing == {SLOT: "not any more"}
        assert not node.storage.state.moves.fences
        (taken,) = await node.append(new_batch(QUEUE, 100))
        assert taken.outcome is Outcome.OK
        moves.opened()
        await moves.move(AWAY)
        assert moves.begun == [(SLOT, Wish(AWAY, 1, begun=False))]
        assert histories(node) == [Stay(HOME, 0), Stay(AWAY, 3)]
        assert await node.read_offsets() == [0, 1, 2]

    moving(tmp_path, story)


STEPS = ["wished for", "fenced", "checkpointed", "arrived", "told"]


@pytest.mark.parametrize("step", STEPS)
def test_a_move_goes_on_after_a_crash_at_any_step(step: str, tmp_path: Path) -> None:
    async def story(node: SmallNode, moves: Moves) -> None:
        await numbered(node, 0, 5)
        wish = Wish(AWAY, 1)
        groups = node.storage.groups
        if step != "wished for":
            outcome = groups[HOME].propose([control.SlotFenced(SLOT, AWAY, 1)])
            node.storage.write_loop.wake()
            assert await outcome == ["done"]
            (refused,) = await node.append(new_batch(QUEUE, 100))
            assert refused.outcome is Outcome.NOT_LEADER
        if step in STEPS[2:]:
            await node.storage.checkpointer.save()
        if step in STEPS[3:]:
            fence = node.storage.state.moves.fences[SLOT]
            await node.storage.mover.arrive(SLOT, fence)
            (taken,) = await node.append(new_batch(QUEUE, 100))
            assert taken.base_offset == 5
        if step == "told":
            await moves.moved(SLOT, wish, [HOME]) if SLOT in moves.wishes else None
        await node.crash()
        await node.start()
        assert bool(node.storage.state.moves.shut) == (step in ("fenced", "checkpointed"))
        await moves.move(AWAY)
        taken_before = int(step in STEPS[3:])
        assert histories(node) == [Stay(HOME, 0), Stay(AWAY, 5)]
        assert await numbered(node, 4, 2) == [4, 5 + taken_before]
        assert await node.read_offsets() == list(range(6 + taken_before))
        await node.restart()
        assert await node.read_offsets() == list(range(6 + taken_before))

    moving(tmp_path, story)


def test_a_move_goes_on_as_soon_as_the_fence_is_applied(tmp_path: Path) -> None:
    """Another node may have logged it: until then this one has nothing to do, and looks at its wishes now and then."""

    async def story(node: SmallNode, moves: Moves) -> None:
        await node.fill(2)
        node.storage.mover.wake()
        await asyncio.sleep(0.1)  # it has found nothing to do, and sleeps
        moves.wishes[SLOT] = Wish(AWAY, 1)
        fenced_at = asyncio.get_running_loop().time()
        outcome = node.storage.groups[HOME].propose([control.SlotFenced(SLOT, AWAY, 1)])
        node.storage.write_loop.wake()
        assert await outcome == ["done"]
        while node.storage.state.moves.shut:  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - fenced_at < WAIT_SECONDS / 2
        assert histories(node) == [Stay(HOME, 0), Stay(AWAY, 2)]

    moving(tmp_path, story)


def test_leader_epochs_never_go_back(tmp_path: Path) -> None:
    """The write group that the queue comes to has led fewer terms than the one before."""

    async def story(node: SmallNode, moves: Moves) -> None:
        groups = node.storage.groups
        for _ in range(5):
            groups[HOME].lead_anew(groups[HOME].term + 1, node.clock.now_ms())
            while not groups[HOME].serving:  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.01)
        await node.fill(2)
        before = node.offsets().leader_epoch
        assert before > groups[AWAY].term
        await moves.move(AWAY)
        assert node.offsets().leader_epoch >= before
        await node.fill(2)
        part = await node.read(0)
        epochs = [int.from_bytes(bytes(batch[12:16]), "big") for batch in part.batches]
        assert epochs == sorted(epochs)
        assert len(epochs) == 4
        assert await node.storage.queues.epoch_end(QUEUE, before) == (before, 4 if epochs[-1] == before else 2)

    moving(tmp_path, story)


def test_histories_end_as_retention_takes_what_they_tell_of(tmp_path: Path) -> None:
    async def story(node: SmallNode, moves: Moves) -> None:
        await node.fill(5)
        await node.split()
        await moves.move(AWAY)
        await node.fill(5)
        await node.split()
        assert (await node.storage.queues.truncate({QUEUE: 3}))[QUEUE] == 3
        await node.storage.mover.look()
        assert histories(node) == [Stay(HOME, 0), Stay(AWAY, 5)]
        assert moves.unsettled
        assert await node.read_offsets() == list(range(3, 10))
        assert (await node.storage.queues.truncate({QUEUE: 6}))[QUEUE] == 6
        await node.storage.mover.look()
        assert histories(node) == [Stay(AWAY, 0)]
        assert not moves.unsettled
        assert await node.read_offsets() == list(range(6, 10))
        await node.restart()
        assert await node.read_offsets() == list(range(6, 10))
        assert histories(node)[-1].group == AWAY

    moving(tmp_path, story)
