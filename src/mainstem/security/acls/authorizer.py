"""The authorizer judges what clients may do, by the rules that this node's metadata has.

Every session keeps what it has been told (`SessionVerdicts`), so that a check costs one look into a dict. A kept
verdict counts as long as the table of rules is of the version it was judged by, and the session's principal is the
same: a rule that is revoked is honoured by the first request after this node has applied the change, on connections
that are open as on others.

A node that does not hear from the metadata's leader cannot know whether rules were revoked. It goes on by those it has
for `staleness_ms`, and refuses everybody but super users then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol
from weakref import WeakSet

from mainstem.ports import Session
from mainstem.security.acls.acl import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    Acl,
    Operation,
    Permission,
    ResourceKind,
)
from mainstem.security.acls.acl_table import AclTable
from mainstem.security.acls.config import AuthorizerConfig

KEPT_TOTAL_MAX = 500_000
"""Verdicts that all sessions together keep: some 80 MB, with the longest names 200. At that many all begin anew: ten
thousand clients of fifty topics each do not come to that."""

KEPT_MAX = 10_000
"""Verdicts that a session keeps of one kind of question."""

NAME_KEPT_LENGTH_MAX = 255
"""Names that are longer are judged each time: a client could have a session keep very long ones. No topic has one."""

ANY_NAME = "hardcode"
"""Kafka's name of a resource that stands for any other: who may do something with it without a rule about it, or by
rules about all, may do so with some resource."""


class Decision(NamedTuple):
    """Whether something is allowed, and why."""

    allowed: bool
    rule: Acl | None
    reason: str


Told = Callable[[str, str, Operation, ResourceKind, str, Decision], None]
"""Hears of a verdict: principal, host, operation, kind and name of the resource, decision."""


class KeptVerdicts:
    """Counts what is kept of verdicts, by all sessions together."""

    def __init__(self) -> None:
        self._count = 0
        self._questions: WeakSet[Question] = WeakSet()

    def follow(self, question: Question) -> None:
        self._questions.add(question)

    def take(self) -> None:
        """One more is kept. A verdict that went with its session is still counted, so that this is never too few."""
        if self._count >= KEPT_TOTAL_MAX:
            for question in list(self._questions):
                question.kept.clear()
            self._count = 0
        self._count += 1


class Question:
    """Whether a session may do one thing with the resources of one kind, by their names."""

    __slots__ = ("__weakref__", "_decide", "_kept_by_all", "kept")

    def __init__(self, decide: Callable[[str], Decision], kept_by_all: KeptVerdicts) -> None:
        """`decide` is asked for names of which no verdict is kept."""
        self.kept: dict[str, bool] = {}
        self._decide = decide
        self._kept_by_all = kept_by_all
        kept_by_all.follow(self)

    def __call__(self, name: str) -> bool:
        kept = self.kept.get(name)
        return self._judge(name) if kept is None else kept

    def _judge(self, name: str) -> bool:
        allowed = self._decide(name).allowed
        if len(name) <= NAME_KEPT_LENGTH_MAX:
            if len(self.kept) >= KEPT_MAX:
                self.kept.clear()
            self._kept_by_all.take()
            self.kept[name] = allowed
        return allowed


class SessionVerdicts:
    """The verdicts on one session, as far as it was asked. Made by `Authorizer.of`; to be asked for again after an
    await, since rules change."""

    def __init__(
        self, principal: str, host: str, version: object, authorizer: Judge, kept_by_all: KeptVerdicts
    ) -> None:
        self.principal = principal
        self.host = host
        self.version = version
        self._authorizer = authorizer
        self._kept_by_all = kept_by_all
        self._questions: dict[tuple[int, int], Question] = {}
        self._some: dict[tuple[int, int], bool] = {}

    def question(self, operation: Operation, kind: ResourceKind) -> Callable[[str], bool]:
        """For whoever asks about many resources."""
        question = self._questions.get((operation, kind))
        if question is None:
            decide = partial(self._authorizer.judge, self.principal, self.host, operation, kind)
            question = self._questions[operation, kind] = Question(decide, self._kept_by_all)
        return question

    def allows(self, operation: Operation, kind: ResourceKind, name: str) -> bool:
        return self.question(operation, kind)(name)

    def allows_on_cluster(self, operation: Operation) -> bool:
        return self.allows(operation, ResourceKind.CLUSTER, CLUSTER_NAME)

    def allows_any(self, operation: Operation, kind: ResourceKind) -> bool:
        """Whether there can be a resource of a kind with which the session may do something."""
        if self.allows(operation, kind, ANY_NAME):
            return True
        kept = self._some.get((operation, kind))
        if kept is None:
            kept = self._authorizer.decide_any(self.principal, self.host, operation, kind)
            self._some[operation, kind] = kept
        return kept

    def operations(self, kind: ResourceKind, name: str) -> int:
        """The operations that are allowed on a resource, as responses have them: a bit per operation."""
        return sum(1 << operation for operation in OPERATIONS_OF[kind] if self.allows(operation, kind, name))


class Judge(Protocol):
    """Answers what no verdict is kept of."""

    def judge(self, principal: str, host: str, operation: Operation, kind: ResourceKind, name: str) -> Decision: ...

    def decide_any(self, principal: str, host: str, operation: Operation, kind: ResourceKind) -> bool:
        """As `SessionVerdicts.allows_any`, by rules about the resources alone."""
        ...


class SameVerdict(SessionVerdicts):
    """One verdict on everything."""

    def __init__(self, allowed: bool) -> None:
        super().__init__("", "", object(), _Nobody(), KeptVerdicts())
        self._allowed = allowed

    def question(self, operation: Operation, kind: ResourceKind) -> Callable[[str], bool]:
        return self._answer

    def allows_any(self, operation: Operation, kind: ResourceKind) -> bool:
        return self._allowed

    def _answer(self, name: str) -> bool:
        return self._allowed


class _Nobody:
    """Is never asked."""

    def judge(self, principal: str, host: str, operation: Operation, kind: ResourceKind, name: str) -> Decision:
        raise AssertionError("the verdict is known")

    def decide_any(self, principal: str, host: str, operation: Operation, kind: ResourceKind) -> bool:
        raise AssertionError("the verdict is known")


EVERYTHING = SameVerdict(True)
"""The rights of everybody if nobody judges."""

_NOTHING = SameVerdict(False)
"""The operations that rules allow which are too old."""


class Authorizer:
    """`acls`: the table of this node's metadata, another one after a snapshot. `unheard_seconds`: since when this node
    has not heard from the metadata's leader; 0 while it hears."""

    def __init__(
        self,
        config: AuthorizerConfig,
        acls: Callable[[], AclTable],
        unheard_seconds: Callable[[], float],
        told: Told | None = None,
    ) -> None:
        """`told` hears of each verdict on a session, once for as long as the session keeps it."""
        self.config = config
        self._told = told
        self._super_users = config.super_users_named
        self._everyone = config.allow_everyone_if_no_acl_found
        self._staleness_seconds = config.staleness_ms / 1000
        self.acls = acls
        self._unheard_seconds = unheard_seconds
        self._kept = KeptVerdicts()

    def of(self, session: Session) -> SessionVerdicts:
        """The rights of a session now."""
        version = self.acls().version
        verdicts = session.verdicts
        if (
            not isinstance(verdicts, SessionVerdicts)
            or verdicts.version is not version
            or verdicts.principal != session.principal
        ):
            verdicts = SessionVerdicts(session.principal, session.host, version, self, self._kept)
            session.verdicts = verdicts
        if self.is_stale and session.principal not in self._super_users:
            return _NOTHING
        return verdicts

    @property
    def is_stale(self) -> bool:
        """Whether this node's rules are too old to go by."""
        return self._unheard_seconds() >= self._staleness_seconds

    def judge(self, principal: str, host: str, operation: Operation, kind: ResourceKind, name: str) -> Decision:
        """As `decide`, of a session that asks."""
        decision = self.decide(principal, host, operation, kind, name)
        if self._told is not None:
            self._told(principal, host, operation, kind, name, decision)
        return decision

    def decide(self, principal: str, host: str, operation: Operation, kind: ResourceKind, name: str) -> Decision:
        """Judge by the rules there are, however old they are."""
        if principal in self._super_users:
            return Decision(True, None, f"{principal} is a super user")
        rule, found = self.acls().rule_on(principal, host, operation, kind, name)
        if rule is not None:
            allowed = rule.permission is Permission.ALLOW
            return Decision(allowed, rule, "a rule allows it" if allowed else "a rule denies it")
        if found:
            return Decision(False, None, "there are rules about the resource, and none allows it")
        if self._everyone:
            return Decision(True, None, "there is no rule about the resource, and allow_everyone_if_no_acl_found is on")
        return Decision(False, None, "there is no rule about the resource")

    def decide_any(self, principal: str, host: str, operation: Operation, kind: ResourceKind) -> bool:
        """Judge as `SessionVerdicts.allows_any` does, by rules about the resources alone."""
        return self.acls().allows_some(principal, host, operation, kind)
