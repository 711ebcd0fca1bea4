"""`mainstem cluster status` on a node that is dead: when its replicas are rebuilt, and what that waits for."""

from __future__ import annotations

import pytest

from mainstem.cli.cluster.status import rebuilding
from mainstem.console.views.of_cluster import LostNodeView


@pytest.mark.parametrize(
    ("rebuilt_in_seconds", "waits_for", "said"),
    [
        (600.0, [], "will be rebuilt on other nodes in 10 min 0 s"),
        (0.0, [], "are being rebuilt on other nodes"),
        (0.0, ["write group 2: add a node"], "are being rebuilt on other nodes; waits: write group 2: add a node"),
        (None, [], "stay until it is back, or another takes its place (mainstem cluster replace)"),
    ],
)
def test_a_lost_node_is_told_with_what_becomes_of_its_replicas(
    rebuilt_in_seconds: float | None, waits_for: list[str], said: str
) -> None:
    view = LostNodeView(
        node=3, dead_seconds=300.0, rebuilt_in_seconds=rebuilt_in_seconds, groups_left=[0, 2], waits_for=waits_for
    )
    assert rebuilding(view) == f"node 3 has been dead for 5 min 0 s: its replicas (2) {said}"
