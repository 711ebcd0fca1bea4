"""Users of the cluster over HTTP, found out by the authenticator of its listeners."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from tests.fakes.access.acls import MemoryAcls
from tests.fakes.access.credentials import FakeCredentials
from tests.fakes.clock import FakeClock

from mainstem.console.users import NODE_TOKEN, HttpChange, Shown
from mainstem.node.access.http_users import NodeHttpUsers, tell_change
from mainstem.security.acls.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceKind
from mainstem.security.audit.audit_log import AuditLog
from mainstem.security.audit.config import AuditConfig
from mainstem.security.sasl.authenticator import Authenticator
from mainstem.security.sasl.key_source import KeySource
from mainstem.security.sasl.token_check import Expected
from mainstem.side_thread import AtOnce

HOST = "10.0.0.7"
STALENESS_SECONDS = 30.0


class Port:
    """The HTTP port of a node whose users are `an` and `root`, on its own clock. `issuer`: whose tokens it takes."""

    def __init__(self, *rules: Acl, issuer: RSAKey | None = None) -> None:
        self.clock, self.acls = FakeClock(), MemoryAcls(*rules)
        kept = FakeCredentials()
        for user in ("an", "root"):
            kept.add(user, f"{user}s password")
        keys = None
        if issuer is not None:
            document = json.dumps(KeySet([issuer]).as_dict(private=False)).encode()
            keys = KeySource(lambda: document, AtOnce(), self.clock)
        authenticator = Authenticator(
            kept, self.clock, AtOnce(), random.Random(1).randbytes, sleep=self._sleep, rests_per_hash=0.0,
            keys=keys, expected=Expected(audiences=("mainstem",)),
        )  # fmt: skip
        self.audit = AuditLog(AuditConfig(enabled=True), self.clock)
        self.users = NodeHttpUsers(authenticator, self.acls.authorizer(), self.audit, self.clock)

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def visit(self, user: str = "", password: str = "", token: str = "") -> tuple[str | None, float]:
        """The principal, and how long it took to find out."""
        began_at = self.clock.monotonic()
        shown = Shown(user.encode(), password.encode(), token)

        async def looked_at() -> str | None:
            if self.users.must_wait(HOST):
                await self.users.wait(HOST)
            return await self.users.principal(HOST, shown)

        return asyncio.run(looked_at()), self.clock.monotonic() - began_at

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(record.content) for record in self.audit.take()]


def rule(operation: Operation) -> Acl:
    return Acl(ResourceKind.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, "User:an", "*", operation, Permission.ALLOW)


def test_a_password_shows_who_somebody_is_and_all_failures_look_the_same() -> None:
    port = Port()
    assert port.visit("an", "ans password")[0] == "User:an"
    wrong, absent, token = port.visit("an", "guess"), port.visit("nobody", "guess"), port.visit(token="a.b.c")
    assert [found for found, _ in (wrong, absent, token)] == [None] * 3
    assert wrong[1] >= 0.1
    assert port.visit("", "")[0] is None
    assert port.visit("an", "ans\0password")[0] is None


def test_a_token_of_the_issuer_shows_who_somebody_is_and_no_other_does() -> None:
    issuer = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
    port = Port(issuer=issuer)

    def token(header: dict[str, str], key: RSAKey = issuer, **claims: object) -> str:
        usual = {"sub": "an", "aud": "mainstem", "exp": port.clock.now_ms() // 1000 + 60}
        return jwt.encode({"kid": "one", **header}, {**usual, **claims}, key)

    signed = {"alg": "RS256"}
    assert port.visit(token=token(signed))[0] == "User:an"
    claims = json.dumps({"sub": "an", "aud": "mainstem", "exp": port.clock.now_ms() // 1000 + 60}).encode()
    parts = (json.dumps({"alg": "none", "kid": "one"}).encode(), claims, b"")
    unsigned = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
    for refused in (
        unsigned,
        token(signed, aud="another"),
        token(signed, exp=port.clock.now_ms() // 1000 - 60),
        token(signed, key=RSAKey.generate_key(2048, {"kid": "one"})),
    ):
        assert port.visit(token=refused)[0] is None
    assert [record["outcome"] for record in port.records()] == ["allowed", *["denied"] * 4]


def test_an_address_that_guesses_waits_longer_each_time() -> None:
    port = Port()
    took = [round(port.visit("an", f"guess {number}")[1], 6) for number in range(20)]
    assert took == sorted(took)
    assert took[-1] > 5 * took[0]


@pytest.mark.parametrize(
    ("rules", "reads", "changes"),
    [
        ([], False, False),
        ([rule(Operation.DESCRIBE)], True, False),
        ([rule(Operation.ALTER)], True, True),  # which implies it, as in Kafka
        ([rule(Operation.ALL)], True, True),
    ],
)
def test_rules_about_the_cluster_say_what_a_user_may(rules: list[Acl], reads: bool, changes: bool) -> None:
    users = Port(*rules).users
    assert users.may("User:an", HOST, change=False) is reads
    assert users.may("User:an", HOST, change=True) is changes
    assert users.may("User:root", HOST, change=True)


def test_rules_that_are_too_old_allow_nothing() -> None:
    port = Port(rule(Operation.ALL))
    port.acls.unheard_seconds = STALENESS_SECONDS
    assert not port.users.may("User:an", HOST, change=False)
    assert port.users.may("User:root", HOST, change=True)


def test_the_audit_tells_who_came_who_did_not_get_in_and_what_was_refused() -> None:
    port = Port()
    port.visit("an", "ans password")
    port.visit("an", "guess")
    came, refused = port.records()
    assert (came["principal"], came["host"], came["listener"], came["outcome"]) == ("User:an", HOST, "HTTP", "allowed")
    assert (refused["principal"], refused["outcome"]) == ("User:ANONYMOUS", "denied")
    assert "guess" not in json.dumps([came, refused])


def test_the_audit_tells_who_changed_what_over_http() -> None:
    port = Port()
    tell_change(port.audit, HttpChange("User:an", HOST, "DrainNode", "node:3", None))
    tell_change(port.audit, HttpChange(NODE_TOKEN, HOST, "RemoveTenant", "tenant:acme", "there is no tenant acme"))
    tell_change(None, HttpChange("User:an", HOST, "DrainNode", "node:3", None))
    made, refused = port.records()
    assert (made["event"], made["principal"], made["host"], made["listener"]) == ("admin", "User:an", HOST, "HTTP")
    assert (made["operation"], made["resource"], made["outcome"]) == ("DrainNode", "node:3", "allowed")
    assert (refused["principal"], refused["outcome"], refused["detail"]) == (
        "Token:node", "refused", "there is no tenant acme"
    )  # fmt: skip
