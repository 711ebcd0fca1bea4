"""One write group on three nodes, without disks or network: what its leader answers, what becomes of what it took."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.fakes.simulated_loop import SimulatedLoop
from tests.storage.small_node import QUEUE, new_batch

from mainstem.kernel import COMMITTED_END, NEXT_OFFSET, QueueTable
from mainstem.model import SLOTS, AppendResult, BatchAppend, Buffer, Outcome
from mainstem.raft import ChangeKind, HardState, Membership, MembershipChange, Message, RaftConfig, Snapshot
from mainstem.raft.messages import Append, Heartbeat, InstallSnapshot
from mainstem.storage.cluster.queue_leadership import WriteGroupLeadership
from mainstem.storage.errors import NotTheLeader, StorageFailed
from mainstem.storage.journal.encoding.format import KIND_CONTROL, KIND_DATA, KIND_NO_OP, BlockHeader
from mainstem.storage.placement import Placement
from mainstem.storage.queues.message_store import LocalMessageStore
from mainstem.storage.write_groups import control, write_group
from mainstem.storage.write_groups.log_block import LogBlock, Ticket, received_block
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_group_blocks import WriteGroupBlocks

NODES = (1, 2, 3)
ROUNDS_MAX = 2000


class Applied:
    def __init__(self) -> None:
        self.blocks: list[tuple[int, int, bytes]] = []
        self.reached = 1 << 30
        """The block up to which another write group, where queues come from, is applied."""

    def awaits(self, group: int, command: control.Command) -> bool:
        return isinstance(command, control.QueuesArrived) and command.behind > self.reached

    def holds(self, group: int) -> bool:
        return self.reached < ARRIVAL.behind

    def queues_seen(self, directory: Buffer) -> None: ...

    def block_applied(
        self, header: BlockHeader, directory: Buffer, payload: memoryview | None, watched: Sequence[tuple[int, int]]
    ) -> None:
        self.blocks.append((header.term, header.index, bytes(directory) + bytes(payload or b"")))

    def transactions_ended(self, queue_ids: Sequence[int]) -> None: ...

    def command_applied(self, group: int, index: int, command: control.Command) -> str:
        return "done"


class Member:
    """One node's part, its disk that takes everything at once, and what it has to say to others."""

    def __init__(self, node_id: int, cluster: Cluster, nodes: Iterable[int], **config: Any) -> None:
        self.withheld = 0
        """How often it was told that something is withheld."""
        self.node_id = node_id
        self._cluster = cluster
        self.table = QueueTable()
        self.table.create(1, 0, 2)
        self.applied = Applied()
        self.position = 4096
        self.dead: list[int] = []
        self.handing: list[bool] = []
        """Hand-overs that began here, and that came to nothing."""
        self.group = WriteGroup(0, self.table, self.applied, self, block_bytes_max=5000, batch_bytes_max=1 << 20)
        self.group.consensus.join(
            RaftConfig(node_id=node_id, **config), HardState(), Membership.of(nodes), random.Random(node_id)
        )

    def send(self, group: int, messages: Iterable[Message]) -> None:
        self._cluster.sent += messages

    def withholds(self, group: int) -> None:
        self.withheld += 1

    def wake(self) -> None: ...

    def send_snapshot(self, group: int, message: InstallSnapshot) -> None:
        raise AssertionError(f"nothing was pruned: {message}")

    def install_snapshot(self, group: int, snapshot: Snapshot) -> None:
        raise AssertionError(f"nothing was pruned: {snapshot}")

    def superseded(self, group: int, first_index: int, positions: Sequence[int], last_data: int) -> None:
        self.dead += positions

    def leader_changed(self, group: int, leader_id: int, term: int) -> None: ...

    def hand_over_changed(self, group: int, *, begun: bool) -> None:
        self.handing.append(begun)

    def serving_changed(self, group: int, *, serving: bool) -> None: ...

    def write(self) -> None:
        """Make durable what is due, in the order of the write loop."""
        consensus = self.group.consensus
        if (due := consensus.hard_state_due) is not None:
            consensus.hard_state_due = None
            consensus.hard_state_saved(due)
        newest = None
        for block in self.group.take(1, 1 << 20):
            size = 80 + len(block.directory) + sum(map(len, block.payload))
            header = BlockHeader(
                block.kind, 0, block.term, block.index, size, block.batch_count, 0, 0, self.position, 0, 0, 1
            )
            self.position += size
            if self.group.written(header):
                newest = header
        if newest is not None:
            self.group.flushed(newest)

    def append(self, *batches: BatchAppend, copies_min: int = 0, here: bool = False) -> Ticket:
        results: list[AppendResult] = []
        ticket = Ticket(results)
        for batch in batches:
            result, index = self.group.log.append(batch, 1)
            results.append(result)
            if copies_min:
                self.group.wait_for_copies(index, ticket, copies_min)
            elif index:
                self.group.wait_for(index, ticket, here=here)
        return ticket

    def cell(self, cell: int) -> int:
        return self.table.get(self.table.find(QUEUE), cell)


