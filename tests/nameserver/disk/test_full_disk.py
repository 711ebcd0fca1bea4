"""A disk 1 that others have filled: members wait for room and go on; what was answered is there, also when the power
goes meanwhile, and who leads makes way for those who can write."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from typing import Any

import pytest
from tests.fakes.files import SimulatedFiles
from tests.nameserver.nameservers import Nameservers, simulate
from tests.nameserver.quorum.test_cluster_faults import History

from mainstem.model import NewTopic, Node, Topic
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import MetadataUnavailable, TopicExists
from mainstem.nameserver.nameserver import Nameserver

NODE = Node(node_id=1, host="127.0.0.1", port=9092)
CONFIG = NameserverConfig(log_bytes_max=8192)
LOG = "metadata/00000000000000000001.log"
SECONDS = 20.0


async def fill(disk: SimulatedFiles, bytes_left: int = 0) -> None:
    usage = await disk.usage()
    disk.takes_what_fits = True
    disk.capacity_bytes = usage.total_bytes - usage.free_bytes + bytes_left


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def warnings(caplog: pytest.LogCaptureFixture) -> tuple[int, int]:
    """How often it was said that there is no room, and that there is again."""
    return len(lines(caplog, "no room on disk 1 for")), len(lines(caplog, "there is room on disk 1 again"))


# --- a node alone ----------------------------------------------------------------------------------------------


async def opened(disk: SimulatedFiles, seed: int = 1) -> Nameserver:
    return await Nameserver.open(disk, random.Random(seed), CONFIG, NODE)


async def created(nameserver: Nameserver, name: str) -> Topic:
    """As a client does it that tries again."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await nameserver.administration.create_topic(name, 1, 1, {})
            except MetadataUnavailable:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("bytes_left", [0, 1, 30, 60, 90])
