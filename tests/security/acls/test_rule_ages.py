"""How old the rules may be that another node judged by."""

from __future__ import annotations

from mainstem.security.acls.rule_ages import CHANGES_MAX, RuleAges


class Metadata:
    """The metadata of this node, and its clock."""

    def __init__(self) -> None:
        self.version = object()
        self.index = 10
        self.now = 100.0
        self.ages = RuleAges(lambda: self.version, lambda: self.index, lambda: self.now, 30.0)

    def change_rules(self) -> int:
        self.index += 1
        self.version = object()
        self.ages.look()
        return self.index


def test_rules_are_old_once_a_change_of_them_is_older_than_they_may_be_out_of_date() -> None:
    metadata = Metadata()
    before, changed = metadata.index, metadata.change_rules()
    metadata.now += 29.9
    assert not metadata.ages.are_old(before)
    metadata.now += 0.2
    assert metadata.ages.are_old(before)
    assert not metadata.ages.are_old(changed)


def test_whoever_lags_behind_other_changes_judges_by_the_same_rules() -> None:
    metadata = Metadata()
    before = metadata.index
    metadata.index += 1_000
    metadata.now += 1_000
    assert not metadata.ages.are_old(before)


def test_each_change_counts_from_its_own_time() -> None:
    metadata = Metadata()
    metadata.change_rules()
    first = metadata.index
    metadata.now += 20
    second = metadata.change_rules()
    metadata.now += 15
    assert metadata.ages.are_old(first - 1)
    assert not metadata.ages.are_old(first)
    metadata.now += 20
    assert metadata.ages.are_old(first)
    assert not metadata.ages.are_old(second)


def test_of_very_many_changes_the_last_ones_count_as_one() -> None:
    metadata = Metadata()
    for _ in range(CHANGES_MAX + 100):
        last = metadata.change_rules()
        metadata.now += 0.001
    metadata.now += 31
    assert metadata.ages.are_old(last - 1)
    assert not metadata.ages.are_old(last)