class Cluster:
    """Members, and a network that carries everything but for the links that are cut."""

    def __init__(self, nodes: Iterable[int], **config: Any) -> None:
        self.sent: list[Message] = []
        self.cut: set[int] = set()
        """Nodes that nothing reaches or leaves."""
        self.members = {node_id: Member(node_id, self, nodes, **config) for node_id in nodes}

    def turn(self, *, ticks: bool = True) -> None:
        for member in self.members.values():
            if ticks:
                member.group.tick()
            member.write()
        sent, self.sent = self.sent, []
        for message in sent:
            if not {message.sender, message.to} & self.cut:
                self.members[message.to].group.consensus.received([copied(message)])

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(ROUNDS_MAX):
            if holds():
                return
            self.turn()
        raise AssertionError("it did not come about")

    def leader(self) -> Member:
        """The member that serves, once there is one that is not cut off."""
        found: list[Member] = []

        def there() -> bool:
            found[:] = [one for one in self.members.values() if one.group.serving and one.node_id not in self.cut]
            return bool(found)

        self.until(there)
        return found[0]


def copied(message: Message) -> Message:
    """As it comes out of the network: no block is shared between nodes."""
    if not isinstance(message, Append) or not message.entries:
        return message
    fresh = []
    for entry in message.entries:
        data = entry.data
        if isinstance(data, LogBlock):
            payload = memoryview(bytes(data.payload or b""))
            data = received_block(
                data.kind,
                data.term,
                data.index,
                data.created_ms,
                data.batch_count,
                memoryview(bytes(data.directory)),
                payload,
            )
        fresh.append(type(entry)(entry.term, entry.index, entry.kind, entry.size, data))
    return msgspec.structs.replace(message, entries=tuple(fresh))


def told(story: Callable[[Cluster], Awaitable[None]], nodes: Iterable[int] = NODES, **config: Any) -> None:
    loop = SimulatedLoop()

    async def run() -> None:
        await story(Cluster(nodes, **config))

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def test_a_batch_is_acknowledged_by_a_majority_and_applied_alike_everywhere() -> None:
    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        ticket = leader.append(new_batch(QUEUE), new_batch(QUEUE + 1))
        leader.write()
        assert not ticket.done(), "one copy is no majority"
        cluster.until(ticket.done)
        assert [result.outcome for result in await ticket] == [Outcome.OK, Outcome.OK]
        cluster.until(lambda: all(one.cell(COMMITTED_END) == 1 for one in cluster.members.values()))
        for one in cluster.members.values():
            assert one.applied.blocks == leader.applied.blocks

    told(story)


def test_a_leader_whose_disk_failed_makes_way_before_anybody_misses_it() -> None:
    async def story(cluster: Cluster) -> None:
        old = cluster.leader()
        members = cluster.members.values()
        cluster.until(lambda: len({one.group.applied_index for one in members}) == 1)
        old.append(new_batch(QUEUE))
        old.group.take(1, 1 << 20)  # is sent, and the disk does not take it
        old.write = lambda: None  # type: ignore[method-assign]
        assert old.group.consensus.give_way()
        for _ in range(20):
            cluster.turn(ticks=False)
        assert not old.group.consensus.leads
        (new,) = (one for one in members if one.group.serving)
        assert new is not old
        assert new.cell(COMMITTED_END) == 1, "what the others had is not lost"
        assert old.cell(COMMITTED_END) == 0

    told(story)


