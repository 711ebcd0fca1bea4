"""All rules of a cluster, with the indexes that answer in the same few steps whether there are ten rules or 100,000.

Rules about the same pattern, principal and host are two masks of operations, what they deny and what they allow. A
question looks up the patterns that a resource fits (its name, the wildcard, and one prefix per length of prefix that
occurs), and in each of them the at most four holders that the asker fits: itself or anybody, on its host or on any.

`version` is another object after every change: whoever keeps answers keeps it with them, and compares by identity. No
I/O; whoever changes the table has logged the change before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mainstem.security.acls.acl import (
    ANY_PRINCIPAL,
    GRANTED_BY,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)

ACLS_MAX = 100_000
"""Rules of a cluster. Each takes about a kilobyte with its indexes."""

Holder = tuple[str, str]
"""A principal and a host, as a rule names them."""

_DENIED, _ALLOWED = 0, 1
_Masks = list[int]
_Pattern = tuple[PatternType, str]


class Ruling(NamedTuple):
    """The answer of the rules to one question. `rule` decided; without one none applies, and `found` says whether there
    are any rules about the resource at all, whoever they are for."""

    rule: Acl | None
    found: bool


class AclTable:
    def __init__(self) -> None:
        self._acls: dict[Acl, None] = {}
        self._literal: dict[ResourceKind, dict[str, dict[Holder, _Masks]]] = {}
        self._prefixed: dict[ResourceKind, dict[str, dict[Holder, _Masks]]] = {}
        self._lengths: dict[ResourceKind, dict[int, int]] = {}
        """How many prefixes there are of each length."""
        self._of_holder: dict[tuple[ResourceKind, str, str], dict[_Pattern, _Masks]] = {}
        """The same masks, by who they are for."""
        self.version = object()

    def __len__(self) -> int:
        return len(self._acls)

    def __iter__(self) -> Iterator[Acl]:
        """All rules, oldest first. Copy them before an await."""
        return iter(self._acls)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._acls

    def add(self, acl: Acl) -> None:
        """Add a rule; one that is there stays."""
        if acl in self._acls:
            return
        self._acls[acl] = None
        self.version = object()
        index = self._index(acl.pattern).setdefault(acl.kind, {})
        if acl.name not in index and acl.pattern is PatternType.PREFIXED:
            lengths = self._lengths.setdefault(acl.kind, {})
            lengths[len(acl.name)] = lengths.get(len(acl.name), 0) + 1
        masks = index.setdefault(acl.name, {}).setdefault((acl.principal, acl.host), [0, 0])
        self._of_holder.setdefault((acl.kind, acl.principal, acl.host), {})[acl.pattern, acl.name] = masks
        masks[_side(acl)] |= 1 << acl.operation

    def remove(self, acl: Acl) -> None:
        """Remove a rule; one that is not there is no error."""
        if acl not in self._acls:
            return
        del self._acls[acl]
        self.version = object()
        index = self._index(acl.pattern)[acl.kind]
        holders = index[acl.name]
        masks = holders[acl.principal, acl.host]
        masks[_side(acl)] &= ~(1 << acl.operation)
        if any(masks):
            return
        del holders[acl.principal, acl.host]
        patterns = self._of_holder[acl.kind, acl.principal, acl.host]
        del patterns[acl.pattern, acl.name]
        if not patterns:
            del self._of_holder[acl.kind, acl.principal, acl.host]
        if holders:
            return
        del index[acl.name]
        if acl.pattern is PatternType.PREFIXED:
            lengths = self._lengths[acl.kind]
            lengths[len(acl.name)] -= 1
            if not lengths[len(acl.name)]:
                del lengths[len(acl.name)]

    def rule_on(self, principal: str, host: str, operation: Operation, kind: ResourceKind, name: str) -> Ruling:
        """The answer of the rules for a principal, at a host, that would do something with a resource. A rule that
        denies decides before all that allow; of several, the one whose pattern is the most general."""
        allowing: Acl | None = None
        found = False
        denies, allows = (operation, Operation.ALL), GRANTED_BY[operation]
        holders = _holders(principal, host)
        for pattern, text, masks_of in self._fitting(kind, name):
            found = True
            for holder in holders:
                masks = masks_of.get(holder)
                if masks is None:
                    continue
                for denied in denies:
                    if masks[_DENIED] >> denied & 1:
                        return Ruling(Acl(kind, text, pattern, *holder, denied, Permission.DENY), found)
                if allowing is None:
                    for allowed in allows:
                        if masks[_ALLOWED] >> allowed & 1:
                            allowing = Acl(kind, text, pattern, *holder, allowed, Permission.ALLOW)
                            break
        return Ruling(allowing, found)

    def allows_some(self, principal: str, host: str, operation: Operation, kind: ResourceKind) -> bool:
        """Whether there is a pattern that allows an operation on resources of a kind, and no pattern as general or more
        so denies it: whether there can be a resource with which the principal may do it. As Kafka judges it, rules of
        exactly this operation, or of all, count, and none that only imply it."""
        wanted = 1 << operation | 1 << Operation.ALL
        allowing: list[_Pattern] = []
        denying: set[_Pattern] = set()
        for holder in _holders(principal, host):
            for pattern, masks in self._of_holder.get((kind, *holder), {}).items():
                if masks[_DENIED] & wanted:
                    denying.add(pattern)
                if masks[_ALLOWED] & wanted:
                    allowing.append(pattern)
        everything = (PatternType.LITERAL, WILDCARD)
        if everything in denying:
            return False
        return any(pattern == everything or not _dominated(pattern, denying) for pattern in allowing)

    def _index(self, pattern: PatternType) -> dict[ResourceKind, dict[str, dict[Holder, _Masks]]]:
        return self._prefixed if pattern is PatternType.PREFIXED else self._literal

    def _fitting(self, kind: ResourceKind, name: str) -> Iterator[tuple[PatternType, str, dict[Holder, _Masks]]]:
        """The patterns that a name fits, general ones first."""
        literal = self._literal.get(kind, {})
        if WILDCARD in literal:
            yield PatternType.LITERAL, WILDCARD, literal[WILDCARD]
        prefixed = self._prefixed.get(kind)
        if prefixed:
            for length in sorted(self._lengths[kind]):
                if length > len(name):
                    break
                if (holders := prefixed.get(name[:length])) is not None:
                    yield PatternType.PREFIXED, name[:length], holders
        if name != WILDCARD and name in literal:
            yield PatternType.LITERAL, name, literal[name]


def _side(acl: Acl) -> int:
    return _DENIED if acl.permission is Permission.DENY else _ALLOWED


def _holders(principal: str, host: str) -> list[Holder]:
    """Those named in rules that apply to a principal at a host."""
    return list(dict.fromkeys(
        ((principal, host), (principal, WILDCARD), (ANY_PRINCIPAL, host), (ANY_PRINCIPAL, WILDCARD))
    ))  # fmt: skip


def _dominated(pattern: _Pattern, denying: set[_Pattern]) -> bool:
    """Whether one of the patterns that deny includes all names that fit a pattern."""
    kind, name = pattern
    if kind is PatternType.LITERAL and pattern in denying:
        return True
    return any((PatternType.PREFIXED, name[:length]) in denying for length in range(1, len(name) + 1))