def test_a_node_alone_refuses_changes_until_there_is_room(bytes_left: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = SimulatedFiles(1)
        nameserver = await opened(disk)
        await nameserver.administration.create_topic("before", 1, 1, {})
        await fill(disk, bytes_left)
        for name in ("a", "b", "c"):
            with pytest.raises(MetadataUnavailable, match="no room on disk 1"):
                await nameserver.administration.create_topic(name, 1, 1, {})
        await asyncio.sleep(60)
        assert [topic.name for topic in nameserver.lookups.topics()] == ["before"]
        await nameserver.waits.current()
        assert warnings(caplog) == (1, 0)
        (warning,) = lines(caplog, "no room")
        assert f"bytes of {LOG} (No space left on device)" in warning
        assert "free space where write_dir is" in warning
        disk.capacity_bytes = None
        later = await created(nameserver, "later")
        assert warnings(caplog) == (1, 1)
        names = [topic.name for topic in nameserver.lookups.topics()]
        assert names == ["before", "a", "later"], "the change that was under way is made; the others were refused"
        await nameserver.close()
        disk.crash()
        again = await opened(disk, 2)
        assert [topic.name for topic in again.lookups.topics()] == names
        assert again.lookups.topic("later") == later
        await again.close()

    with caplog.at_level(logging.WARNING):
        simulate(scenario())


@pytest.mark.parametrize("seed", range(12))
def test_a_node_alone_loses_nothing_when_it_ends_while_its_disk_is_full(seed: int) -> None:
    async def scenario() -> None:
        disk = SimulatedFiles(seed)
        rng = random.Random(seed)
        nameserver = await opened(disk)
        topics = [
            await nameserver.administration.create_topic(f"t{number}", 1, 1, {}) for number in range(rng.randint(1, 60))
        ]
        await fill(disk, rng.randint(0, 200))
        refused: set[str] = set()
        while not refused:
            name = f"t{len(topics)}"
            try:
                topics.append(await nameserver.administration.create_topic(name, 1, 1, {}))
            except MetadataUnavailable:
                refused.add(name)
        await asyncio.sleep(rng.uniform(0, 1))
        if rng.random() < 0.5:
            async with asyncio.timeout(10):
                await nameserver.close()
        else:
            nameserver.task.cancel()
            await asyncio.wait([nameserver.task])
        disk.crash()
        disk.capacity_bytes = None
        again = await opened(disk, 2)
        found = {topic.name: topic for topic in again.lookups.topics()}
        assert {topic.name: topic for topic in topics}.items() <= found.items()
        assert found.keys() <= {topic.name for topic in topics} | refused
        await again.close()

    simulate(scenario())


def test_a_start_waits_for_room_and_can_be_given_up(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = SimulatedFiles(1)
        await (await opened(disk)).close()
        await fill(disk)
        await (await opened(disk)).close()  # its entry takes the place of the mark; a mark finds no room any more
        starting = asyncio.ensure_future(opened(disk, 2))
        await asyncio.wait([starting], timeout=60)
        assert not starting.done()
        starting.cancel()
        await asyncio.wait([starting], timeout=10)
        assert starting.cancelled()
        starting = asyncio.ensure_future(opened(disk, 3))
        await asyncio.wait([starting], timeout=60)
        disk.capacity_bytes = None
        async with asyncio.timeout(10):
            nameserver = await starting
        await nameserver.administration.create_topic("a", 1, 1, {})
        await nameserver.close()

    with caplog.at_level(logging.WARNING):
        simulate(scenario())
    assert warnings(caplog) == (2, 1)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_what_is_refused_for_another_reason_ends_the_changes(operation: str) -> None:
    async def scenario() -> None:
        disk = SimulatedFiles(1)
        nameserver = await opened(disk)
        await fill(disk)
        with pytest.raises(MetadataUnavailable, match="no room"):
            await nameserver.administration.create_topic("a", 1, 1, {})
        disk.capacity_bytes = None
        disk.fail(operation)
        await asyncio.wait([nameserver.task], timeout=10)
        assert "Input/output error" in str(nameserver.failure)
        with pytest.raises(MetadataUnavailable):
            await nameserver.administration.create_topic("b", 1, 1, {})
        await nameserver.close()

    simulate(scenario())


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_what_a_refused_sync_dropped_is_written_again(operation: str, error: int) -> None:
    """Each write and each sync of some changes is refused in turn; then the power goes."""

    async def refused(nth: int) -> bool:
        disk = SimulatedFiles(nth)
        nameserver = await opened(disk)
        disk.fail(operation, path=LOG, nth=nth, error=error)
        names = [(await created_or_there(nameserver, f"t{number}")).name for number in range(4)]
        happened = not disk.waits_to_fail
        nameserver.task.cancel()
        await asyncio.wait([nameserver.task])
        disk.crash()
        again = await opened(disk, 3)
        assert [topic.name for topic in again.lookups.topics()] == names
        await again.close()
        return happened

    async def scenario() -> None:
        tried = 0
        while await refused(tried + 1):
            tried += 1
        assert tried == (4 if operation == "sync" else 8), "a change takes one sync; it and its mark are written"

    simulate(scenario())


async def created_or_there(nameserver: Nameserver, name: str) -> Topic:
    """Tries again, and takes it for made if it was made all the same."""
    async with asyncio.timeout(30):
        while True:
            if (there := nameserver.lookups.topic(name)) is not None:
                return there
            try:
                return await nameserver.administration.create_topic(name, 1, 1, {})
            except (MetadataUnavailable, TopicExists):
                await asyncio.sleep(0.05)


# --- several nodes ---------------------------------------------------------------------------------------------


async def started(seed: int, **config: Any) -> tuple[Nameservers, int]:
    """A cluster of three, and who leads it."""
    cluster = Nameservers(seed, **config)
    await cluster.start_all()
    await cluster.running[1].administration.create_topic("before", 1, 1, {})
    await cluster.settled()
    return cluster, await cluster.elected()


def test_a_follower_without_room_falls_behind_and_catches_up(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        cluster, leader = await started(1)
        full = next(node_id for node_id in cluster.running if node_id != leader)
        applied = cluster.running[full].replica.applied_index
        await fill(cluster.disks[full], 10)
        for number in range(30):
            await cluster.running[leader].administration.create_topic(f"t{number}", 1, 1, {})
        await asyncio.sleep(30)
        assert cluster.running[full].replica.applied_index == applied, "it has nothing that is not on its disk"
        assert cluster.leader() == leader
        assert cluster.running[leader].quorum.term == cluster.running[full].quorum.term
        assert warnings(caplog) == (1, 0)
        cluster.disks[full].capacity_bytes = None
        await cluster.settled()
        assert cluster.running[full].lookups.topic("t29") is not None
        assert warnings(caplog) == (1, 1)
        await cluster.running[full].administration.create_topic("later", 1, 1, {})
        await cluster.close()

    with caplog.at_level(logging.WARNING):
        simulate(scenario())


@pytest.mark.parametrize("asked", ["the leader", "another node"])
def test_a_leader_without_room_makes_way_and_the_change_is_made(asked: str) -> None:
    async def scenario() -> None:
        cluster, leader = await started(2)
        other = next(node_id for node_id in cluster.running if node_id != leader)
        await fill(cluster.disks[leader], 10)
        making = asyncio.ensure_future(
            cluster.running[leader if asked == "the leader" else other].administration.create_topic("during", 1, 1, {})
        )
        await cluster.until(lambda: cluster.leader() not in (0, leader), seconds=2)
        if asked == "another node":
            async with asyncio.timeout(2):
                assert (await making).name == "during"
        for number in range(5):
            await cluster.running[other].administration.create_topic(f"t{number}", 1, 1, {})
        cluster.disks[leader].capacity_bytes = None
        async with asyncio.timeout(2):
            assert (await making).name == "during"
        await cluster.settled()
        assert cluster.running[leader].lookups.topic("t4") is not None
        assert [topic.name for topic in cluster.running[leader].lookups.topics()].count("during") == 1
        await cluster.close()

    simulate(scenario())


def test_a_node_without_room_that_is_elected_makes_way() -> None:
    async def scenario() -> None:
        cluster, leader = await started(3)
        full, third = (node_id for node_id in cluster.running if node_id != leader)
        await fill(cluster.disks[full])
        cluster.running[leader].quorum.transfer_leadership(third)
        await cluster.until(lambda: cluster.leader() == third)
        await cluster.settled()  # the first entry of that term took the place of the mark behind the last, and has none
        term = cluster.running[third].quorum.term
        cluster.running[third].quorum.transfer_leadership(full)
        await cluster.until(lambda: cluster.running[full].quorum.term > term and cluster.leader() != 0, seconds=2)
        assert cluster.leader() != full
        assert cluster.running[cluster.leader()].quorum.term == term + 2
        await cluster.running[cluster.leader()].administration.create_topic("a", 1, 1, {})
        assert cluster.running[full].quorum.failure is None
        await cluster.close()

    simulate(scenario())


def test_leadership_does_not_wander_among_nodes_that_have_no_room() -> None:
    async def scenario() -> None:
        cluster, leader = await started(4, change_wait_ms_max=3_000)
        for disk in cluster.disks.values():
            await fill(disk)
        with pytest.raises(MetadataUnavailable):
            await cluster.running[leader].administration.create_topic("during", 1, 1, {})
        term = cluster.running[leader].quorum.term
        await asyncio.sleep(60)
        assert {it.lookups.metadata_term for it in cluster.running.values()} == {term}
        for disk in cluster.disks.values():
            disk.capacity_bytes = None
        await cluster.until(lambda: all(it.lookups.topic("during") for it in cluster.running.values()), seconds=2)
        assert {it.lookups.metadata_term for it in cluster.running.values()} == {term}
        await cluster.close()

    simulate(scenario())


def test_two_of_three_without_room_take_no_change_until_one_of_them_has() -> None:
    async def scenario() -> None:
        cluster, leader = await started(5, change_wait_ms_max=3_000)
        first, second = (node_id for node_id in cluster.running if node_id != leader)
        await fill(cluster.disks[first])
        await fill(cluster.disks[second])
        with pytest.raises(MetadataUnavailable):
            await cluster.running[leader].administration.create_topic("a", 1, 1, {})
        assert all(it.lookups.topic("a") is None for it in cluster.running.values())
        cluster.disks[first].capacity_bytes = None
        await created_or_there(cluster.running[leader], "a")
        await cluster.until(lambda: cluster.running[first].lookups.topic("a") is not None)
        assert cluster.running[second].lookups.topic("a") is None
        await cluster.kill(leader)  # what was answered is on the disk of one more
        cluster.disks[second].capacity_bytes = None
        await cluster.elected()
        await cluster.settled()
        assert cluster.running[second].lookups.topic("a") is not None
        await cluster.close()

    simulate(scenario())


@pytest.mark.parametrize("seed", range(6))
def test_nothing_answered_is_lost_when_a_full_node_loses_power(seed: int) -> None:
    async def scenario() -> None:
        cluster, leader = await started(seed)
        full = leader if seed % 2 else next(node_id for node_id in cluster.running if node_id != leader)
        asked = next(node_id for node_id in cluster.running if node_id != full)
        await fill(cluster.disks[full], seed * 50)
        for number in range(5):
            await cluster.running[asked].administration.create_topic(f"t{number}", 1, 1, {})
        await cluster.kill(full)
        cluster.disks[full].capacity_bytes = None
        await cluster.start(full)
        await cluster.settled()
        assert all(cluster.running[full].lookups.topic(f"t{number}") for number in range(5))
        await cluster.close()

    simulate(scenario())


@pytest.mark.parametrize("bytes_left", [600, 8_000])
def test_a_snapshot_from_the_leader_waits_for_room(bytes_left: int) -> None:
    """`bytes_left`: of the entries there is room for some; of the snapshot for none, or a part."""

    async def scenario() -> None:
        cluster, leader = await started(8)

        def fetched() -> int:
            return sum(method == "metadata.fetch_snapshot" for _, _, method in cluster.network.calls_made)

        away = next(node_id for node_id in cluster.running if node_id != leader)
        await cluster.kill(away)
        await cluster.running[leader].administration.create_topics(
            [NewTopic(f"a{number}", 1, 1, {}) for number in range(300)]
        )
        for number in range(30):
            await cluster.running[leader].administration.create_topic(f"b{number}", 1, 1, {})
        others = list(cluster.running)
        for node_id in others:
            await cluster.stop(node_id)  # what they keep in memory for those who are late is gone
        await asyncio.gather(*map(cluster.start, others))
        await fill(cluster.disks[away], bytes_left)
        starting = asyncio.ensure_future(cluster.start(away))
        await cluster.until(lambda: fetched() > 0)
        await asyncio.sleep(30)
        assert fetched() == 1, "it is kept until there is room, and not fetched again"
        assert not any(path.endswith(".tmp") for path in cluster.disks[away].paths()), "others need the room"
        cluster.disks[away].capacity_bytes = None
        nameserver = await starting
        await cluster.settled()
        assert nameserver.lookups.topic("b29") is not None
        await cluster.kill(away)
        await cluster.start(away)
        await cluster.settled()
        await cluster.close()

    simulate(scenario())


def test_a_snapshot_comes_behind_the_entries_that_wait() -> None:
    async def scenario() -> None:
        cluster, leader = await started(9)
        full = next(node_id for node_id in cluster.running if node_id != leader)
        await fill(cluster.disks[full])
        for number in range(5):
            await cluster.running[leader].administration.create_topic(f"early{number}", 1, 1, {})
        logged = cluster.running[leader].quorum.commit_index
        await cluster.until(lambda: cluster.running[full].quorum.entries.last_index() >= logged)
        assert cluster.running[full].replica.applied_index < logged, "they wait for room"
        others = {node_id for node_id in cluster.running if node_id != full}
        cluster.network.split({full}, others)
        for number in range(250):
            await cluster.running[leader].administration.create_topic(f"t{number}", 1, 1, {"retention.ms": "123"})
        for node_id in others:
            await cluster.stop(node_id)  # what they keep in memory for those who are late is gone
        await asyncio.gather(*map(cluster.start, others))
        cluster.network.heal()
        await cluster.until(lambda: cluster.running[full].quorum.installing)
        await asyncio.sleep(5)
        cluster.disks[full].capacity_bytes = None
        await cluster.until(lambda: cluster.running[full].lookups.topic("t249") is not None)
        await cluster.running[full].administration.create_topic("later", 1, 1, {})
        await cluster.kill(full)
        await cluster.start(full)
        await cluster.settled()
        await cluster.close()

    simulate(scenario())


def test_what_is_yet_to_be_replaced_is_not_taken_for_committed() -> None:
    async def scenario() -> None:
        cluster, old = await started(10, change_wait_ms_max=2_000)
        others = {node_id for node_id in cluster.running if node_id != old}
        cluster.network.split({old}, others)
        with pytest.raises(MetadataUnavailable):
            await cluster.running[old].administration.create_topic("lost", 1, 1, {})
        await cluster.until(lambda: cluster.leader() in others)
        for name in ("a", "b", "c"):
            await cluster.running[cluster.leader()].administration.create_topic(name, 1, 1, {})
        await fill(cluster.disks[old])
        cluster.network.heal()
        full, leader = cluster.running[old], cluster.leader()
        term = cluster.running[leader].quorum.term
        await cluster.until(lambda: full.quorum.commit_index == cluster.running[leader].quorum.commit_index)
        assert full.waits_for_room
        assert [waiting(cluster.running[node_id]) for node_id in (old, leader)] == [1, 0]
        cluster.running[leader].quorum.transfer_leadership(*(others - {leader}))
        await cluster.until(lambda: full.directory.vote.term > term)
        await cluster.kill(old)
        cluster.disks[old].capacity_bytes = None
        cluster.network.split({old}, others)
        again = await cluster.start(old)
        assert [topic.name for topic in again.lookups.topics()] == ["before"]
        cluster.network.heal()
        await cluster.until(lambda: again.lookups.topic("c") is not None)
        assert again.lookups.topic("lost") is None
        await cluster.close()

    simulate(scenario())


def waiting(nameserver: Nameserver) -> float:
    """The values of its metrics."""
    (sample,) = [one for one in nameserver.samples() if one.name == "mainstem_metadata_waits_for_room"]
    return sample.value


class FullHistory(History):
    """Disks fill and have room again, on top of all else."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.filled = 0

    async def trouble(self, end: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().trouble(end))
            tasks.create_task(self.fill_disks(end))

    async def fill_disks(self, end: float) -> None:
        now = asyncio.get_running_loop().time
        while now() < end:
            await asyncio.sleep(self.rng.uniform(0.1, 1.0))
            for node_id in self.rng.sample(self.cluster.first_quorum, self.rng.choice([1, 1, 2, 3])):
                await fill(self.cluster.disks[node_id], self.rng.choice([0, 50, 500, 5000]))
                self.filled += 1
            await asyncio.sleep(self.rng.uniform(0.1, 2.0))
            for disk in self.cluster.disks.values():
                disk.capacity_bytes = None

    def check(self) -> None:
        super().check()
        assert all(it.failure is None for it in self.cluster.running.values())


@pytest.mark.parametrize("seed", range(6))
def test_what_was_answered_holds_on_every_node_though_disks_fill(seed: int) -> None:
    history = FullHistory(seed)
    simulate(history.run())
    assert len(history.created) > 30
    assert history.filled > 10
