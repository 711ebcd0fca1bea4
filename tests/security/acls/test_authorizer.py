"""The authorizer against a model of Kafka's, and what sessions keep of its verdicts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.acls import standard_model

from mainstem.errors import ConfigError
from mainstem.ports import Session
from mainstem.security.acls import authorizer as authorizer_module
from mainstem.security.acls.acl import (
    ANY_PRINCIPAL,
    CLUSTER_NAME,
    OPERATIONS_OF,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)
from mainstem.security.acls.acl_table import AclTable
from mainstem.security.acls.authorizer import Authorizer, Question, SessionVerdicts
from mainstem.security.acls.config import AuthorizerConfig

KINDS = (ResourceKind.TOPIC, ResourceKind.GROUP)
NAMES = ("a", "ab", "abc", "b", "hardcode", "hard")
HOSTS = ("10.0.0.1", "10.0.0.2")
PRINCIPALS = ("User:alice", "User:bob", "User:root")
OPERATIONS = [operation for operation in Operation if operation not in (Operation.UNKNOWN, Operation.ANY)]

acls = st.builds(
    Acl,
    st.sampled_from(KINDS),
    st.sampled_from((WILDCARD, *NAMES)),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    st.sampled_from((ANY_PRINCIPAL, *PRINCIPALS[:2])),
    st.sampled_from((WILDCARD, HOSTS[0])),
    st.sampled_from(OPERATIONS),
    st.sampled_from((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
)


class Rules:
    """An authorizer and what it stands on. Tests may set `unheard_seconds`."""

    def __init__(self, *acls: Acl, everyone: bool = False, super_users: str = "User:root") -> None:
        self.table = AclTable()
        self.unheard_seconds = 0.0
        for acl in acls:
            self.table.add(acl)
        config = AuthorizerConfig(enabled=True, super_users=super_users, allow_everyone_if_no_acl_found=everyone)
        config.validate()
        self.authorizer = Authorizer(config, lambda: self.table, lambda: self.unheard_seconds)

    def reads(self, session: Session, topic: str = "a") -> bool:
        return self.authorizer.of(session).allows(Operation.READ, ResourceKind.TOPIC, topic)


def session(principal: str = "User:alice", host: str = HOSTS[0]) -> Session:
    return Session(host, 1, 1, principal=principal)


def allow(operation: Operation, name: str = "a", principal: str = "User:alice") -> Acl:
    return Acl(ResourceKind.TOPIC, name, PatternType.LITERAL, principal, WILDCARD, operation, Permission.ALLOW)


def kept_by(verdicts: SessionVerdicts, kind: ResourceKind = ResourceKind.TOPIC) -> dict[str, bool]:
    """The kept verdicts on reading."""
    question = verdicts.question(Operation.READ, kind)
    assert isinstance(question, Question)
    return question.kept


@given(st.lists(acls, max_size=12), st.lists(acls, max_size=6), st.booleans())
def test_judges_as_kafka_does(added: list[Acl], removed: list[Acl], everyone: bool) -> None:
    """Every question that the rules could be about, after some were added and others removed again."""
    rules = Rules(*added, *removed, everyone=everyone)
    for acl in removed:
        rules.table.remove(acl)
    left = [acl for acl in added if acl not in removed]
    assert set(rules.table) == set(left)
    assert len(rules.table) == len(set(left))
    for principal in PRINCIPALS:
        is_super = principal == "User:root"
        for host in HOSTS:
            verdicts = rules.authorizer.of(session(principal, host))
            for kind in KINDS:
                for operation in OPERATIONS:
                    for name in NAMES:
                        expected = is_super or standard_model.allowed(
                            left, principal, host, operation, kind, name, everyone
                        )
                        assert verdicts.allows(operation, kind, name) == expected
                    expected = is_super or standard_model.allowed_some(left, principal, host, operation, kind, everyone)
                    assert verdicts.allows_any(operation, kind) == expected


@given(st.lists(acls, min_size=1, max_size=8))
def test_the_rule_that_decided_is_one_of_those_there_are(added: list[Acl]) -> None:
    rules = Rules(*added)
    for kind in KINDS:
        for operation in OPERATIONS:
            for name in NAMES:
                decision = rules.authorizer.decide("User:alice", HOSTS[0], operation, kind, name)
                if decision.rule is not None:
                    assert decision.rule in added
                    assert decision.allowed == (decision.rule.permission is Permission.ALLOW)
                else:
                    assert not decision.allowed


def test_a_revoked_rule_is_honoured_at_once() -> None:
    rules, asker = Rules(allow(Operation.READ)), session()
    assert rules.reads(asker)
    kept = asker.verdicts
    assert rules.reads(asker)
    assert asker.verdicts is kept, "nothing has changed"
    rules.table.remove(allow(Operation.READ))
    assert not rules.reads(asker)


def test_another_table_counts_at_once() -> None:
    """As after a snapshot, whatever the rules in it."""
    rules, asker = Rules(allow(Operation.READ)), session()
    assert rules.reads(asker)
    rules.table = AclTable()
    assert not rules.reads(asker)


def test_a_session_that_becomes_another_principal_is_judged_anew() -> None:
    rules, asker = Rules(allow(Operation.READ)), session()
    assert rules.reads(asker)
    asker.principal = "User:bob"
    assert not rules.reads(asker)


def test_rules_that_are_too_old_allow_nothing_but_to_super_users() -> None:
    rules, asker, root = Rules(allow(Operation.READ)), session(), session("User:root")
    rules.unheard_seconds = 29.9
    assert rules.reads(asker)
    rules.unheard_seconds = 30.0
    assert not rules.reads(asker)
    assert not rules.authorizer.of(asker).allows_any(Operation.READ, ResourceKind.TOPIC)
    assert rules.reads(root)
    rules.unheard_seconds = 0.0
    assert rules.reads(asker)


def test_what_a_session_keeps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rules, asker = Rules(allow(Operation.READ)), session()
    verdicts = rules.authorizer.of(asker)
    kept = kept_by(verdicts, ResourceKind.GROUP)
    for number in range(authorizer_module.KEPT_MAX + 5):
        verdicts.allows(Operation.READ, ResourceKind.GROUP, f"g{number}")
    assert len(kept) <= authorizer_module.KEPT_MAX
    kept.clear()
    verdicts.allows(Operation.READ, ResourceKind.GROUP, "g" * 256)
    assert not kept, "a long name is not kept"


def test_what_all_sessions_keep_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what those keep that ask for nothing any more. They are judged anew, and no differently."""
    monkeypatch.setattr(authorizer_module, "KEPT_TOTAL_MAX", 10)
    rules = Rules(allow(Operation.READ))
    idle = session()
    assert rules.reads(idle)
    kept = kept_by(rules.authorizer.of(idle))
    assert kept == {"a": True}
    others = [session(f"User:{number}") for number in range(4)]
    sizes = []
    for number in range(20):
        assert not rules.reads(others[number % 4], f"t{number}")
        sizes.append(sum(len(kept_by(rules.authorizer.of(each))) for each in (idle, *others)))
    assert max(sizes) == 10
    assert not kept
    assert rules.reads(idle)


def test_the_operations_of_a_resource_are_bits() -> None:
    rules = Rules(allow(Operation.WRITE), allow(Operation.ALTER_CONFIGS))
    told = rules.authorizer.of(session()).operations(ResourceKind.TOPIC, "a")
    wanted = (Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)
    assert told == sum(1 << operation for operation in wanted)
    root = rules.authorizer.of(session("User:root")).operations(ResourceKind.CLUSTER, CLUSTER_NAME)
    assert root == sum(1 << operation for operation in OPERATIONS_OF[ResourceKind.CLUSTER])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (AuthorizerConfig(super_users="admin"), "super_users names 'admin'"),
        (AuthorizerConfig(staleness_ms=1), "staleness_ms = 1 is out of range"),
    ],
)
def test_settings_that_make_no_sense(config: AuthorizerConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config.validate()


def test_super_users_are_separated_by_semicolons() -> None:
    """X.500 names have commas in them."""
    named = AuthorizerConfig(super_users=" User:CN=a,O=b ;User:c;").super_users_named
    assert named == {"User:CN=a,O=b", "User:c"}
