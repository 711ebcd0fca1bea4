"""The metadata of a node consists of parts: a fault of our own in one of them ends as little as it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.nameserver.cluster.heartbeats import Condition
from mainstem.nameserver.cluster.node_liveness import NodeState
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.state.changes import Made


def once_broken(work: Callable[..., Any]) -> Callable[..., Any]:
    broken = [True]

    async def run(*arguments: Any, **named: Any) -> Any:
        if broken:
            broken.pop()
            raise ArithmeticError("made up")
        return await work(*arguments, **named)

    return run


def break_heartbeats(cluster: Nameservers, node_id: int) -> None:
    told, faults = cluster.condition, [ArithmeticError("made up")]

    def condition(asked: int) -> Condition:
        if asked == node_id and faults:
            raise faults.pop()
        return told(asked)

    cluster.condition = condition  # type: ignore[assignment, method-assign]


def break_standing(cluster: Nameservers, node_id: int) -> None:
    group = cluster.running[node_id].quorum
    group.changed_since = once_broken(group.changed_since)  # type: ignore[method-assign]


def other_than(node_id: int, cluster: Nameservers) -> int:
    return next(it for it in cluster.running if it != node_id)


@pytest.mark.parametrize("breaks", [break_heartbeats, break_standing])
def test_a_part_that_dies_is_begun_again_and_the_metadata_goes_on(
    breaks: Callable[[Nameservers, int], None],
) -> None:
    async def scenario() -> None:
        cluster = Nameservers(71)
        await cluster.start_all()
        leader = await cluster.elected()
        victim = other_than(leader, cluster)
        nameserver = cluster.running[victim]
        breaks(cluster, victim)
        nameserver.quorum.tell()
        await cluster.until(lambda: nameserver.supervision.why_not() is not None)
        await cluster.until(lambda: nameserver.supervision.why_not() is None)
        assert nameserver.failure is None
        await nameserver.administration.create_topic("goes-on", 1, 1, {})
        await cluster.settled()
        assert cluster.running[leader].lookups.verdict(victim).state is NodeState.ALIVE
        await cluster.close()

    simulate(scenario())


def test_a_change_that_cannot_be_made_fails_alone() -> None:
    async def scenario() -> None:
        cluster = Nameservers(72)
        await cluster.start_all()
        leader = cluster.running[await cluster.elected()]

        async def broken() -> Made:
            raise ArithmeticError("made up")

        with pytest.raises(ArithmeticError):
            await leader.proposer.propose(broken, b"")
        await leader.administration.create_topic("goes-on", 1, 1, {})
        assert leader.failure is None
        await cluster.close()

    simulate(scenario())


def test_a_state_that_may_be_half_changed_ends_the_node() -> None:
    async def scenario() -> None:
        cluster = Nameservers(73)
        await cluster.start_all()
        victim = cluster.running[other_than(await cluster.elected(), cluster)]
        ended: list[bool] = []
        victim.supervision.ended.add_done_callback(lambda _: ended.append(True))
        victim.replica.apply = once_broken(victim.replica.apply)  # type: ignore[method-assign]
        with pytest.raises(MetadataUnavailable):
            await victim.administration.create_topic("applied-by-others", 1, 1, {})
        assert ended
        assert victim.supervision.disk_failure is None
        assert "ArithmeticError" in (victim.supervision.why_not() or "")
        await cluster.close()

    simulate(scenario())


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_disk_that_fails_the_metadata_ends_the_node_and_says_so(operation: str) -> None:
    async def scenario() -> None:
        cluster = Nameservers(74)
        await cluster.start_all()
        node_id = other_than(await cluster.elected(), cluster)
        victim = cluster.running[node_id]
        ended: list[bool] = []
        victim.supervision.ended.add_done_callback(lambda _: ended.append(True))
        cluster.disks[node_id].fail(operation, path="metadata")
        await cluster.running[cluster.leader()].administration.create_topic("on-two-disks", 1, 1, {})
        await cluster.until(lambda: bool(ended))
        assert "Input/output error" in (victim.supervision.disk_failure or "")
        await cluster.close()

    simulate(scenario())