def test_acks_1_asks_for_the_leaders_disk_alone() -> None:
    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        cluster.cut = set(NODES) - {leader.node_id}
        ticket = leader.append(new_batch(QUEUE), here=True)
        assert not ticket.done()
        leader.write()
        assert ticket.done()
        assert leader.cell(COMMITTED_END) == 0, "it may still be truncated"

    told(story)


def test_more_copies_than_a_majority_can_be_asked_for() -> None:
    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        other = next(iter(set(NODES) - {leader.node_id}))
        cluster.cut = {other}
        ticket = leader.append(new_batch(QUEUE), copies_min=3)
        cluster.until(lambda: leader.cell(COMMITTED_END) == 1)
        assert not ticket.done(), "committed, but two copies are not three"
        cluster.cut = set()
        cluster.until(ticket.done)
        assert (await ticket)[0].outcome is Outcome.OK

    told(story)


def test_a_duplicate_waits_for_as_many_copies_as_the_first() -> None:
    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        cluster.cut = {next(iter(set(NODES) - {leader.node_id}))}
        leader.append(new_batch(QUEUE, producer=(7, 0, 0)), copies_min=3)
        cluster.until(lambda: leader.cell(COMMITTED_END) == 1)
        again = leader.append(new_batch(QUEUE, producer=(7, 0, 0)), copies_min=3)
        assert not again.done(), "committed, but two copies are not three"
        of_less = leader.append(new_batch(QUEUE, producer=(7, 0, 0)))
        assert not of_less.blocks, "a majority is enough: there is nothing to wait for"
        cluster.cut = set()
        cluster.until(again.done)
        assert [result.base_offset for result in await again] == [0]

    told(story)


GATHERING: dict[str, Any] = {"acknowledgements_wait": True, "entries_wait": True, "commits_with_heartbeats": True}


def gathering(cluster: Cluster) -> tuple[Member, Member, Member]:
    """The leader, once it has a block in hand for the last of these, and the follower that it counts on."""
    leader = cluster.leader()
    for _ in range(4):
        cluster.turn()  # with a heartbeat, at which it chooses
    while cluster.sent:
        cluster.turn(ticks=False)
    leader.append(new_batch(QUEUE))
    for _ in range(3):
        cluster.turn(ticks=False)
    assert leader.cell(COMMITTED_END) == 1
    assert leader.withheld
    last = leader.group.last_index
    (counted_on,) = (one for one in cluster.members.values() if one is not leader and one.group.last_index == last)
    (other,) = (one for one in cluster.members.values() if one.group.last_index < last)
    return leader, counted_on, other


def test_a_block_for_a_follower_that_nobody_waits_for_leaves_when_it_is_late() -> None:
    async def story(cluster: Cluster) -> None:
        leader, _, other = gathering(cluster)
        consensus = leader.group.consensus
        assert consensus.send_withheld(late=False), "it is committed, and so can wait"
        assert consensus.send_withheld(late=False)
        assert not consensus.send_withheld(late=True)
        cluster.turn(ticks=False)
        assert other.group.last_index == leader.group.last_index
        assert not consensus.send_withheld(late=True), "there is nothing any more"

    told(story, **GATHERING)


def test_a_block_leaves_at_the_second_look_if_it_is_not_committed_by_then() -> None:
    async def story(cluster: Cluster) -> None:
        leader, counted_on, _ = gathering(cluster)
        consensus = leader.group.consensus
        assert consensus.send_withheld(late=False)
        cluster.cut = {counted_on.node_id}
        ticket = leader.append(new_batch(QUEUE))
        cluster.turn(ticks=False)
        assert consensus.send_withheld(late=False), "this was not there at the last look"
        assert not consensus.send_withheld(late=False)
        for _ in range(3):
            cluster.turn(ticks=False)
        assert ticket.done()

    told(story, **GATHERING)


def test_copies_that_somebody_waits_for_are_not_withheld() -> None:
    async def story(cluster: Cluster) -> None:
        leader, _, other = gathering(cluster)
        index = leader.group.last_index
        ticket = Ticket([])
        leader.group.wait_for_copies(index, ticket, 3)
        cluster.turn(ticks=False)
        assert other.group.last_index == index
        cluster.until(ticket.done)

    told(story, **GATHERING)


