"""Questions of the matrix of access rules about users' credentials and delegation tokens.

Kafka judges tokens by whose they are, and by rules where they are another's. The tokens that are asked about are made
before, one of each owner, by a super user, and each node has its own ids and secrets of them. Asking makes none: a
token that may be made is refused for its renewers, which are no users. A token that may be renewed or expired sooner
stays valid, and its times are not compared. All users are asked for by an empty list: Kafka 4.3.1 does not answer at
all when somebody who may not asks for them by null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bench.access.question import Question
from mainstem.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)
from mainstem.protocol.messages.sasl import DescribeUserScramCredentialsRequest

OWNERS = ("alice", "bob", "carol")
NO_TOKEN = b"no token of anybody"
LATER_MS = 3_600_000
_NOBODY = (TokenPrincipal(principal_type="Group", principal_name="nobody"),)
_VERSION = 3


class Token(NamedTuple):
    id: str
    secret: bytes


def made_for(owner: str) -> CreateDelegationTokenRequest:
    """A super user asks for it beforehand."""
    return CreateDelegationTokenRequest(
        owner_principal_type="User", owner_principal_name=owner, renewers=(), max_lifetime_ms=-1
    )


def token_questions(tokens: Mapping[str, Token]) -> Iterator[Question]:
    """`tokens`: by owner, at the node that is asked."""
    yield Question("DescribeUserScramCredentials all", DescribeUserScramCredentialsRequest(users=()), 0)
    yield Question("CreateDelegationToken", CreateDelegationTokenRequest(
        owner_principal_type=None, owner_principal_name=None, renewers=_NOBODY, max_lifetime_ms=LATER_MS),
        _VERSION)  # fmt: skip
    yield Question("DescribeDelegationToken all", DescribeDelegationTokenRequest(owners=None), _VERSION)
    yield Question("RenewDelegationToken of none", RenewDelegationTokenRequest(
        hmac=NO_TOKEN, renew_period_ms=LATER_MS), 2)  # fmt: skip
    yield Question("ExpireDelegationToken of none", ExpireDelegationTokenRequest(
        hmac=NO_TOKEN, expiry_time_period_ms=LATER_MS), 2)  # fmt: skip
    for owner, token in tokens.items():
        yield Question(f"CreateDelegationToken for {owner}", CreateDelegationTokenRequest(
            owner_principal_type="User", owner_principal_name=owner, renewers=_NOBODY, max_lifetime_ms=LATER_MS),
            _VERSION)  # fmt: skip
        yield Question(f"DescribeDelegationToken of {owner}", DescribeDelegationTokenRequest(
            owners=(TokenPrincipal(principal_type="User", principal_name=owner),)),
            _VERSION)  # fmt: skip
        yield Question(f"RenewDelegationToken of {owner}", RenewDelegationTokenRequest(
            hmac=token.secret, renew_period_ms=LATER_MS), 2)  # fmt: skip
        yield Question(f"ExpireDelegationToken of {owner}", ExpireDelegationTokenRequest(
            hmac=token.secret, expiry_time_period_ms=LATER_MS), 2)  # fmt: skip
