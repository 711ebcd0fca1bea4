"""From when on a dead node is lost: its time counts under one leader, and not while half of all are dead."""

from __future__ import annotations

from mainstem.nameserver.cluster.lost_nodes import LostNode, LostNodes

AFTER = 60.0
ALL = [1, 2, 3, 4, 5]


def test_a_node_is_lost_when_it_has_been_dead_for_the_whole_time() -> None:
    nodes = LostNodes(AFTER)
    nodes.look(100.0, 1, ALL, [5])
    nodes.look(159.0, 1, ALL, [5])
    assert nodes.dead == {5: LostNode(59.0, 1.0)}
    assert nodes.lost == frozenset()
    nodes.look(160.0, 1, ALL, [4, 5])
    assert nodes.lost == {5}
    assert nodes.dead[4] == LostNode(0.0, AFTER)


def test_its_time_begins_anew_when_it_lived_meanwhile_or_another_node_leads_or_none() -> None:
    for leader, dead in ((1, []), (2, [5]), (-1, [5])):
        nodes = LostNodes(AFTER)
        nodes.look(100.0, 1, ALL, [5])
        nodes.look(150.0, leader, ALL, dead)
        nodes.look(170.0, 1, ALL, [5])
        nodes.look(200.0, 1, ALL, [5])
        assert nodes.lost == frozenset(), (leader, dead)
        nodes.look(230.0, 1, ALL, [5])
        assert nodes.lost == {5}


def test_none_is_lost_while_half_of_them_are_dead_or_when_that_is_switched_off() -> None:
    nodes = LostNodes(AFTER)
    nodes.look(0.0, 1, ALL[:4], [3, 4])
    nodes.look(100.0, 1, ALL[:4], [3, 4])
    assert nodes.outage
    assert nodes.dead == {3: LostNode(100.0, None), 4: LostNode(100.0, None)}
    assert nodes.lost == frozenset()
    nodes.look(101.0, 1, ALL[:4], [4])
    assert nodes.lost == {4}, "the time went on meanwhile"

    never = LostNodes(0)
    never.look(0.0, 1, ALL, [5])
    never.look(1e9, 1, ALL, [5])
    assert never.lost == frozenset()
    assert never.dead == {5: LostNode(1e9, None)}