def store_of(leader: Member) -> LocalMessageStore:
    write_loop = SimpleNamespace(ended=None, out_of_space=False, backlog_bytes=0, wake=lambda: None)
    read_path = SimpleNamespace(plan_reads=lambda logs, slots: None)
    producers, clock = SimpleNamespace(asked=[]), SimpleNamespace(now_ms=lambda: 1)
    parts: list[Any] = [write_loop, read_path, None, None, producers, SimpleNamespace(asked=[]), clock]
    store = LocalMessageStore([leader.group], [0] * SLOTS, *parts, backlog_bytes_max=1)
    store.serve(0, serving=True)
    return store


def test_as_many_copies_are_waited_for_where_a_majority_becomes_less_meanwhile() -> None:
    """At the end of a move four members become three: three copies are a majority of the four, and two are of the
    three."""

    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        old, other, _ = sorted(set(cluster.members) - {leader.node_id})
        cluster.until(lambda: all(one.group.applied_index == 1 for one in cluster.members.values()))
        cluster.cut = {old, other}
        ticket = store_of(leader).append([new_batch(QUEUE)], -1, copies_min=3)
        leader.group.propose_membership(MembershipChange(ChangeKind.REMOVE, old), 1)
        cluster.until(lambda: leader.cell(COMMITTED_END) == 1)
        assert not ticket.done(), "committed by two of three, and three copies are demanded"
        cluster.cut = {old}
        cluster.until(ticket.done)
        assert (await ticket)[0].outcome is Outcome.OK

    told(story, (1, 2, 3, 4))


def test_a_request_of_duplicates_and_news_waits_for_all_of_them_and_no_longer() -> None:
    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        store = store_of(leader)
        first, second = (new_batch(QUEUE, producer=(7, 0, sequence)) for sequence in range(2))
        known = store.append([first], -1, copies_min=3)
        cluster.until(known.done)
        assert store.append([first], -1, copies_min=3).done(), "three nodes have it"
        both = store.append([first, second], -1, copies_min=3)
        assert not both.done(), "nobody has the second"
        cluster.until(both.done)
        assert [result.base_offset for result in await both] == [0, 1]

    told(story)


@pytest.mark.parametrize("copies_min", [0, 3])
def test_a_leader_that_is_cut_off_answers_and_forgets_what_it_took_alone(copies_min: int) -> None:
    async def story(cluster: Cluster) -> None:
        old = cluster.leader()
        committed = old.append(new_batch(QUEUE, producer=(7, 0, 0)))
        cluster.until(lambda: all(one.cell(COMMITTED_END) == 1 for one in cluster.members.values()))
        assert committed.done()
        cluster.cut = {old.node_id}
        alone = old.append(new_batch(QUEUE, producer=(7, 0, 1)), copies_min=copies_min)
        old.write()
        command = old.group.propose([control.LogStartMoved(())])
        new = cluster.leader()
        assert new is not old
        cluster.until(alone.done)
        assert (await alone)[0].outcome is Outcome.UNDECIDED
        with pytest.raises(NotTheLeader):
            await command
        assert old.cell(NEXT_OFFSET) == old.cell(COMMITTED_END) == 1
        assert old.group.log.pending_bytes == 0
        again = new.append(new_batch(QUEUE, producer=(7, 0, 0)), new_batch(QUEUE, producer=(7, 0, 1)))
        cluster.cut = set()
        cluster.until(again.done)
        assert [result.base_offset for result in await again] == [0, 1], "the first is known again, the second is new"
        cluster.until(lambda: old.cell(COMMITTED_END) == 2)
        assert old.applied.blocks == new.applied.blocks
        assert old.dead, "the block it wrote alone lies dead in its journal"

    told(story)


def test_a_deposed_leader_tells_that_what_it_took_is_committed_by_the_next() -> None:
    """A client that heard a refusal might send it again under another sequence number."""

    async def story(cluster: Cluster) -> None:
        old = cluster.leader()
        ticket = old.append(new_batch(QUEUE), new_batch(QUEUE))
        old.write()
        cluster.turn(ticks=False)  # it leaves, nothing comes back
        cluster.cut = {old.node_id}
        command = old.group.propose([control.LogStartMoved(())])
        new = cluster.leader()
        cluster.until(lambda: not old.group.serving)
        assert not ticket.done(), "it does not know yet"
        assert old.cell(NEXT_OFFSET) == old.cell(COMMITTED_END) == 0, "nothing is built on it"
        with pytest.raises(NotTheLeader):
            await command
        cluster.cut = set()
        cluster.until(ticket.done)
        assert [(result.outcome, result.base_offset) for result in await ticket] == [(Outcome.OK, 0), (Outcome.OK, 1)]
        assert old.cell(COMMITTED_END) == 2
        cluster.until(lambda: old.applied.blocks == new.applied.blocks)

    told(story)


