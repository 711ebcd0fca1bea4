"""The four APIs of delegation tokens: who may ask, what they answer, with Kafka's codes in every version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.broker.harness import make_broker
from tests.fakes.access.acls import MemoryAcls
from tests.fakes.access.tokens import MemoryTokens
from tests.fakes.clock import FakeClock

from mainstem.broker.handlers import (
    create_delegation_token,
    describe_delegation_token,
    expire_delegation_token,
    renew_delegation_token,
)
from mainstem.broker.request_context import RequestContext
from mainstem.nameserver.errors import MetadataUnavailable, TooManyTokens
from mainstem.ports import Session
from mainstem.protocol.codec import read, write
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from mainstem.security.acls.acl import Acl, Operation, PatternType, Permission, ResourceKind
from mainstem.security.audit.audit_log import AuditLog
from mainstem.security.audit.config import AuditConfig
from mainstem.security.sasl.conversation import Authentication
from mainstem.security.sasl.steps import Accepted
from mainstem.security.tokens.token_admin import TokenService
from mainstem.security.tokens.token_secrets import TokenSecrets
from mainstem.side_thread import AtOnce

DAY_MS = 86_400_000
KEY = b"the key of all tokens"


class Desk:
    """A broker with delegation tokens, and clients that ask it."""

    def __init__(self, *acls: Acl, authorizes: bool = False) -> None:
        self.clock = FakeClock()
        self.broker = make_broker(self.clock).broker
        self.tokens = MemoryTokens()
        secrets = TokenSecrets(KEY, AtOnce())
        self.broker.tokens = TokenService(self.tokens, secrets, 7 * DAY_MS, DAY_MS)
        self.broker.audit = AuditLog(AuditConfig(), self.clock)
        if authorizes:
            self.broker.authorizer = MemoryAcls(*acls).authorizer()

    def create(self, user: str, owner: str = "", renewers: tuple[str, ...] = (), lifetime_ms: int = -1,
               session: Session | None = None) -> Any:  # fmt: skip
        request = CreateDelegationTokenRequest(
            owner_principal_type="User" if owner else None,
            owner_principal_name=owner or None,
            renewers=tuple(map(principal, renewers)),
            max_lifetime_ms=lifetime_ms,
        )
        return asyncio.run(create_delegation_token.handle(self.broker, request, called(user, 3, session)))

    def renew(self, user: str, secret: bytes, period_ms: int = -1) -> tuple[int, int]:
        request = RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms)
        answer = asyncio.run(renew_delegation_token.handle(self.broker, request, called(user, 2)))
        return answer.error_code, answer.expiry_timestamp_ms

    def expire(self, user: str, secret: bytes, period_ms: int = -1) -> tuple[int, int]:
        request = ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=period_ms)
        answer = asyncio.run(expire_delegation_token.handle(self.broker, request, called(user, 2)))
        return answer.error_code, answer.expiry_timestamp_ms

    def described(self, user: str, owners: tuple[str, ...] | None = None) -> list[str]:
        request = DescribeDelegationTokenRequest(owners=None if owners is None else tuple(map(principal, owners)))
        answer = asyncio.run(describe_delegation_token.handle(self.broker, request, called(user, 3)))
        assert answer.error_code == ErrorCode.NONE
        return sorted(token.token_id for token in answer.tokens)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()


def principal(name: str) -> TokenPrincipal:
    return TokenPrincipal(principal_type="User", principal_name=name)


def session_of(user: str, protocol: str = "SASL_SSL") -> Session:
    return Session("10.0.0.1", 1, 1, protocol=protocol, principal=f"User:{user}")


def called(user: str, version: int, session: Session | None = None) -> RequestContext:
    return RequestContext(version, "test", session or session_of(user))


def test_a_token_is_its_requesters_and_has_kafkas_times() -> None:
    desk = Desk()
    made = desk.create("an", renewers=("bo",))
    assert made.error_code == ErrorCode.NONE
    assert (made.principal_type, made.principal_name, made.token_requester_principal_name) == ("User", "an", "an")
    assert (made.issue_timestamp_ms, made.expiry_timestamp_ms, made.max_timestamp_ms) == (
        desk.now_ms,
        desk.now_ms + DAY_MS,
        desk.now_ms + 7 * DAY_MS,
    )
    assert len(made.hmac) == 64
    short = desk.create("an", lifetime_ms=1000)
    assert (short.expiry_timestamp_ms, short.max_timestamp_ms) == (desk.now_ms + 1000,) * 2
    assert short.token_id != made.token_id
    long = desk.create("an", lifetime_ms=100 * DAY_MS)
    assert long.max_timestamp_ms == desk.now_ms + 7 * DAY_MS


@pytest.mark.parametrize("version", [1, 2, 3])
def test_answers_have_a_form_in_every_version(version: int) -> None:
    """Versions before 3 leave out who asked for a token."""
    desk = Desk()
    made = desk.create("an")
    told = read(CreateDelegationTokenResponse, version, write(made, version))
    assert (told.token_id, told.token_requester_principal_name) == (made.token_id, "an" if version == 3 else "")
    request = DescribeDelegationTokenRequest(owners=None)
    described = asyncio.run(describe_delegation_token.handle(desk.broker, request, called("an", version)))
    (token,) = read(DescribeDelegationTokenResponse, version, write(described, version)).tokens
    assert (token.token_id, token.token_requester_principal_name) == (made.token_id, "an" if version == 3 else "")


def test_owner_and_renewers_renew_within_the_tokens_life() -> None:
    desk = Desk()
    made = desk.create("an", renewers=("bo",))
    desk.clock.advance(1)
    assert desk.renew("bo", made.hmac) == (ErrorCode.NONE, desk.now_ms + DAY_MS)
    assert desk.renew("an", made.hmac, 1000) == (ErrorCode.NONE, desk.now_ms + 1000)
    assert desk.renew("an", made.hmac, 30 * DAY_MS) == (ErrorCode.NONE, desk.now_ms + DAY_MS)
    assert desk.renew("cy", made.hmac) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)
    assert desk.renew("an", made.hmac[:-1] + b"x") == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)
    for _ in range(6):
        desk.clock.advance(DAY_MS / 1000 - 1)
        assert desk.renew("an", made.hmac)[0] == ErrorCode.NONE
    desk.clock.advance(DAY_MS / 1000 - 1)
    assert desk.renew("an", made.hmac) == (ErrorCode.NONE, made.max_timestamp_ms)
    desk.clock.advance(DAY_MS / 1000)
    assert desk.renew("an", made.hmac) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, -1)
    assert desk.expire("an", made.hmac) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, -1)


def test_a_token_expires_when_its_owner_says_so() -> None:
    desk = Desk()
    made, other = desk.create("an"), desk.create("an")
    assert desk.expire("bo", made.hmac) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)
    assert desk.expire("an", made.hmac, 5000) == (ErrorCode.NONE, desk.now_ms + 5000)
    assert desk.expire("an", made.hmac, 2**62) == (ErrorCode.NONE, made.max_timestamp_ms)
    assert desk.expire("an", made.hmac, -5) == (ErrorCode.NONE, -5)
    assert desk.expire("an", made.hmac) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)
    assert desk.described("an") == [other.token_id]


def rule(operation: Operation, kind: ResourceKind, name: str, user: str = "root-ish") -> Acl:
    return Acl(kind, name, PatternType.LITERAL, f"User:{user}", "*", operation, Permission.ALLOW)


def test_tokens_for_others_take_create_tokens_on_them() -> None:
    desk = Desk(rule(Operation.CREATE_TOKENS, ResourceKind.USER, "User:an", "bo"), authorizes=True)
    assert desk.create("cy", owner="an").error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert desk.create("bo", owner="cy").error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    made = desk.create("bo", owner="an")
    assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (0, "an", "bo")
    assert desk.create("cy", owner="cy").error_code == ErrorCode.NONE
    assert desk.renew("bo", made.hmac)[0] == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "as in Kafka"


def test_tokens_are_shown_to_those_they_concern_and_to_those_who_may() -> None:
    desk = Desk(authorizes=True)
    by_an, by_bo = desk.create("an", renewers=("bo",)).token_id, desk.create("bo").token_id
    assert desk.described("an") == [by_an]
    assert desk.described("bo") == sorted([by_an, by_bo])
    assert desk.described("bo", ("bo",)) == sorted([by_an, by_bo]), "bo renews the first"
    assert desk.described("bo", ("cy",)) == []
    assert desk.described("bo", ()) == []
    assert desk.described("cy") == []
    desk.broker.authorizer = MemoryAcls(
        rule(Operation.DESCRIBE, ResourceKind.DELEGATION_TOKEN, by_an, "cy"),
        rule(Operation.DESCRIBE_TOKENS, ResourceKind.USER, "User:bo", "di"),
    ).authorizer()
    assert desk.described("cy") == [by_an]
    assert desk.described("di") == [by_bo]


def by_token() -> Session:
    session = session_of("an")
    authentication = Authentication({})
    authentication.accept(Accepted("an", by_token=True), 0.0, 0)
    session.authentication = authentication
    return session


@pytest.mark.parametrize(
    "session",
    [session_of("an", "PLAINTEXT"), session_of("ANONYMOUS", "SSL"), by_token()],
    ids=["plain", "ssl", "token"],
)
def test_who_shows_nothing_or_a_token_may_not_ask(session: Session) -> None:
    desk = Desk()
    made = desk.create("an", session=session)
    refusal = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert (made.error_code, made.token_id, made.hmac) == (refusal, "", b"")
    call = called("an", 2, session)
    renewed = renew_delegation_token.handle(desk.broker, RenewDelegationTokenRequest(hmac=b"", renew_period_ms=1), call)
    expired = expire_delegation_token.handle(
        desk.broker, ExpireDelegationTokenRequest(hmac=b"", expiry_time_period_ms=1), call
    )
    described = describe_delegation_token.handle(desk.broker, DescribeDelegationTokenRequest(owners=None), call)
    answers: list[Any] = [asyncio.run(renewed), asyncio.run(expired), asyncio.run(described)]
    assert {answer.error_code for answer in answers} == {refusal}
    assert len(desk.tokens.tokens()) == 0


def test_without_a_key_there_are_no_tokens() -> None:
    desk = Desk()
    desk.broker.tokens = None
    disabled = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert desk.create("an").error_code == disabled
    assert desk.renew("an", b"x") == (disabled, -1)
    assert desk.expire("an", b"x") == (disabled, -1)
    answer = describe_delegation_token.handle(desk.broker, DescribeDelegationTokenRequest(owners=None), called("an", 3))
    assert asyncio.run(answer).error_code == disabled


def test_only_users_own_tokens_and_renew_them() -> None:
    desk = Desk()
    robot = TokenPrincipal(principal_type="Robot", principal_name="r")
    request = CreateDelegationTokenRequest(renewers=(robot,), max_lifetime_ms=-1)
    answer = asyncio.run(create_delegation_token.handle(desk.broker, request, called("an", 3)))
    assert answer.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    request = CreateDelegationTokenRequest(
        owner_principal_type="Robot", owner_principal_name="r", renewers=(), max_lifetime_ms=-1
    )
    answer = asyncio.run(create_delegation_token.handle(desk.broker, request, called("an", 3)))
    assert answer.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (TooManyTokens("enough"), ErrorCode.POLICY_VIOLATION),
        (MetadataUnavailable("no leader"), ErrorCode.NOT_CONTROLLER),
    ],
)
def test_what_the_metadata_refuse_is_told(refusal: Any, code: ErrorCode) -> None:
    desk = Desk()
    secret = desk.create("an").hmac
    desk.tokens.refuse = refusal
    assert desk.create("an").error_code == code
    assert desk.renew("an", secret) == (code, -1)
    assert desk.expire("an", secret) == (code, -1)


def test_the_audit_knows_tokens_by_their_ids_and_no_secret() -> None:
    desk = Desk()
    made = desk.create("an")
    desk.renew("bo", made.hmac)
    desk.expire("an", made.hmac)
    assert desk.broker.audit is not None
    records = b"\n".join(record.content for record in desk.broker.audit.take()).decode()
    assert records.count(f'"resource":"token:{made.token_id}"') == 2
    assert "DELEGATION_TOKEN_OWNER_MISMATCH" in records
    assert made.hmac.hex() not in records
