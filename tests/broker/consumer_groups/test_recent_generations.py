"""Which groups come to agreements again and again."""

from __future__ import annotations

from mainstem.broker.consumer_groups.recent_generations import GROUPS_KEPT, RecentGenerations

COUNT, WITHIN_MS = 4, 1_000


def test_generations_close_to_each_other_are_a_loop_until_the_first_is_long_ago() -> None:
    recent = RecentGenerations(COUNT, WITHIN_MS)
    for number in range(COUNT):
        assert not recent.loops("g", 100 * number)
        recent.note("g", 2, 100 * number)
    assert recent.loops("g", 300)
    assert recent.loops("g", WITHIN_MS)
    assert not recent.loops("g", WITHIN_MS + 1)
    recent.note("g", 2, WITHIN_MS + 1)
    assert not recent.loops("g", WITHIN_MS + 200), "the second to the fifth are further apart"
    assert not recent.loops("another", 300)


def test_a_group_that_grows_has_no_loop() -> None:
    recent = RecentGenerations(COUNT, WITHIN_MS)
    for members in range(1, 3 * COUNT):
        recent.note("g", members, members)
        assert not recent.loops("g", members)
    for number in range(COUNT - 1):
        recent.note("g", 3, 100 + number)
    assert recent.loops("g", 110), "it has as many members as before, or fewer"


def test_groups_are_remembered_up_to_a_bound() -> None:
    recent = RecentGenerations(1, WITHIN_MS)
    for number in range(GROUPS_KEPT + 1):
        recent.note(f"g-{number}", 1, 0)
    assert not recent.loops("g-0", 0)
    assert recent.loops("g-1", 0)
    assert recent.loops(f"g-{GROUPS_KEPT}", 0)
