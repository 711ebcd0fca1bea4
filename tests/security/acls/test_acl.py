"""Rules and filters over rules: what is taken, what is refused, what a filter selects."""

from __future__ import annotations

import pytest

from mainstem.security.acls.acl import (
    CLUSTER_NAME,
    TEXT_LENGTH_MAX,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
    fault_of,
    fault_of_filter,
)

RULE = Acl(
    ResourceKind.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
)  # fmt: skip
PREFIX = RULE._replace(name="ord", pattern=PatternType.PREFIXED)
EVERY = RULE._replace(name="*")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": ResourceKind.ANY}, "resources of kind ANY"),
        ({"kind": ResourceKind.UNKNOWN}, "resources of kind UNKNOWN"),
        ({"pattern": PatternType.MATCH}, "not MATCH"),
        ({"operation": Operation.ANY}, "operation ANY"),
        ({"permission": Permission.ANY}, "not ANY"),
        ({"name": ""}, "name is empty"),
        ({"kind": ResourceKind.CLUSTER}, CLUSTER_NAME),
        ({"principal": "alice"}, "no colon"),
        ({"host": ""}, "host is empty"),
        ({"name": "x" * (TEXT_LENGTH_MAX + 1)}, "resource name has 1025 characters"),
        ({"principal": "User:" + "x" * TEXT_LENGTH_MAX}, "principal has 1029 characters"),
    ],
)
def test_rules_that_make_no_sense(changes: dict[str, object], words: str) -> None:
    assert words in (fault_of(RULE._replace(**changes)) or "")  # type: ignore[arg-type]


def test_rules_that_make_sense() -> None:
    cluster = RULE._replace(kind=ResourceKind.CLUSTER, name=CLUSTER_NAME, operation=Operation.ALTER)
    for rule in (RULE, PREFIX, EVERY, cluster):
        assert fault_of(rule) is None


@pytest.mark.parametrize(
    ("wanted", "selected"),
    [
        (AclFilter(), {RULE, PREFIX, EVERY}),
        (AclFilter(ResourceKind.GROUP), set()),
        (AclFilter(name="orders"), {RULE}),
        (AclFilter(name="orders", pattern=PatternType.LITERAL), {RULE}),
        (AclFilter(name="orders", pattern=PatternType.PREFIXED), set()),
        (AclFilter(name="ord", pattern=PatternType.PREFIXED), {PREFIX}),
        (AclFilter(name="orders", pattern=PatternType.MATCH), {RULE, PREFIX, EVERY}),
        (AclFilter(name="ordinary", pattern=PatternType.MATCH), {PREFIX, EVERY}),
        (AclFilter(name="or", pattern=PatternType.MATCH), {EVERY}),
        (AclFilter(pattern=PatternType.MATCH), {RULE, PREFIX, EVERY}),
        (AclFilter(pattern=PatternType.PREFIXED), {PREFIX}),
        (AclFilter(principal="User:bob"), set()),
        (AclFilter(host="10.0.0.1"), set()),
        (AclFilter(operation=Operation.READ, permission=Permission.ALLOW), {RULE, PREFIX, EVERY}),
        (AclFilter(operation=Operation.ALL), set()),
        (AclFilter(permission=Permission.DENY), set()),
    ],
)
def test_what_a_filter_selects(wanted: AclFilter, selected: set[Acl]) -> None:
    assert {rule for rule in (RULE, PREFIX, EVERY) if wanted.matches(rule)} == selected
    assert wanted.only is None


def test_a_filter_that_names_all_selects_one_rule() -> None:
    for rule in (RULE, PREFIX, EVERY):
        wanted = AclFilter(*rule)
        assert wanted.only == rule
        assert [it for it in (RULE, PREFIX, EVERY) if wanted.matches(it)] == [rule]


def test_filters_with_what_is_unknown_are_refused() -> None:
    assert fault_of_filter(AclFilter()) is None
    assert fault_of_filter(AclFilter(ResourceKind.UNKNOWN)) == "the filter has an unknown ResourceKind"
    assert fault_of_filter(AclFilter(operation=Operation.UNKNOWN)) == "the filter has an unknown Operation"
