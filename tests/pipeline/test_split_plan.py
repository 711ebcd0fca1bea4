"""The work of a trigger: the manifest decides, Spark's offsets only name it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from tests.fakes.splitting.split_log import NOW_MS, SplitJournal

from mainstem.pipeline.split.split_plan import (
    GATHER_SECONDS,
    SplitSettings,
    next_offsets,
    plan,
    split_offsets,
    target_offsets,
)
from mainstem.rpc.messages.split import PlannedSlices, PositionsReply
from mainstem.storage.journal.encoding.format import KIND_CONTROL

MANY = 1 << 30


class View:
    """The planner's view of a journal, without a node in between."""

    def __init__(self, journal: SplitJournal, now_ms: int = NOW_MS) -> None:
        self.journal, self.now_ms = journal, now_ms
        self.limit = journal.limit

    def positions(self) -> PositionsReply:
        return PositionsReply(groups=self.journal.positions(), now_ms=self.now_ms)

    def slices(self, after: Mapping[int, int], upto: Mapping[int, int], bytes_max: int) -> PlannedSlices:
        return PlannedSlices(slices=self.journal.slices(after, upto, bytes_max), host="")


@pytest.fixture
def journal(tmp_path: Path) -> SplitJournal:
    """Two groups with three blocks each, one queue a group."""
    journal = SplitJournal(tmp_path, segment_bytes=1 << 20, classes={0: "default"})
    for _ in range(3):
        for group in (0, 1):
            journal.append(group, [(group, b"x" * 100)])
    return journal


def settings(**changes: float) -> SplitSettings:
    return SplitSettings(rpc="", runs_dir="", bytes_per_trigger=MANY, slice_bytes=MANY, **changes)  # type: ignore[arg-type]


def ranges(planned: PlannedSlices) -> list[tuple[int, int, int]]:
    return [(entry.group, entry.after, entry.upto) for work in planned.slices for entry in work.ranges]


def test_everything_is_taken_from_the_manifest_on(journal: SplitJournal) -> None:
    journal.split = {0: 1}
    view = View(journal)
    start = split_offsets(view)
    end = next_offsets(view, start, settings(), bytes_max=MANY, target=None)
    assert (start, end) == ({"0": 1, "1": 0}, {"0": 3, "1": 3})
    assert ranges(plan(view, end, MANY)) == [(0, 1, 3), (1, 0, 3)]


def test_trigger_of_an_older_checkpoint_repeats_nothing(journal: SplitJournal) -> None:
    journal.split = {0: 2, 1: 3}
    assert ranges(plan(View(journal), {"0": 3, "1": 2}, MANY)) == [(0, 2, 3)]


@pytest.mark.parametrize("start", [{"0": 0, "1": 0}, {"0": 900, "1": 900}])
def test_checkpoint_that_disagrees_with_the_manifest_skips_nothing(
    journal: SplitJournal, start: dict[str, int]
) -> None:
    journal.split = {0: 1, 1: 1}
    view = View(journal)
    end = next_offsets(view, start, settings(), bytes_max=MANY, target=None)
    assert end != start
    assert ranges(plan(view, end, MANY)) == [(0, 1, 3), (1, 1, 3)]


def test_bytes_bound_a_trigger_and_repeating_it_covers_all(journal: SplitJournal) -> None:
    view, offsets, steps = View(journal), split_offsets(View(journal)), 0
    while (end := next_offsets(view, offsets, settings(), bytes_max=1, target=None)) != offsets:
        for group, _, upto in ranges(plan(view, end, MANY)):
            journal.split[group] = upto
        offsets, steps = end, steps + 1
    assert (offsets, steps) == ({"0": 3, "1": 3}, 6)


def test_control_blocks_are_no_work_but_a_target_covers_them(journal: SplitJournal) -> None:
    journal.split = {0: 3, 1: 3}
    journal.append(0, [], kind=KIND_CONTROL)
    view = View(journal)
    start = split_offsets(view)
    assert next_offsets(view, start, settings(), bytes_max=MANY, target=None) == start
    end = next_offsets(view, start, settings(), bytes_max=MANY, target=target_offsets(view))
    assert end == {"0": 4, "1": 3}


def test_target_is_not_passed(journal: SplitJournal) -> None:
    view = View(journal)
    target = target_offsets(view)
    journal.append(0, [(0, b"later")])
    start = split_offsets(view)
    assert next_offsets(view, start, settings(), bytes_max=MANY, target=target) == {"0": 3, "1": 3}
    journal.split = {0: 3, 1: 3}
    assert next_offsets(view, {"0": 3, "1": 3}, settings(), bytes_max=MANY, target=target) == {"0": 3, "1": 3}


def test_trigger_waits_for_bytes_or_age(journal: SplitJournal) -> None:
    wanted = settings(start_bytes=MANY, start_age_seconds=60.0)
    start = split_offsets(View(journal))
    young, old = View(journal, NOW_MS + 59_999), View(journal, NOW_MS + 60_000)
    assert next_offsets(young, start, wanted, bytes_max=MANY, target=None) == start
    assert next_offsets(old, start, wanted, bytes_max=MANY, target=None) != start
    enough = settings(start_bytes=100, start_age_seconds=60.0)
    assert next_offsets(young, start, enough, bytes_max=MANY, target=None) != start


def test_trigger_with_enough_bytes_waits_until_it_is_full_or_its_oldest_is_some_seconds_old(
    journal: SplitJournal,
) -> None:
    wanted = settings(start_bytes=100, start_age_seconds=60.0)
    start, gathered = split_offsets(View(journal)), round(GATHER_SECONDS * 1000)
    young, old = View(journal, NOW_MS + gathered - 1), View(journal, NOW_MS + gathered)
    assert next_offsets(young, start, wanted, bytes_max=MANY, target=None) == start
    assert next_offsets(old, start, wanted, bytes_max=MANY, target=None) != start
    waiting = sum(group.unsplit_bytes for group in journal.positions())
    full, not_full = (msgspec.structs.replace(wanted, bytes_per_trigger=waiting + more) for more in (0, 1))
    assert next_offsets(young, start, full, bytes_max=MANY, target=None) != start
    assert next_offsets(young, start, not_full, bytes_max=MANY, target=None) == start


def test_group_the_node_no_longer_names_is_carried_over(journal: SplitJournal) -> None:
    end = next_offsets(View(journal), {"7": 5}, settings(), bytes_max=MANY, target=None)
    assert end == {"0": 3, "1": 3, "7": 5}