def test_a_deposed_leader_refuses_what_the_next_one_replaces() -> None:
    async def story(cluster: Cluster) -> None:
        old = cluster.leader()
        cluster.cut = {old.node_id}
        ticket = old.append(new_batch(QUEUE))
        old.write()
        new = cluster.leader()
        cluster.until(lambda: not old.group.serving)
        assert not ticket.done(), "it does not know yet"
        other = new.append(new_batch(QUEUE))
        cluster.cut = set()
        cluster.until(ticket.done)
        assert (await ticket)[0].outcome is Outcome.NOT_LEADER
        cluster.until(other.done)
        cluster.until(lambda: old.cell(COMMITTED_END) == 1)

    told(story)


def test_what_replaces_a_block_may_be_replaced_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_group, "FATE_TICKS", 10_000)

    async def story(cluster: Cluster) -> None:
        old = cluster.leader()
        cluster.until(lambda: {one.group.applied_index for one in cluster.members.values()} == {old.group.last_index})
        heir, *others = (one for one in cluster.members.values() if one is not old)
        cluster.cut = {one.node_id for one in others}
        ticket, block = old.append(new_batch(QUEUE)), old.group.last_index + 1
        cluster.until(lambda: heir.group.last_index == block and not heir.group.has_work)
        cluster.cut = {old.node_id, heir.node_id}
        cluster.until(lambda: any(one.group.consensus.leads for one in others))
        (rival,) = (one for one in others if one.group.consensus.leads)
        # Of the rival's first block, which stands where the batch stood, only the old leader hears.
        cluster.cut = {one.node_id for one in cluster.members.values()} - {old.node_id, rival.node_id}
        term = rival.group.term
        cluster.until(lambda: old.group.blocks.term(block) == term)
        assert not ticket.done(), "the one that has the batch may still lead"
        cluster.cut = {rival.node_id, old.node_id}
        cluster.until(lambda: heir.group.serving)
        assert heir.cell(COMMITTED_END) == 1
        assert not ticket.done()
        cluster.cut = {rival.node_id}
        cluster.until(ticket.done)
        assert [(result.outcome, result.base_offset) for result in await ticket] == [(Outcome.OK, 0)]
        assert old.applied.blocks == heir.applied.blocks

    told(story, nodes=(1, 2, 3, 4, 5))


def test_who_waits_hears_no_more_of_a_log_that_is_replaced_as_a_whole() -> None:
    async def story(cluster: Cluster) -> None:
        old = cluster.leader()
        cluster.cut = {old.node_id}
        ticket = old.append(new_batch(QUEUE))
        old.write()
        cluster.leader()
        cluster.until(lambda: not old.group.serving)
        assert not ticket.done(), "it does not know yet"
        old.group.restart_behind(Snapshot(9, 9, Membership.of(NODES)))
        assert (await ticket)[0].outcome is Outcome.UNDECIDED

    told(story)


def test_a_leadership_that_is_handed_over_fails_no_batch() -> None:
    async def story(cluster: Cluster) -> None:
        old = cluster.leader()
        tickets = [old.append(new_batch(QUEUE))]
        old.write()
        old.group.consensus.transfer_leadership(next(iter(set(NODES) - {old.node_id})))
        tickets.append(old.append(new_batch(QUEUE)))  # too late to be proposed
        new = cluster.leader()
        while new is old:
            cluster.turn()
            new = cluster.leader()
        cluster.until(lambda: all(ticket.done() for ticket in tickets))
        outcomes = [(await ticket)[0].outcome for ticket in tickets]
        assert outcomes == [Outcome.OK, Outcome.NOT_LEADER]
        cluster.until(lambda: all(one.cell(COMMITTED_END) == 1 for one in cluster.members.values()))

    told(story)


