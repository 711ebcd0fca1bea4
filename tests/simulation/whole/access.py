"""Clients that change access rules, quotas and credentials, and what nodes make of these under faults.

A  what was acknowledged is there at once on the node that was asked, and on every node in the end; what was not
   answered is either there or not
J  (of all metadata: see `WholeRun._agree_on_metadata`)

Each rule, quota and credential has a name of its own and one client that changes it, one change at a time. One whose
change was not answered is left alone from then on: the change may be made later.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.simulation.oracle import require
from tests.simulation.whole.clients import NONE, Work
from tests.simulation.whole.cluster import WholeSettings
from tests.simulation.whole.connection import NoAnswer
from tests.simulation.whole.run import WholeRun

from mainstem.model import ScramMechanism
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.node.config import NodeConfig
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.acls import AclCreation, CreateAclsRequest, DeleteAclsFilter, DeleteAclsRequest
from mainstem.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    QuotaEntityPart,
    QuotaOperation,
)
from mainstem.protocol.messages.sasl import AlterUserScramCredentialsRequest, ScramDeletion, ScramUpsertion
from mainstem.security.acls.acl import Acl, Operation, PatternType, Permission, ResourceKind
from mainstem.security.acls.config import AuthorizerConfig
from mainstem.security.quotas.quota import PRODUCER_BYTE_RATE, USER

AMBIGUOUS = {ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT}
"""The change may have been made, or not."""
SHA_256 = 1
RULE = "rule"
"""The kind of which there is one or none: a rule is not changed, only made and taken away."""
GONE = ""
"""The value of what is not there."""


@dataclass(slots=True)
class Kept:
    """One rule, quota or credential."""

    value: str = GONE
    may_be: set[str] = field(default_factory=lambda: {GONE})


class Changed:
    """All of one kind. `ask` makes the request that sets a value, with its version, `codes` takes the error codes out
    of the answer, and `value` reads a node's metadata."""

    def __init__(
        self,
        work: Work,
        rng: random.Random,
        kind: str,
        ask: Callable[[str, str, str], tuple[Any, int]],
        codes: Callable[[Any], list[int]],
        value: Callable[[MetadataLookups, str], str],
        values: Callable[[], str],
    ) -> None:
        self._work, self._rng, self.kind = work, rng, kind
        self._ask, self._codes, self._value, self._values = ask, codes, value, values
        self._client = work.client()
        self._names = 0
        self._open: dict[str, Kept] = {}
        """Those that are changed again."""
        self.kept: dict[str, Kept] = {}
        self.acknowledged = 0

    async def run(self) -> None:
        while not self._work.ending:
            await self._work.pause(0.05, 0.2, 0.6)
            if len(self._open) < 3:
                self._names += 1
                name = f"{self.kind}-{self._names}"
                self._open[name] = self.kept[name] = Kept()
            await self.change(self._rng.choice(list(self._open)))

    async def change(self, name: str) -> None:
        kept = self._open.pop(name)
        goes = kept.value != GONE and (self.kind == RULE or self._rng.random() < 0.4)
        wanted = GONE if goes else self._values()
        kept.may_be.add(wanted)
        request, version = self._ask(name, kept.value, wanted)
        node_id = self._client.any_node()
        roles = self._work.cluster.nodes[node_id].roles
        try:
            response = await self._client.ask(node_id, request, version, patience=30)
        except NoAnswer:
            return
        for code in self._codes(response):
            require(code in AMBIGUOUS | {NONE}, f"node {node_id}: {name} = {wanted!r}: {response}")
            if code != NONE:
                return
        kept.value, kept.may_be = wanted, {wanted}
        self.acknowledged += 1
        self._open[name] = kept
        node = self._work.cluster.nodes[node_id]
        if roles is not None and node.roles is roles:  # it has not been started anew meanwhile
            self.check(f"node {node_id}, which was asked", roles.nameserver.lookups, name)

    def check(self, where: str, lookups: MetadataLookups, name: str) -> None:
        found, kept = self._value(lookups, name), self.kept[name]
        require(found in kept.may_be, f"{where}: {name} is {found!r}, and may be {kept.may_be}", "A")


def rule_of(name: str, value: str) -> Acl:
    return Acl(
        ResourceKind.TOPIC, name, PatternType.LITERAL, "User:an", value, Operation.READ, Permission.ALLOW
    )  # fmt: skip


