"""Raft messages between nodes over real sockets: order, pieces, lanes, bounds, losses, nonsense."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tests.rpc.conftest import Run
from tests.rpc.raft_nodes import Node, append, connected, entries_of, heartbeat, until

from mainstem.raft.entry import Entry
from mainstem.raft.messages import Append, AppendResponse, Heartbeat, Message
from mainstem.rpc.client import Client
from mainstem.rpc.errors import CallFailed, IdentityMissing
from mainstem.rpc.raft import raft_link
from mainstem.rpc.raft.raft_exchange import METADATA_QUORUM, Address, Bounds
from mainstem.rpc.raft.raft_messages import (
    DELIVER,
    Delivery,
    DeliveryRefused,
    WireAppend,
    WireEntry,
    to_wire,
)
from mainstem.rpc.raft.raft_outbox import DELIVERY_BYTES_MAX
from mainstem.rpc.wire.method import Method, Nothing

MIB = 1024 * 1024


def test_messages_of_a_turn_arrive_together_and_in_order(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two, groups=(0, 1, METADATA_QUORUM)):
            one.exchange.send(0, [heartbeat(1, 2, 1), append(1, 2, 0, b"first", b"second")])
            one.exchange.send(METADATA_QUORUM, [heartbeat(1, 2, 7)])
            one.exchange.send(0, [append(1, 2, 2, b"third"), heartbeat(1, 2, 2)])
            group = two.members[0]
            await group.until(lambda: len(group.messages) == 4)
            assert len(group.calls) == 1
            assert [m.commit_index for m in group.messages if isinstance(m, Heartbeat)] == [1, 2]
            assert entries_of(group.messages) == [(1, b"first"), (2, b"second"), (3, b"third")]
            assert all((m.sender, m.to, m.term) == (1, 2, 1) for m in group.messages)
            assert two.members[METADATA_QUORUM].messages == [heartbeat(1, 2, 7)]
            assert two.members[1].messages == []

    run(test)


def test_three_nodes_speak_all_ways(run: Run) -> None:
    async def test() -> None:
        nodes = [Node(1), Node(2), Node(3)]
        async with connected(*nodes):
            for count in range(100):
                for sender in (1, 2, 3):
                    others = [to for to in (1, 2, 3) if to != sender]
                    nodes[sender - 1].exchange.send(0, [heartbeat(sender, to, count) for to in others])
                if count % 7 == 0:
                    await asyncio.sleep(0)
            for node in nodes:
                group = node.members[0]
                await group.until(lambda group=group: len(group.messages) == 200)  # type: ignore[misc]
                for sender in {1, 2, 3} - {node.identity.node_id}:
                    found = [m.commit_index for m in group.messages if m.sender == sender]  # type: ignore[union-attr]
                    assert found == list(range(100))

    run(test)


def test_large_appends_are_cut_and_pipelined_in_order(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two):
            data = [bytes([place]) * (300_000 + place) for place in range(40)]
            data[20] = b"x" * (3 * MIB)  # alone larger than a delivery
            for first in range(0, 40, 8):
                one.exchange.send(0, [append(1, 2, first, *data[first : first + 8])])
            group = two.members[0]
            await group.until(lambda: len(entries_of(group.messages)) == 40)
            assert entries_of(group.messages) == list(enumerate(data, 1))
            appends = [m for m in group.messages if isinstance(m, Append)]
            assert all(len(m.entries) == 1 or sum(e.size for e in m.entries) <= DELIVERY_BYTES_MAX for m in appends)
            for before, after in itertools.pairwise(appends):
                assert after.previous_index == before.entries[-1].index
            (view,) = {type(e.data) for m in appends for e in m.entries}
            assert view is memoryview

    run(test)


def test_heartbeats_do_not_wait_for_appends(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two):
            link = one.exchange.links[2]
            one.exchange.send(0, [append(1, 2, place, b"x" * MIB) for place in range(30)])
            await until(lambda: link.deliveries_in_flight > 0)
            one.exchange.send(0, [heartbeat(1, 2, 5)])
            group = two.members[0]
            await group.until(lambda: heartbeat(1, 2, 5) in group.messages)
            ahead = group.messages.index(heartbeat(1, 2, 5))
            assert ahead <= 1 + raft_link.BYTES_IN_FLIGHT_MAX // MIB
            await group.until(lambda: len(group.messages) == 31)
            assert [index for index, _ in entries_of(group.messages)] == list(range(1, 31))

    run(test)


async def in_turns(one: Node, two: Node, count: int) -> None:
    """Send so many deliveries of a heartbeat, each once the one before has arrived."""
    group = two.members[0]
    first = len(group.messages)
    for place in range(count):
        one.exchange.send(0, [heartbeat(1, 2, place)])
        await group.until(lambda place=place: len(group.messages) == first + place + 1)  # type: ignore[misc]


def test_an_answer_now_and_then_stands_for_the_deliveries_before(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two):
            link = one.exchange.links[2]
            await in_turns(one, two, 1)
            await until(lambda: not link.deliveries_in_flight)
            count = 10 * (raft_link.UNASKED_MAX + 1)
            began = asyncio.get_running_loop().time()
            await in_turns(one, two, count)
            await until(lambda: link.deliveries_in_flight <= raft_link.UNASKED_MAX)
            due = (asyncio.get_running_loop().time() - began) / raft_link.ASKS_EACH_SECONDS
            answered = sum(link.counters.round_trip_counts) - 1
            assert link.counters.deliveries == 1 + count
            assert answered <= count / (raft_link.UNASKED_MAX + 1) + due + 1
            await asyncio.sleep(raft_link.ASKS_EACH_SECONDS * 1.1)
            await in_turns(one, two, 1)
            await until(lambda: not link.deliveries_in_flight)

    run(test)


def test_many_bytes_ask_for_an_answer(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two):
            link, group = one.exchange.links[2], two.members[0]
            await in_turns(one, two, 1)
            half = raft_link.UNASKED_BYTES_MAX // 2
            for place in range(4):
                one.exchange.send(0, [append(1, 2, place, bytes(half))])
                await group.until(lambda place=place: len(group.messages) == 2 + place)  # type: ignore[misc]
            await until(lambda: link.deliveries_in_flight < 2)

    run(test)


def test_an_acknowledgement_that_may_wait_leaves_with_the_next_message(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1, bounds=Bounds(waits_seconds=PATIENCE_SECONDS)), Node(2)
        async with connected(one, two, groups=(0, 1)):
            link, group = one.exchange.links[2], two.members[0]
            await in_turns(one, two, 1)
            await until(lambda: not link.deliveries_in_flight)  # an answer lets go of what waits
            deliveries = link.counters.deliveries
            waits = AppendResponse(1, 2, 1, 7, may_wait=True)
            one.exchange.send(0, [waits])
            for _ in range(3):
                await asyncio.sleep(0)
            assert link.counters.deliveries == deliveries
            one.exchange.send(1, [heartbeat(1, 2, 5)])
            await group.until(lambda: waits in group.messages)
            await two.members[1].until(lambda: two.members[1].messages == [heartbeat(1, 2, 5)])
            assert link.counters.deliveries == deliveries + 1

    run(test)


def test_an_acknowledgement_that_may_wait_leaves_soon(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two):
            waits = AppendResponse(1, 2, 1, 7, may_wait=True)
            for count in range(1, 4):
                one.exchange.send(0, [waits])
                await two.members[0].until(lambda count=count: two.members[0].messages == [waits] * count)  # type: ignore[misc]

    run(test)


def test_a_peer_that_answers_everything_is_asked_each_time(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        two.newest = 1
        async with connected(one, two):
            link = one.exchange.links[2]
            await in_turns(one, two, 40)
            await until(lambda: not link.deliveries_in_flight)
            assert sum(link.counters.round_trip_counts) == link.counters.deliveries == 40

    run(test)


def test_the_sender_hears_of_nonsense_with_the_next_answer(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two):
            link = one.exchange.links[2]
            await in_turns(one, two, 1)
            await until(lambda: not link.deliveries_in_flight)
            one.exchange.send(0, [Append(1, 2, 1, 0, 0, 0, (Entry(2, 1, 0, 1, b"x"),))])  # of a term that is not yet
            await in_turns(one, two, raft_link.UNASKED_MAX + 1)
            await until(lambda: link.counters.refused == 1)
            assert "term 2" in link.trouble
            await in_turns(one, two, raft_link.UNASKED_MAX + 1)
            await until(lambda: not link.trouble)
            assert link.counters.connects == 1

    run(test)


def test_loading_holds_back_its_group_alone_and_keeps_its_order(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two, groups=(0, 1)):
            source = one.members[0]
            source.cold = {2}
            source.may_load.clear()
            one.exchange.send(0, [append(1, 2, 0, b"one"), append(1, 2, 1, b"two"), append(1, 2, 2, b"three")])
            one.exchange.send(1, [append(1, 2, 0, b"other group")])
            one.exchange.send(0, [append(1, 2, 3, b"four")])
            await two.members[1].until(lambda: len(two.members[1].messages) == 1)
            group = two.members[0]
            await group.until(lambda: len(group.messages) == 1)
            one.exchange.send(0, [append(1, 2, 4, b"five"), heartbeat(1, 2)])
            await group.until(lambda: heartbeat(1, 2) in group.messages)
            assert [index for index, _ in entries_of(group.messages)] == [1]
            source.may_load.set()
            await group.until(lambda: len(group.messages) == 6)
            assert [index for index, _ in entries_of(group.messages)] == [1, 2, 3, 4, 5]
            assert source.loads == 1

    run(test)


def test_entries_that_cannot_be_had_are_dropped_and_what_follows_is_sent(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two):
            source, group = one.members[0], two.members[0]
            for error in (OSError("the disk is gone"), RuntimeError("a bug")):
                source.cold, source.load_error = {1}, error
                source.unreachable_nodes.clear()
                one.exchange.send(0, [append(1, 2, 0, b"gone"), append(1, 2, 1, b"here")])
                await source.until(lambda: source.unreachable_nodes == [2])
            await group.until(lambda: len(group.messages) == 2)
            assert entries_of(group.messages) == [(2, b"here"), (2, b"here")]
            assert one.exchange.links[2].outbox.bytes_waiting == 0

    run(test)


def test_what_passes_the_bounds_is_dropped_and_told(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1, bounds=Bounds(messages=10, bytes=1000)), Node(2)
        async with connected(one, two, groups=(0, 1)):
            one.exchange.send(0, [append(1, 2, place, b"x" * 300) for place in range(5)])
            one.exchange.send(1, [heartbeat(1, 2, place) for place in range(15)])
            assert one.members[0].unreachable_nodes == []  # never from within `send`
            await two.members[1].until(lambda: len(two.members[1].messages) == 10)
            await two.members[0].until(lambda: len(two.members[0].messages) == 3)
            assert one.members[0].unreachable_nodes == one.members[1].unreachable_nodes == [2]
            assert one.exchange.links[2].counters.dropped == 7
            # an entry larger than the bound goes when nothing else waits
            one.exchange.send(0, [append(1, 2, 3, b"x" * 5000)])
            await two.members[0].until(lambda: len(two.members[0].messages) == 4)

    run(test)


def test_a_node_that_is_gone_is_unreachable_and_found_again(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two):
            source, group = one.members[0], two.members[0]
            one.exchange.send(0, [heartbeat(1, 2, 1)])
            await group.until(lambda: len(group.messages) == 1)
            assert not one.exchange.cut_off(2)
            await two.stop_listening()
            await until(lambda: one.exchange.cut_off(2))
            await source.until(lambda: source.unreachable_nodes != [])
            await until(lambda: one.exchange.links[2].counters.connect_failures > 1)
            assert source.gone_nodes == [2]  # told once
            source.unreachable_nodes.clear()
            one.exchange.send(0, [heartbeat(1, 2, 2)])
            await source.until(lambda: source.unreachable_nodes == [2])
            assert one.exchange.links[2].outbox.messages_waiting == 0
            await two.listen()
            await until(lambda: one.exchange.connected(2))
            assert not one.exchange.cut_off(2)
            one.exchange.send(0, [heartbeat(1, 2, 3)])
            await group.until(lambda: len(group.messages) == 2)
            assert group.messages[-1] == heartbeat(1, 2, 3)
            assert one.exchange.links[2].counters.connects >= 2

    run(test)


def test_a_lost_connection_tells_every_group(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two, groups=(0, 1, 2)):
            one.exchange.send(0, [heartbeat(1, 2)])
            await two.members[0].until(lambda: len(two.members[0].messages) == 1)
            await two.stop_listening()
            for member in one.members.values():
                await member.until(lambda member=member: 2 in member.unreachable_nodes)  # type: ignore[misc]

    run(test)


def test_peers_change_their_address_and_leave(run: Run) -> None:
    async def test() -> None:
        one, two, moved = Node(1), Node(2), Node(2)
        async with connected(one, two):
            one.exchange.send(0, [heartbeat(1, 2, 1)])
            await two.members[0].until(lambda: len(two.members[0].messages) == 1)
            moved.join(0)
            await moved.listen()
            one.exchange.set_peers({1: one.address, 2: moved.address})
            one.exchange.send(0, [heartbeat(1, 2, 2)])
            await moved.members[0].until(lambda: moved.members[0].messages == [heartbeat(1, 2, 2)])
            one.exchange.set_peers({})
            one.exchange.send(0, [heartbeat(1, 2, 3)])
            await one.members[0].until(lambda: 2 in one.members[0].unreachable_nodes)
            await moved.close()

    run(test)


def test_a_group_that_left_receives_nothing(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two, groups=(0, 1)):
            two.exchange.leave(0)
            one.exchange.send(0, [append(1, 2, 0, b"nobody is there")])
            one.exchange.send(1, [append(1, 2, 0, b"here")])
            await two.members[1].until(lambda: len(two.members[1].messages) == 1)
            assert entries_of(two.members[1].messages) == [(1, b"here")]
            assert two.members[0].messages == []

    run(test)


def test_a_group_that_fails_leaves_the_others_alone(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two, groups=(0, 1)):

            def fail(messages: list[Message]) -> None:
                raise RuntimeError("a bug")

            two.members[0].received = fail  # type: ignore[method-assign, assignment]
            for place in range(2):
                one.exchange.send(0, [heartbeat(1, 2, place)])
                one.exchange.send(1, [heartbeat(1, 2, place)])
                await two.members[1].until(lambda place=place: len(two.members[1].messages) == 1 + place)  # type: ignore[misc]
            assert one.exchange.links[2].counters.connects == 1

    run(test)


def test_the_carrying_group_fails_and_nothing_else_does(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two, groups=(0, 1)):
            broken = Entry(1, 1, 0, 5, None)  # no bytes to carry
            one.exchange.send(0, [Append(1, 2, 1, 0, 0, 0, (broken,))])
            one.exchange.send(1, [append(1, 2, 0, b"fine")])
            await two.members[1].until(lambda: len(two.members[1].messages) == 1)
            await one.members[0].until(lambda: one.members[0].unreachable_nodes == [2])

    run(test)


# --- what others send -----------------------------------------------------------------------------------


def test_clients_deliver_nothing(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two), Client(*two.address) as client:
            delivery = Delivery([to_wire(0, heartbeat(1, 2))])
            with pytest.raises(IdentityMissing, match="only nodes of this cluster"):
                await client.call(DELIVER, delivery, timeout_seconds=20)
            assert two.members[0].messages == []

    run(test)


def test_nonsense_is_refused_and_the_rest_is_taken(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two, groups=(0, 1)), Client(*two.address, node=one.identity) as client:
            fine = WireAppend(1, 1, 0, 0, 0, (WireEntry(1, 1, 0, (2, -1), 2),))
            for entry, what in (
                (WireEntry(1, 2, 0, (3, -2), 3), "where 1 of a term"),
                (WireEntry(1, 1, 0, (3, -7), 3), r"numbers \(3, -7\)"),
                (WireEntry(1, 1, 0, (3,), 3), "not enough values"),
            ):
                two.members[1].messages.clear()
                delivery = Delivery([WireAppend(0, 1, 0, 0, 0, (entry,)), fine])
                with pytest.raises(DeliveryRefused, match=what):
                    await client.call(DELIVER, delivery, [b"bad", b"ok"], timeout_seconds=20)
                assert entries_of(two.members[1].messages) == [(1, b"ok")]
            with pytest.raises(DeliveryRefused, match="do not add up to the 3 bytes"):
                await client.call(DELIVER, Delivery([fine]), [b"123"], timeout_seconds=20)
            assert two.members[0].messages == []
            assert len(two.members[1].messages) == 1

    run(test)


class Anything(msgspec.Struct, array_like=True):
    value: Any


def test_bytes_that_are_no_delivery_are_refused(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        raw = Method(DELIVER.number, DELIVER.name, Anything, Nothing)
        async with connected(one, two), Client(*two.address, node=one.identity) as client:
            for value in (None, [[99, 0, 1]], [[3, 0, "x", 1, 1]], [[9, 0, 1]] * 5000):
                with pytest.raises(CallFailed, match="malformed"):
                    await client.call(raw, Anything(value), timeout_seconds=20)
            await client.call(raw, Anything([[3, 0, 1, 4, 0]]), timeout_seconds=20)
            assert two.members[0].messages == [heartbeat(1, 2, 4)]

    run(test)


def test_an_older_connection_is_not_listened_to_once_there_is_a_newer_one(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        two.join(0)
        await two.listen()
        async with (
            Client(*two.address, node=one.identity) as old,
            Client(*two.address, node=one.identity) as new,
        ):
            for client, commit_index in ((old, 1), (new, 2), (old, 3), (new, 4)):
                delivery = Delivery([to_wire(0, heartbeat(1, 2, commit_index))])
                await client.call(DELIVER, delivery, timeout_seconds=20)
        assert [m.commit_index for m in two.members[0].messages] == [1, 2, 4]  # type: ignore[union-attr]
        await one.close()
        await two.close()

    run(test)


def test_statistics_count_what_went_where(run: Run) -> None:
    async def test() -> None:
        one, two = Node(1), Node(2)
        async with connected(one, two):
            one.exchange.send(0, [append(1, 2, 0, b"12345"), heartbeat(1, 2)])
            await two.members[0].until(lambda: len(two.members[0].messages) == 2)
            link = one.exchange.links[2]
            await until(lambda: not link.deliveries_in_flight)
            sent = {sample.name: sample for sample in one.exchange.samples()}
            assert sent["mainstem_raft_link_messages_total"].value == 2  # type: ignore[union-attr]
            assert sent["mainstem_raft_link_entry_bytes_total"].value == 5  # type: ignore[union-attr]
            assert sent["mainstem_raft_link_connected"].value == 1  # type: ignore[union-attr]
            assert sent["mainstem_raft_link_messages_total"].labels == (("peer", "2"),)
            assert sent["mainstem_raft_link_round_trip_seconds"].counts[-1] == 1  # type: ignore[union-attr]
            received = {sample.name: sample for sample in two.exchange.samples()}
            assert received["mainstem_raft_exchange_received_bytes_total"].value == 5  # type: ignore[union-attr]

    run(test)


def test_the_own_address_among_the_peers_is_left_out(run: Run) -> None:
    async def test() -> None:
        one = Node(1)
        one.exchange.set_peers({1: Address("127.0.0.1", 1)})
        assert list(one.exchange.links) == []
        await one.close()

    run(test)