def test_what_was_appended_before_a_hand_over_goes_with_it() -> None:
    async def story(cluster: Cluster) -> None:
        old = cluster.leader()
        ticket = old.append(new_batch(QUEUE))
        old.group.transfer_leadership(next(iter(set(NODES) - {old.node_id})), 1)
        assert old.handing == [True]
        cluster.until(lambda: not old.group.serving)
        cluster.until(ticket.done)
        assert (await ticket)[0].outcome is Outcome.OK
        assert old.handing == [True], "another node leads"

    told(story)


def test_a_leader_that_hands_over_in_vain_tells_that_it_leads_on() -> None:
    async def story(cluster: Cluster) -> None:
        old = cluster.leader()
        cluster.cut = {to := next(iter(set(NODES) - {old.node_id}))}
        old.group.transfer_leadership(to, 1)
        assert old.handing == [True]
        cluster.until(lambda: old.handing == [True, False])
        assert old.group.serving

    told(story)


def test_a_leader_can_have_it_confirmed_that_it_leads() -> None:
    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        confirmed = leader.group.consensus.confirm()
        assert not confirmed.done(), "nobody else was asked yet"
        await asyncio.sleep(0)  # the end of the turn
        cluster.turn(ticks=False)
        cluster.turn(ticks=False)
        assert confirmed.done(), "it waits for no tick"
        await confirmed
        for one in cluster.members.values():
            if one is not leader:
                with pytest.raises(NotTheLeader, match=f"node {leader.node_id} leads"):
                    await one.group.consensus.confirm()

    told(story)


def test_all_that_is_to_be_confirmed_in_a_turn_is_confirmed_by_the_same_heartbeats() -> None:
    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        cluster.turn(ticks=False)
        cluster.sent.clear()
        confirmed = [leader.group.consensus.confirm() for _ in range(100)]
        await asyncio.sleep(0)
        beats = [message for message in cluster.sent if isinstance(message, Heartbeat)]
        assert len(beats) == len(NODES) - 1
        cluster.until(lambda: all(one.done() for one in confirmed))
        await asyncio.gather(*confirmed)

    told(story)


def test_nobody_waits_for_ever_where_nothing_confirms_or_denies_a_leadership() -> None:
    """Its time stands still: it does not even notice that it hears from nobody."""

    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        leadership = WriteGroupLeadership(leader.node_id, Placement([0] * SLOTS), [leader.group])
        with pytest.raises(NotTheLeader, match=r"no majority confirmed within 5 s that this node leads write group 0"):
            await leadership.confirm(0)

    told(story)


def test_a_leader_that_is_cut_off_has_nothing_confirmed() -> None:
    async def story(cluster: Cluster) -> None:
        old = cluster.leader()
        cluster.cut = {old.node_id}
        waiting, given_up = old.group.consensus.confirm(), old.group.consensus.confirm()
        given_up.cancel()
        new = cluster.leader()
        assert new is not old
        cluster.until(waiting.done)
        with pytest.raises(NotTheLeader):
            await waiting
        failing = new.group.consensus.confirm()
        new.group.fail(StorageFailed("the disk is gone"))
        with pytest.raises(StorageFailed, match="the disk is gone"):
            await failing
        with pytest.raises(StorageFailed, match="the disk is gone"):
            await new.group.consensus.confirm()

    told(story)


def test_members_that_answer_are_active_at_any_time_and_silent_ones_soon_are_not() -> None:
    async def story(cluster: Cluster) -> None:
        consensus = cluster.leader().group.consensus

        def inactive() -> set[int]:
            return {peer.node_id for peer in consensus.peers() if not peer.active}

        cluster.until(lambda: not inactive())
        for _ in range(50):
            for one in cluster.members.values():
                one.group.tick()
            assert not inactive(), "a majority may just have been counted"
            cluster.turn(ticks=False)
        silent = consensus.peers()[0].node_id
        cluster.cut = {silent}
        cluster.until(lambda: inactive() == {silent})

    told(story)


def test_nothing_is_proposed_by_who_does_not_lead() -> None:
    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        for one in cluster.members.values():
            if one is not leader:
                with pytest.raises(NotTheLeader, match=f"node {leader.node_id} leads"):
                    await one.group.propose([])

    told(story)


