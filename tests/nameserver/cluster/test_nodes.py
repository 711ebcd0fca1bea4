"""Nodes of a cluster: who lives, who leads which group, whose id is whose, who is a member and who only follows."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.files import SimulatedFiles
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.model import FeatureLevel, LevelRange, slot_of
from mainstem.nameserver.cluster.heartbeats import Condition
from mainstem.nameserver.cluster.node_liveness import NodeState
from mainstem.nameserver.errors import (
    ForeignDirectory,
    InvalidMembership,
    InvalidPlacement,
    MetadataUnavailable,
    NodeIdTaken,
    NodeWasRemoved,
)
from mainstem.nameserver.quorum.proposer import Make
from mainstem.nameserver.state.plans import reduced_slots
from mainstem.nameserver.state.replica import ChangeOutcome


def test_a_dead_node_is_known_as_dead_everywhere_and_why_and_comes_back() -> None:
    async def scenario() -> None:
        cluster = Nameservers(31)
        await cluster.start_all()
        leader = await cluster.elected()
        gone = next(node_id for node_id in cluster.running if node_id != leader)
        await asyncio.sleep(2)
        assert all(len(it.lookups.alive_nodes()) == 3 for it in cluster.running.values())
        await cluster.kill(gone)
        await asyncio.sleep(2.5)
        assert cluster.running[leader].lookups.verdict(gone).state is NodeState.SUSPECTED
        await asyncio.sleep(4)
        for nameserver in cluster.running.values():
            verdict = nameserver.lookups.verdict(gone)
            assert verdict.state is NodeState.DEAD
            assert "no heartbeat for" in verdict.reason
            assert f"cannot reach node {gone}" in verdict.reason
            assert gone not in {node.node_id for node in nameserver.lookups.alive_nodes()}
            assert len(nameserver.lookups.nodes()) == 3
        await cluster.start(gone)
        await asyncio.sleep(1.5)
        assert all(len(it.lookups.alive_nodes()) == 3 for it in cluster.running.values())
        await cluster.close()

    simulate(scenario())


def test_who_hears_nothing_of_the_metadata_leader_knows_it_and_a_new_leader_heals_it() -> None:
    async def scenario() -> None:
        cluster = Nameservers(43)
        await cluster.start_all()
        leader = await cluster.elected()
        await asyncio.sleep(1)
        assert not any(it.lookups.out_of_touch for it in cluster.running.values())
        cluster.network.split({leader})
        others = [it for node_id, it in cluster.running.items() if node_id != leader]
        await cluster.until(lambda: cluster.running[leader].lookups.out_of_touch, 5)
        await cluster.until(lambda: any(it.lookups.leads_metadata for it in others), 5)
        await asyncio.sleep(2)
        assert cluster.running[leader].lookups.out_of_touch
        assert not any(it.lookups.out_of_touch for it in others)
        cluster.network.heal()
        await cluster.until(lambda: not cluster.running[leader].lookups.out_of_touch, 5)
        await cluster.close()

    simulate(scenario())


def test_a_node_that_the_metadata_leader_alone_does_not_hear_lives_and_gets_a_leader_that_does() -> None:
    """A bridge: the leader and another one do not hear each other, and both hear the third."""

    async def scenario() -> None:
        cluster = Nameservers(45)
        await cluster.start_all()
        leader = await cluster.elected()
        await asyncio.sleep(4)
        silent, bridge = (node_id for node_id in cluster.running if node_id != leader)
        cluster.network.cut = {frozenset({leader, silent})}
        for _ in range(100):
            await asyncio.sleep(0.1)
            for nameserver in cluster.running.values():
                assert silent in {node.node_id for node in nameserver.lookups.alive_nodes()}
        assert await cluster.elected() == bridge
        await cluster.running[silent].administration.create_topic("made-by-the-silent-one", 1, 1, {})
        await cluster.settled()
        assert not any(nameserver.lookups.out_of_touch for nameserver in cluster.running.values())
        cluster.network.heal()
        await asyncio.sleep(5)
        assert cluster.leader() == bridge, "nothing is better than that"
        await cluster.close()

    simulate(scenario())


def test_where_everybody_misses_somebody_the_leader_stays_and_nobody_is_dead() -> None:
    async def scenario() -> None:
        cluster = Nameservers(46, count=4)
        await cluster.start_all()
        leader = await cluster.elected()
        await asyncio.sleep(4)
        silent, one, other = (node_id for node_id in cluster.running if node_id != leader)
        cluster.network.cut = {frozenset({leader, silent}), frozenset({one, other})}
        await asyncio.sleep(1.4)
        for _ in range(150):
            await asyncio.sleep(0.1)
            assert cluster.leader() == leader
            verdict = cluster.running[one].lookups.verdict(silent)
            assert verdict.state is not NodeState.DEAD
        assert verdict.state is NodeState.SUSPECTED
        assert "reaches it" in verdict.reason
        await cluster.kill(silent)
        await asyncio.sleep(12)
        assert cluster.running[one].lookups.verdict(silent).state is NodeState.DEAD
        await cluster.close()

    simulate(scenario())


def test_a_node_that_stops_is_not_waited_for() -> None:
    async def scenario() -> None:
        cluster = Nameservers(42)
        await cluster.start_all()
        leader = await cluster.elected()
        await asyncio.sleep(1)
        gone = next(node_id for node_id in cluster.running if node_id != leader)
        await cluster.stop(gone)
        await asyncio.sleep(0.6)
        for nameserver in cluster.running.values():
            assert nameserver.lookups.verdict(gone).state is NodeState.DEAD
            assert "it said that it stops" in nameserver.lookups.verdict(gone).reason
        await cluster.start(gone)
        await asyncio.sleep(1.1)
        assert all(len(it.lookups.alive_nodes()) == 3 for it in cluster.running.values())
        await cluster.close()

    simulate(scenario())


def test_a_new_leader_keeps_dead_nodes_dead_and_gives_the_others_time() -> None:
    async def scenario() -> None:
        cluster = Nameservers(32, count=5)
        await cluster.start_all()
        leader = await cluster.elected()
        gone = next(node_id for node_id in cluster.running if node_id != leader)
        await cluster.kill(gone)
        await asyncio.sleep(7)
        await cluster.kill(leader)
        await cluster.elected()
        await asyncio.sleep(0.7)
        for nameserver in cluster.running.values():
            assert nameserver.lookups.verdict(gone).state is NodeState.DEAD
            assert nameserver.lookups.verdict(leader).state is not NodeState.DEAD
        await cluster.close()

    simulate(scenario())


def test_leaders_of_groups_are_known_everywhere_within_a_second_and_the_highest_term_holds() -> None:
    async def scenario() -> None:
        cluster = Nameservers(33, write_groups=4)
        await cluster.start_all()
        await cluster.elected()
        await cluster.until(lambda: all(it.lookups.placements() for it in cluster.running.values()))
        topic = await cluster.running[1].administration.create_topic("t", 64, 1, {})
        await cluster.settled()
        queue_id = next(topic.queue_id(p) for p in range(64) if slot_of(topic.queue_id(p)) % 4 == 2)
        assert {it.lookups.leader(queue_id) for it in cluster.running.values()} == {-1}
        cluster.running[3].learned_leader(2, 3, 5)
        cluster.running[2].learned_leader(2, 2, 4)
        await asyncio.sleep(1.0)
        assert {it.lookups.leader(queue_id) for it in cluster.running.values()} == {3}
        assert all(it.lookups.write_group_leaders()[2] == (3, 5) for it in cluster.running.values())
        cluster.running[1].learned_leader(2, 1, 6)
        await asyncio.sleep(1.0)
        assert {it.lookups.leader(queue_id) for it in cluster.running.values()} == {1}
        assert {it.lookups.leader(topic.queue_id(64)) for it in cluster.running.values()} == {-1}
        other = next(it for it in (1, 2, 3) if it != cluster.leader())
        cluster.running[other].learned_leader(2, other, 7)
        await asyncio.sleep(1.0)
        await cluster.kill(other)
        await asyncio.sleep(7)
        assert {it.lookups.leader(queue_id) for it in cluster.running.values()} == {-1}
        await cluster.close()

    simulate(scenario())


def test_what_a_node_says_of_itself_reaches_the_leader() -> None:
    async def scenario() -> None:
        cluster = Nameservers(34)
        await cluster.start_all()
        leader = await cluster.elected()
        other = next(node_id for node_id in cluster.running if node_id != leader)
        cluster.conditions[other] = Condition("disk 1 is full", 12_345)
        await asyncio.sleep(1.5)
        report = cluster.running[leader].lookups.report(other)
        assert report is not None
        assert (report.disk, report.lag_bytes) == ("disk 1 is full", 12_345)
        assert report.applied == cluster.running[other].lookups.version
        assert cluster.running[other].lookups.report(leader) is None, "only the leader knows"
        await cluster.close()

    simulate(scenario())


def test_a_second_node_of_the_same_id_is_refused_while_the_first_lives() -> None:
    async def scenario() -> None:
        cluster = Nameservers(35)
        await cluster.start_all()
        await cluster.settled()
        await cluster.start(4)
        await cluster.kill(4)
        await asyncio.sleep(0.3)
        cluster.disks[4] = SimulatedFiles(1234)
        with pytest.raises(NodeIdTaken, match=r"node 4 runs at 10\.0\.0\.4:9093 from another directory"):
            await cluster.start(4)
        await asyncio.sleep(7)
        await cluster.start(4)  # the first one is dead by now
        await cluster.settled()
        await cluster.close()

    simulate(scenario())


def test_a_voter_that_lost_its_directory_does_not_vote_again() -> None:
    async def scenario() -> None:
        cluster = Nameservers(36)
        await cluster.start_all()
        await cluster.settled()
        await cluster.kill(3)
        cluster.disks[3] = SimulatedFiles(77)
        with pytest.raises(ForeignDirectory, match="node 3 from another directory"):
            await cluster.start(3)
        await cluster.close()

    simulate(scenario())


def test_a_stranger_follows_and_asks_for_changes() -> None:
    async def scenario() -> None:
        cluster = Nameservers(37)
        await cluster.start_all()
        await cluster.running[1].administration.create_topic("before", 1, 1, {})
        stranger = await cluster.start(9)
        assert stranger.lookups.metadata_voters == {1, 2, 3}
        assert stranger.lookups.topic("before") is not None
        await cluster.running[2].administration.create_topic("after", 1, 1, {})
        made = await stranger.administration.create_topic("mine", 2, 1, {})
        assert stranger.lookups.topic("mine") is made
        await cluster.until(lambda: stranger.lookups.topic("after") is not None)
        leader = await cluster.elected()
        await cluster.kill(leader)
        await stranger.administration.create_topic("later", 1, 1, {})
        await cluster.start(leader)
        await cluster.settled()
        assert {node.node_id for node in cluster.running[1].lookups.alive_nodes()} == {1, 2, 3, 9}
        await cluster.close()

    simulate(scenario())


def test_a_dead_member_is_replaced() -> None:
    async def scenario() -> None:
        cluster = Nameservers(38)
        await cluster.start_all()
        for number in range(20):
            await cluster.running[1].administration.create_topic(f"t{number}", 1, 1, {})
        leader = await cluster.elected()
        gone, asked = (node_id for node_id in cluster.running if node_id != leader)
        with pytest.raises(InvalidMembership, match="not registered"):
            await cluster.running[asked].operations.change_member(gone, 4)
        await cluster.start(4)
        await cluster.kill(gone)
        with pytest.raises(InvalidMembership, match="no member"):
            await cluster.running[asked].operations.change_member(7, 0)
        await cluster.running[asked].operations.change_member(gone, 4)
        voters = set(cluster.first_quorum) - {gone} | {4}
        await cluster.settled()
        assert all(it.lookups.metadata_voters == voters for it in cluster.running.values())
        await cluster.running[asked].operations.change_member(gone, 4)  # done already
        await cluster.kill(leader)
        await cluster.running[4].administration.create_topic("by the new one".replace(" ", "-"), 1, 1, {})
        await cluster.start(leader)
        for node_id in list(cluster.running):
            await cluster.kill(node_id)
        await asyncio.gather(*(cluster.start(node_id) for node_id in sorted(voters)))
        await cluster.settled()
        assert cluster.running[4].quorum.membership.voters == voters
        await cluster.close()

    simulate(scenario())


def test_a_move_is_remembered_once_it_is_logged_by_a_majority() -> None:
    async def scenario() -> None:
        cluster = Nameservers(38, write_groups=2)
        await cluster.start_all()
        await cluster.until(lambda: bool(cluster.running[2].lookups.placements()))
        await cluster.start(4)
        old = await cluster.elected()
        others = set(cluster.first_quorum) - {old}
        cluster.network.split({old}, others)
        asked = asyncio.create_task(cluster.running[old].operations.prefer_leader(0, min(others), why="in vain"))
        await asyncio.sleep(0.1)
        assert cluster.running[old].recent_moves.told() == [], "nobody but this node has it yet"
        await cluster.until(lambda: cluster.leader() in others)
        with pytest.raises(MetadataUnavailable):
            await asked
        assert cluster.running[old].recent_moves.told() == []
        cluster.network.heal()
        await cluster.settled()
        await cluster.close()

    simulate(scenario())


def test_replicas_are_moved_and_what_makes_no_sense_is_refused() -> None:
    async def scenario() -> None:
        cluster = Nameservers(39, write_groups=2)
        await cluster.start_all()
        await cluster.until(lambda: bool(cluster.running[2].lookups.placements()))
        await cluster.start(4)
        mover = cluster.running[2]
        before = mover.lookups.placements()[1]
        for group, old, new, words in (
            (7, 1, 4, "not placed"), (1, 5, 4, "no replica on node 5"), (1, 1, 2, "different nodes"),
            (1, 1, 8, "not registered"),
        ):  # fmt: skip
            with pytest.raises(InvalidPlacement, match=words):
                await mover.operations.move_replica(group, old, new)
        assert await mover.operations.move_replica(1, 1, why="a reason") == 4
        moved = tuple(4 if it == 1 else it for it in before)
        assert mover.lookups.placements()[1] == moved
        with pytest.raises(InvalidPlacement, match="no replica on node 1 that could lead it"):
            await mover.operations.prefer_leader(1, 1)
        await mover.operations.prefer_leader(1, moved[2], why="another")
        assert mover.lookups.placements()[1] == (moved[2], moved[0], moved[1])
        remembered = [it for nameserver in cluster.running.values() for it in nameserver.recent_moves.told()]
        assert [(it.group, it.old, it.new, it.preferred, it.why) for it in remembered] == [
            (1, 1, 4, False, "a reason"), (1, moved[0], moved[2], True, "another"),
        ]  # fmt: skip
        await cluster.settled()
        await cluster.close()

    simulate(scenario())


def test_racks_are_spread() -> None:
    async def scenario() -> None:
        cluster = Nameservers(40, count=4, write_groups=8, replication_factor=2)
        cluster.racks = {1: "a", 2: "a", 3: "b", 4: "b"}
        await cluster.start_all()
        await cluster.until(lambda: bool(cluster.running[1].lookups.placements()))
        for replicas in cluster.running[1].lookups.placements().values():
            assert len({cluster.racks[node_id] for node_id in replicas}) == 2
        await cluster.close()

    simulate(scenario())


@pytest.mark.parametrize("log_bytes_max", [16 * 1024, 16 << 20], ids=["behind a snapshot", "with the log"])
def test_who_was_replaced_while_it_was_away_follows_and_can_be_a_member_again(log_bytes_max: int) -> None:
    async def scenario() -> None:
        cluster = Nameservers(44, log_bytes_max=log_bytes_max)
        await cluster.start_all()
        leader = await cluster.elected()
        gone, asked = (node_id for node_id in cluster.running if node_id != leader)
        await cluster.start(4)
        await cluster.kill(gone)
        await cluster.running[asked].operations.change_member(gone, 4)
        for number in range(200):
            await cluster.running[asked].administration.create_topic(
                f"meanwhile-{number}", 1, 1, {"retention.ms": "1000"}
            )
        back = await cluster.start(gone)
        voters = {leader, asked, 4}
        await cluster.until(lambda: back.lookups.topic("meanwhile-199") is not None)
        assert back.lookups.metadata_voters == voters
        assert not back.lookups.is_metadata_member
        await back.administration.create_topic("asked-by-it", 1, 1, {})
        term = cluster.running[leader].quorum.term
        await asyncio.sleep(10)
        assert cluster.running[leader].quorum.term == term, "it stands for no election"
        assert not back.lookups.out_of_touch
        assert {node.node_id for node in cluster.running[asked].lookups.alive_nodes()} == {1, 2, 3, 4}
        assert cluster.running[leader].lookups.verdict(gone).state is NodeState.ALIVE
        await cluster.running[leader].operations.change_member(4, gone)
        assert cluster.running[leader].quorum.membership.voters == {1, 2, 3}
        await cluster.until(lambda: back.lookups.is_metadata_member)
        await cluster.kill(4)
        await cluster.kill(asked)
        await back.administration.create_topic("with-its-vote", 1, 1, {})
        await cluster.start(asked)
        await cluster.settled()
        await cluster.close()

    simulate(scenario())


def test_machines_are_spread_in_a_new_cluster_that_waits_for_all_of_its_nodes() -> None:
    async def scenario() -> None:
        cluster = Nameservers(46, count=2, write_groups=8, replication_factor=2, storage_nodes_min=4)
        cluster.machines = {1: "m1", 2: "m1", 3: "m2", 4: "m2"}
        await cluster.start_all()
        await asyncio.sleep(5)
        assert not cluster.running[1].lookups.placements()
        await cluster.start(3)
        await cluster.start(4)
        await cluster.until(lambda: bool(cluster.running[1].lookups.placements()))
        lookups = cluster.running[1].lookups
        assert {node.node_id: node.machine for node in lookups.nodes()} == cluster.machines
        for replicas in lookups.placements().values():
            assert len({cluster.machines[node_id] for node_id in replicas}) == 2
        await cluster.close()

    simulate(scenario())


def test_a_machine_with_several_replicas_of_a_write_group_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        cluster = Nameservers(47, count=3, write_groups=2, replication_factor=3)
        cluster.machines = {1: "m1", 2: "m1", 3: "m2"}
        await cluster.start_all()
        await cluster.until(lambda: bool(cluster.running[1].lookups.placements()))
        await cluster.close()

    simulate(scenario())
    assert "2 of 2 write groups have several replicas on machine m1, as there are too few other machines" in caplog.text


def test_a_node_says_its_machine_as_soon_as_all_nodes_read_it() -> None:
    """In a cluster that began with a node of an older version."""

    async def scenario() -> None:
        cluster = Nameservers(48, feature_level="automatic")
        cluster.machines = {1: "m1", 2: "m2", 3: "m3"}
        cluster.levels[3] = LevelRange(FeatureLevel.FIRST, FeatureLevel.TENANTED)
        await cluster.start_all()
        await cluster.until(lambda: bool(cluster.running[1].lookups.placements()))
        lookups = cluster.running[1].lookups
        assert lookups.feature_level == FeatureLevel.TENANTED
        assert {node.machine for node in lookups.nodes()} == {None}
        await cluster.stop(3)
        del cluster.levels[3]
        await cluster.start(3)
        await cluster.until(lambda: {node.node_id: node.machine for node in lookups.nodes()} == cluster.machines)
        await cluster.close()

    simulate(scenario())


def test_who_is_cut_off_and_was_not_replaced_stays_a_member() -> None:
    async def scenario() -> None:
        cluster = Nameservers(45)
        await cluster.start_all()
        leader = await cluster.elected()
        away = next(node_id for node_id in cluster.running if node_id != leader)
        cluster.network.split({away})
        await asyncio.sleep(20)
        assert cluster.running[away].quorum.is_member
        cluster.network.heal()
        await cluster.until(lambda: cluster.running[away].lookups.metadata_leader > 0)
        await cluster.settled()
        await cluster.close()

    simulate(scenario())


def test_without_a_majority_a_start_waits_and_goes_on_when_there_is_one() -> None:
    async def scenario() -> None:
        cluster = Nameservers(41)
        await cluster.start_all()
        await cluster.running[1].administration.create_topic("kept", 1, 1, {})
        for node_id in (1, 2, 3):
            await cluster.stop(node_id)
        alone = asyncio.ensure_future(cluster.start(1))
        await asyncio.sleep(30)
        first = cluster.running.get(1)
        assert first is not None, "what was known to be committed at the stop is served"
        assert first.lookups.topic("kept") is not None
        with pytest.raises(MetadataUnavailable):
            await first.administration.create_topic("refused", 1, 1, {})
        await cluster.start(2)
        await alone
        await first.administration.create_topic("taken", 1, 1, {})
        await cluster.close()

    simulate(scenario())


MESSAGES = "journal/00000000000000000001.wal"


def test_a_node_that_stores_and_has_no_vote_starts_again_on_its_directory_and_on_no_other_ones() -> None:
    """It keeps no metadata on disk: the cluster knows whether the messages in the directory are of its topics."""

    async def scenario() -> None:
        cluster, others = Nameservers(91), Nameservers(92)
        await cluster.start_all()
        await others.start_all()
        await cluster.start(4)
        cluster.disks[4].put(MESSAGES, b"messages")
        await cluster.kill(4)
        back = await cluster.start(4)
        assert 4 in {node.node_id for node in back.lookups.nodes()}
        await cluster.stop(4)
        others.disks[4] = cluster.disks[4]
        with pytest.raises(ForeignDirectory, match="this cluster does not know it as that of node 4"):
            await others.start(4)
        cluster.disks[5] = SimulatedFiles()
        cluster.disks[5].put(MESSAGES, b"messages")
        with pytest.raises(ForeignDirectory, match="holds messages but no metadata"):
            await cluster.start(5)
        leader = cluster.running[await cluster.elected()]
        await leader.operations.set_draining(4, draining=True)
        await cluster.until(lambda: leader.lookups.verdict(4).state is NodeState.DEAD)
        await leader.operations.remove_node(4)
        with pytest.raises(NodeWasRemoved):
            await cluster.start(4)
        await cluster.close()
        await others.close()

    simulate(scenario())


def test_slots_without_queues_go_back_where_many_are_kept_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduced_slots, "RESTORED_FROM", 1)

    async def scenario() -> None:
        cluster = Nameservers(83)
        await cluster.start_all()
        leader = cluster.running[await cluster.elected()]
        await cluster.until(lambda: len(leader.lookups.placements()) > 0)
        once = leader.lookups.write_groups()
        await leader.operations.add_write_groups(once + 1, 1)
        topic = await leader.administration.create_topic("kept-once", 1, 3, {})
        slot, thrice = slot_of(topic.queue_id(0)), leader.lookups.write_group(topic.queue_id(0))
        await leader.operations.move_slot_of(topic.name, 0, once)
        await leader.operations.slot_moved(slot, once, 1, [thrice])
        await leader.administration.delete_topics([topic.name])
        await asyncio.sleep(1)
        moving, propose, refused = leader.lookups.moving_slots, leader.proposer.propose, list[str]()
        assert not moving.wishes, "its records are not gone yet"

        async def full_once(make: Make, request: bytes) -> ChangeOutcome:
            if make.__name__ == "_make_restoring" and not refused:
                refused.append("too many changes wait")
                raise MetadataUnavailable(refused[0])
            return await propose(make, request)

        monkeypatch.setattr(leader.proposer, "propose", full_once)
        await leader.operations.slot_settled(slot, 1)
        await cluster.until(lambda: slot in moving.wishes)
        assert refused, "and it was tried again"
        assert len(leader.lookups.placements()[moving.wishes[slot].group]) == 3
        await cluster.close()

    simulate(scenario())
