"""The messages of other nodes may be nonsense: they are refused, bounded, and change nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.quorum.quorum_log import encode_membership, from_wire
from mainstem.nameserver.quorum.quorum_snapshots import ReceivedSnapshot
from mainstem.nameserver.quorum.transfer import joined, parts
from mainstem.raft import KIND_MEMBERSHIP, Membership, Snapshot
from mainstem.raft.messages import Append
from mainstem.rpc.messages.metadata import (
    CHANGE,
    CHANGE_MEMBER,
    FETCH_SNAPSHOT,
    FOLLOW,
    HEARTBEAT,
    OFFER_SNAPSHOT,
    ChangeReply,
    ChangeRequest,
    NodeHeartbeat,
    SnapshotPart,
    WantConfigs,
    WantDeletions,
    Wanted,
    WantedTopic,
    WantMove,
    WantNode,
    WantPartitions,
    WantTopics,
    WriteGroupLeader,
)
from mainstem.rpc.raft.raft_member import METADATA_QUORUM
from mainstem.rpc.wire.identity import Identity

METHODS: list[Any] = [CHANGE, CHANGE_MEMBER, FETCH_SNAPSHOT, FOLLOW, HEARTBEAT, OFFER_SNAPSHOT]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_garbage_is_no_request(method: Any) -> None:
    randomness = random.Random(1)
    good = msgspec.msgpack.encode(
        {
            "request": b"x" * 16,
            "wanted": {"type": "topics", "topics": [["a", 1, 1, {}]]},
            "leaders": [[1, 2, 3]],
        }
    )
    refused = 0
    for _ in range(2_000):
        data = bytearray(good)
        for _ in range(randomness.randint(1, 4)):
            data[randomness.randrange(len(data))] = randomness.randrange(256)
        try:
            method.decode_request(bytes(data))
        except (msgspec.DecodeError, UnicodeDecodeError):
            refused += 1
    assert refused > 500


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "topics", "topics": [["a", 2**40, 1, {}]]},
        {"type": "topics", "topics": [["a", 1, 1, {"k": "v" * 40_000}]]},
        {"type": "topics", "topics": [["a", 1, 1, {}]] * 10_001},
        {"type": "deletions", "names": ["x" * 40_000]},
        {"type": "node", "node_id": -1, "host": "h", "port": 1},
        {"type": "node", "node_id": 1, "host": "h", "port": 1, "incarnation": b"x" * 17},
        {"type": "move", "group": 70_000, "old": 1, "new": 2},
        {"type": "nothing we know"},
    ],
)
def test_what_is_out_of_bounds_is_no_request(wanted: dict[str, Any]) -> None:
    with pytest.raises(msgspec.DecodeError):
        CHANGE.decode_request(msgspec.msgpack.encode({"request": b"x" * 16, "wanted": wanted}))


def test_requests_that_make_no_sense_are_refused_item_by_item() -> None:
    async def scenario() -> None:
        cluster = Nameservers(61)
        await cluster.start_all()
        leader = await cluster.elected()
        await cluster.running[leader].waits.placed()
        await cluster.settled()
        end = cluster.network.attach(Identity(cluster.running[1].lookups.cluster_id(), 99, bytes(16)))
        version = cluster.running[leader].lookups.version
        nonsense: tuple[Wanted, ...] = (
            WantTopics([WantedTopic("../x", 1, 1, {}), WantedTopic("ok", -5, 1, {})]),
            WantTopics([WantedTopic("a", 1, 99, {}), WantedTopic("b", 1, 1, {"nonsense": "1"})]),
            WantTopics([]),
            WantDeletions(["", "nobody", "nobody"]),
            WantPartitions("nobody", -1),
            WantConfigs("nobody", {"retention.ms": None}),
            WantNode(node_id=1, host="elsewhere", port=1, incarnation=b"y" * 16),
            WantMove(0, 1, 1),
            WantMove(65_535, 0, 0),
        )
        for number, wanted in enumerate(nonsense):
            request = ChangeRequest(number.to_bytes(16), wanted)
            reply: ChangeReply = (await end.call(leader, CHANGE, request, timeout_seconds=5)).message
            assert reply.index == 0, wanted
            items = len(getattr(wanted, "topics", getattr(wanted, "names", [None])))
            assert len(reply.refusals) == items or reply.refusals[0].item == -1
        assert cluster.running[leader].lookups.version == version
        await cluster.close()

    simulate(scenario())


def test_heartbeats_of_strangers_and_lies_do_no_harm() -> None:
    async def scenario() -> None:
        cluster = Nameservers(62, write_groups=2)
        await cluster.start_all()
        leader = await cluster.elected()
        end = cluster.network.attach(Identity(cluster.running[1].lookups.cluster_id(), 99, bytes(16)))
        lies = [WriteGroupLeader(group, 5, 2**62) for group in range(2, 65_536, 4096)]
        await end.call(leader, HEARTBEAT, NodeHeartbeat(leaders=lies, applied=2**62), timeout_seconds=5)
        assert cluster.running[leader].lookups.write_group_leaders() == {}
        assert cluster.running[leader].lookups.report(99) is None
        await cluster.close()

    simulate(scenario())


@pytest.mark.parametrize(
    ("kind", "attachment"),
    [
        (7, b""),
        (KIND_MEMBERSHIP, b""),
        (KIND_MEMBERSHIP, b"\xc1"),
        (KIND_MEMBERSHIP, msgspec.msgpack.encode({"voters": [], "learners": []})),
        (KIND_MEMBERSHIP, msgspec.msgpack.encode({"voters": [1, 2], "learners": [2]})),
        (KIND_MEMBERSHIP, msgspec.msgpack.encode({"voters": [0], "learners": []})),
    ],
)
def test_an_entry_of_nonsense_is_refused(kind: int, attachment: bytes) -> None:
    with pytest.raises(ValueError):
        from_wire(1, 1, kind, memoryview(attachment))
    good = encode_membership(Membership.of([1, 2], [3]))
    assert from_wire(1, 1, KIND_MEMBERSHIP, memoryview(good)).data == Membership.of([1, 2], [3])


def test_a_snapshot_that_is_not_whole_is_refused() -> None:
    name = Snapshot(9, 2, Membership.of([1, 2, 3]))
    commands = [bytes([number]) * 100_000 for number in range(9)]
    whole = list(parts(name, commands))
    assert len(whole) > 2

    def taken(sent: list[SnapshotPart]) -> ReceivedSnapshot:
        async def stream() -> Any:
            for part in sent:
                yield part

        return asyncio.run(joined(stream()))

    assert taken(whole) == ReceivedSnapshot(name, commands)
    other = msgspec.structs.replace(whole[1], index=10)
    nobody = [msgspec.structs.replace(part, voters=[]) for part in whole]
    for broken in ([], whole[:-1], whole[1:], [whole[0], other, *whole[2:]], nobody):
        with pytest.raises(ValueError):
            taken(broken)


def test_a_snapshot_of_nonsense_leaves_the_member_as_it_was() -> None:
    async def scenario() -> None:
        cluster = Nameservers(63)
        await cluster.start_all()
        leader = await cluster.elected()
        other = next(node_id for node_id in cluster.running if node_id != leader)
        victim = cluster.running[other]
        await victim.administration.create_topic("kept", 1, 1, {})
        name = Snapshot(10_000, victim.lookups.metadata_term, Membership.of([1, 2, 3]))
        victim.quorum.received_snapshot(leader, victim.lookups.metadata_term, ReceivedSnapshot(name, [b"nonsense"]))
        await asyncio.sleep(1)
        assert victim.lookups.topic("kept") is not None
        await cluster.running[leader].administration.create_topic("later", 1, 1, {})
        await cluster.settled()
        await cluster.close()

    simulate(scenario())


def test_a_leader_that_contradicts_what_is_committed_ends_the_member_only() -> None:
    async def scenario() -> None:
        cluster = Nameservers(64)
        await cluster.start_all()
        leader = await cluster.elected()
        other = next(node_id for node_id in cluster.running if node_id != leader)
        victim = cluster.running[other]
        await victim.administration.create_topic("kept", 1, 1, {})
        forged = from_wire(99, 2, 0, memoryview(b"forged"))
        message = Append(leader, other, 99, 1, victim.quorum.entries.term(1), 5, (forged,))
        cluster.network.ends[other].members[METADATA_QUORUM].received([message])
        await cluster.until(lambda: victim.failure is not None)
        assert victim.lookups.topic("kept") is not None
        with pytest.raises(MetadataUnavailable):
            await victim.administration.create_topic("refused", 1, 1, {})
        survivor = next(it for node_id, it in cluster.running.items() if node_id != other)
        await survivor.administration.create_topic("by the majority".replace(" ", "-"), 1, 1, {})
        await cluster.close()

    simulate(scenario())