def test_a_leader_knows_who_is_in_sync() -> None:
    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        followers = sorted(set(NODES) - {leader.node_id})
        placement = Placement([0] * SLOTS)
        of = {
            one.node_id: WriteGroupLeadership(one.node_id, placement, [one.group]) for one in cluster.members.values()
        }
        cluster.turn()
        assert of[leader.node_id].replicas(0).in_sync == NODES
        assert of[leader.node_id].in_sync_fewest({0}) == len(NODES)
        leader.group.consensus.unreachable(followers[0])
        assert of[leader.node_id].replicas(0).in_sync == tuple(sorted({leader.node_id, followers[1]}))
        assert of[leader.node_id].in_sync_fewest({0}) == 2
        assert of[followers[0]].in_sync_fewest({0}) == 0, "it serves nothing"
        cluster.until(lambda: of[leader.node_id].in_sync_fewest({0}) == len(NODES))

    told(story)


def test_where_a_node_alone_is_cut_off_from_the_leader_it_says_what_others_say_of_it() -> None:
    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        cut_off, other = (one for one in cluster.members.values() if one is not leader)
        said = {"by others": (leader.node_id, leader.group.term)}
        leadership = WriteGroupLeadership(
            cut_off.node_id, Placement([0] * SLOTS), [cut_off.group], lambda group: said["by others"]
        )
        cluster.until(lambda: leadership.leader(0) == leader.node_id)
        cluster.cut = {cut_off.node_id}
        cluster.until(lambda: not cut_off.group.consensus.leader_id)
        assert leadership.leader(0) == leadership.replicas(0).leader == leader.node_id
        said["by others"] = (other.node_id, leader.group.term + 3)
        assert leadership.replicas(0)[:2] == (other.node_id, leader.group.term + 3)
        said["by others"] = (leader.node_id, leader.group.term - 1)
        assert leadership.replicas(0)[:2] == (-1, cut_off.group.term), "that is over"
        said["by others"] = (cut_off.node_id, leader.group.term)
        assert leadership.leader(0) == -1, "it should know"
        assert leadership.leaderless, "it hears none"

    told(story)


def test_the_log_that_a_core_reads_tells_what_was_replaced() -> None:
    blocks = WriteGroupBlocks()
    for index, term in ((1, 1), (2, 1), (3, 1)):
        blocks.append(LogBlock(0, term, index))
    first = BlockHeader(0, 0, 1, 1, 80, 0, 0, 0, 4096, 0, 0, 0)
    second = BlockHeader(0, 0, 1, 2, 80, 0, 0, 0, 4176, 0, 0, 0)
    assert blocks.written(first)
    assert blocks.written(second)
    dropped, places = blocks.truncate(2)
    assert [block.index for block in dropped] == [2, 3]
    assert places == [4176]
    assert not blocks.written(BlockHeader(0, 0, 1, 3, 80, 0, 0, 0, 4256, 0, 0, 0)), "dropped while it was written"
    blocks.append(LogBlock(0, 2, 2))
    assert not blocks.written(second), "that was of another term"
    assert (blocks.term(2), blocks.last_index(), blocks.position_of(2)) == (2, 2, 0)
    copy = WriteGroupBlocks()
    copy.load(blocks.dump())
    assert (copy.first_index(), copy.last_index()) == (1, 1), "what is not written is not kept"


def test_a_log_knows_its_last_data_block_before_another_as_far_as_it_reaches_back() -> None:
    blocks = WriteGroupBlocks()
    for index, kind in enumerate((KIND_DATA, KIND_CONTROL, KIND_DATA, KIND_NO_OP, KIND_CONTROL), 1):
        blocks.append(LogBlock(kind, 1, index))
        assert blocks.written(BlockHeader(kind, 0, 1, index, 80, 0, 0, 0, 4096 + 80 * index, 0, 0, 0))
    assert [blocks.last_data_before(index) for index in range(1, 8)] == [0, 1, 1, 3, 3, 3, 3]
    blocks.forget_to(1)
    assert [blocks.last_data_before(index) for index in range(1, 5)] == [0, 0, 0, 3]
    blocks.forget_to(5)
    assert blocks.last_data_before(6) == 0, "the journal does not have it any more"


ARRIVAL = control.QueuesArrived(slot=7, before=1, number=1, behind=40)


