"""Write groups that are made on nodes which a client asks for, by nameservers on a simulated network."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.model import FeatureLevel, LevelRange
from mainstem.nameserver.errors import FeatureLevelTooLow, InvalidPlacement
from mainstem.node.broker_role import queue_moves
from mainstem.node.broker_role.queue_moves import NodeQueueMoves
from mainstem.node.node_reports import NodeReports

NO_REPORTS = cast(NodeReports, None)


async def begun(cluster: Nameservers, level: FeatureLevel, *, has_objects: bool = False) -> NodeQueueMoves:
    """The moves as a node has them that does not lead the metadata, in a cluster at this feature level."""
    cluster.levels = dict.fromkeys(cluster.first_quorum, LevelRange(FeatureLevel.FIRST, level))
    await cluster.start_all()
    leader = await cluster.elected()
    asked = next(it for node_id, it in cluster.running.items() if node_id != leader)
    await cluster.until(lambda: bool(asked.lookups.placements()))
    await cluster.until(lambda: len(asked.lookups.alive_nodes()) == len(cluster.first_quorum))
    assert asked.lookups.feature_level == level
    return NodeQueueMoves(asked, NO_REPORTS, has_objects=has_objects)


def test_a_write_group_is_made_where_it_was_asked_for_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        cluster = Nameservers(91)
        moves = await begun(cluster, FeatureLevel.newest())
        first = len(moves.placements())
        await moves.make_group((3, 1))
        assert moves.placements()[first] == (3, 1), "the first node is to lead"
        with pytest.raises(InvalidPlacement, match="node 9 is drained, or does not live"):
            await moves.make_group((9, 1))
        monkeypatch.setattr(queue_moves, "GROUPS_MADE_UPTO", first + 2)
        outcomes = await asyncio.gather(*(moves.make_group((2, it)) for it in (1, 3)), return_exceptions=True)
        kinds = {type(outcome) for outcome in outcomes}
        assert kinds == {InvalidPlacement, type(None)}, "one is told that it came late"
        with pytest.raises(InvalidPlacement, match=f"the cluster has {first + 2} write groups"):
            await moves.make_group((2, 3))
        assert len(moves.placements()) == first + 2
        await cluster.close()

    simulate(scenario())


@pytest.mark.parametrize(
    ("level", "has_objects"), [(FeatureLevel.HOSTING, False), (FeatureLevel.JOINED, True)], ids=["disks", "objects"]
)
def test_none_is_made_at_a_level_at_which_queues_could_not_move_there(level: FeatureLevel, has_objects: bool) -> None:
    async def scenario() -> None:
        cluster = Nameservers(92)
        moves = await begun(cluster, level, has_objects=has_objects)
        before = moves.placements()
        with pytest.raises(FeatureLevelTooLow, match="mainstem cluster feature-level --raise"):
            await moves.make_group((3, 1))
        assert moves.placements() == before, "it would stay for good"
        await cluster.close()

    simulate(scenario())