def _ask_for_rule(name: str, before: str, wanted: str) -> tuple[Any, int]:
    """The value of a rule is its host; a rule is added where there is none, and else taken away."""
    rule = rule_of(name, before or wanted)
    fields = (int(rule.operation), int(rule.permission))
    if before == GONE:
        added = AclCreation(
            resource_type=int(rule.kind), resource_name=name, resource_pattern_type=int(rule.pattern),
            principal=rule.principal, host=rule.host, operation=fields[0], permission_type=fields[1],
        )  # fmt: skip
        return CreateAclsRequest(creations=(added,)), 3
    removed = DeleteAclsFilter(
        resource_type_filter=int(rule.kind), resource_name_filter=name, pattern_type_filter=int(rule.pattern),
        principal_filter=rule.principal, host_filter=rule.host, operation=fields[0], permission_type=fields[1],
    )  # fmt: skip
    return DeleteAclsRequest(filters=(removed,)), 3


def _codes_of_rule(response: Any) -> list[int]:
    results = response.results if hasattr(response, "results") else response.filter_results
    return [result.error_code for result in results]


def _rule(lookups: MetadataLookups, name: str) -> str:
    hosts = [rule.host for rule in lookups.acls() if rule.name == name]
    require(len(hosts) <= 1, f"{name} has the rules {hosts}", "A")
    return hosts[0] if hosts else GONE


def _ask_for_quota(name: str, before: str, wanted: str) -> tuple[Any, int]:
    operation = QuotaOperation(key=PRODUCER_BYTE_RATE, value=float(wanted or 0), remove=wanted == GONE)
    entity = (QuotaEntityPart(entity_type=USER, entity_name=name),)
    return AlterClientQuotasRequest(entries=(AlteredQuotas(entity=entity, ops=(operation,)),), validate_only=False), 1


def _quota(lookups: MetadataLookups, name: str) -> str:
    found = lookups.quotas().of(((USER, name),)).get(PRODUCER_BYTE_RATE)
    return GONE if found is None else str(found)


def _ask_for_user(name: str, before: str, wanted: str) -> tuple[Any, int]:
    """The value of a credential is its salt."""
    if wanted == GONE:
        return AlterUserScramCredentialsRequest(
            deletions=(ScramDeletion(name=name, mechanism=SHA_256),), upsertions=()
        ), 0
    made = ScramUpsertion(
        name=name, mechanism=SHA_256, iterations=4096, salt=wanted.encode(), salted_password=bytes(32)
    )  # fmt: skip
    return AlterUserScramCredentialsRequest(deletions=(), upsertions=(made,)), 0


def _user(lookups: MetadataLookups, name: str) -> str:
    found = lookups.scram_credential(name, ScramMechanism.SHA_256)
    return GONE if found is None else found.salt.decode()


class SecuredSettings(WholeSettings):
    """Nodes judge their clients, who are nobody in particular, and may do everything."""

    def config(self, node_id: int) -> NodeConfig:
        authorizer = AuthorizerConfig(enabled=True, super_users="User:ANONYMOUS")
        return msgspec.structs.replace(super().config(node_id), authorizer=authorizer)


class AccessRun(WholeRun):
    """Rules, quotas and credentials change, beside all else that goes on."""

    def __init__(self, seed: int, *arguments: Any, **options: Any) -> None:
        super().__init__(seed, *arguments, **options)
        rng = random.Random(f"{seed} access")
        self.changed = [
            Changed(self.work, rng, RULE, _ask_for_rule, _codes_of_rule, _rule, lambda: f"10.0.0.{rng.randrange(9)}"),
            Changed(
                self.work, rng, "quota", _ask_for_quota, lambda it: [entry.error_code for entry in it.entries], _quota,
                lambda: str(float(rng.randrange(1, 1 << 20))),
            ),
            Changed(
                self.work, rng, "user", _ask_for_user, lambda it: [result.error_code for result in it.results], _user,
                lambda: f"salt of the earth {rng.randrange(1000)}",
            ),
        ]  # fmt: skip

    def _settings(self, rng: random.Random) -> WholeSettings:
        settings = SecuredSettings(rng)
        settings.begins_old = False  # rules and quotas take a level
        return settings

    def _load(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield from super()._load()
        for one in self.changed:
            yield one.run()

    async def _agree_on_metadata(self) -> None:
        await super()._agree_on_metadata()
        for node in self.cluster.nodes.values():
            assert node.roles is not None
            for one in self.changed:
                for name in one.kept:
                    one.check(f"node {node.node_id}", node.roles.nameserver.lookups, name)