def test_a_follower_takes_no_arrival_before_it_has_come_to_the_fence() -> None:
    """Others commit it meanwhile; what lies behind it waits with it."""

    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        late = next(one for one in cluster.members.values() if one is not leader)
        late.applied.reached = ARRIVAL.behind - 1
        before = late.position
        outcome = leader.group.propose([ARRIVAL])
        ticket = leader.append(new_batch(QUEUE))
        cluster.until(ticket.done)
        assert await outcome == ["done"]
        for _ in range(5):
            cluster.turn()
        assert not late.group.has_work, "the write loop is not kept busy"
        assert late.cell(COMMITTED_END) == 0
        assert late.group.blocks.last_index() == leader.group.blocks.last_index(), "it has them in memory"
        assert late.position == before
        await asyncio.wait_for(late.group.all_written(), 1)
        late.applied.reached = ARRIVAL.behind
        late.group.fences_changed()
        cluster.until(lambda: late.cell(COMMITTED_END) == 1)
        assert late.applied.blocks == leader.applied.blocks

    told(story)


def test_a_snapshot_waits_for_the_term_that_it_came_with() -> None:
    """A node killed between the two would find a log, and no record of votes beside it, if it is its first term."""

    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        late = next(one for one in cluster.members.values() if one is not leader)
        cluster.until(lambda: late.group.applied_index == leader.group.applied_index)
        given: list[Snapshot] = []
        late.install_snapshot = lambda group, snapshot: given.append(snapshot)  # type: ignore[method-assign]
        for ended in (False, True):
            term = late.group.term + 1
            snapshot = Snapshot(100 * term, term, Membership.of(NODES))
            late.group.consensus.snapshot_received(leader.node_id, term, snapshot)
            assert given[-1] is snapshot
            waiting = asyncio.ensure_future(late.group.all_written())
            await asyncio.sleep(1)
            assert not waiting.done(), "the term is not durable"
            if ended:
                late.group.fail(StorageFailed("the disk is gone"))
            else:
                late.write()
            await asyncio.wait_for(waiting, 1)
            late.group.consensus.snapshot_failed(snapshot)

    told(story)


def test_what_follows_a_snapshot_waits_for_other_write_groups() -> None:
    """Others commit it meanwhile. Nobody reads from this replica until then, also if nothing follows."""

    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        late = next(one for one in cluster.members.values() if one is not leader)
        cluster.until(lambda: late.group.applied_index == leader.group.applied_index)
        late.applied.reached = ARRIVAL.behind - 1
        late.group.hold()
        before = late.position
        ticket = leader.append(new_batch(QUEUE))
        cluster.until(ticket.done)
        for _ in range(5):
            cluster.turn()
        assert (late.cell(COMMITTED_END), late.position) == (0, before)
        assert late.group.blocks.last_index() == leader.group.blocks.last_index(), "it has the block in memory"
        assert not late.group.has_work, "the write loop is not kept busy"
        assert late.group.followed() is None
        await asyncio.wait_for(late.group.all_written(), 1)  # so that the next snapshot can be installed
        late.applied.reached = ARRIVAL.behind
        late.group.fences_changed()
        cluster.until(lambda: late.cell(COMMITTED_END) == 1)
        assert late.group.followed() is not None
        assert late.applied.blocks == leader.applied.blocks

    told(story)


def test_an_arrival_that_lies_in_the_journal_is_applied_behind_the_fence_after_a_start() -> None:
    """A leader elected with it serves once the fence is applied here."""

    async def story(cluster: Cluster) -> None:
        leader = cluster.leader()
        late = next(one for one in cluster.members.values() if one is not leader)
        cluster.until(lambda: late.group.applied_index == leader.group.applied_index)
        outcome = leader.group.propose([ARRIVAL])
        leader.write()
        cluster.turn(ticks=False)
        late.write()
        assert late.group.blocks.position_of(leader.group.last_index), "it is written, and not known to be committed"
        late.applied.reached = ARRIVAL.behind - 1
        cluster.until(lambda: late.group.waits_for_another)
        assert late.group.applied_index == leader.group.applied_index - 1
        cluster.cut = {leader.node_id}
        late.group.consensus.gone(leader.node_id)
        cluster.until(lambda: late.group.consensus.leads)
        for _ in range(20):
            cluster.turn()
        assert late.group.consensus.leads
        assert not late.group.serving
        late.applied.reached = ARRIVAL.behind
        late.group.fences_changed()
        await asyncio.sleep(0)
        cluster.until(lambda: late.group.serving)
        assert not outcome.done() or outcome.exception() is None

    told(story)
