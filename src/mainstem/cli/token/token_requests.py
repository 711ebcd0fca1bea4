"""The questions of the commands about delegation tokens, and their views of the answers.

librdkafka has no requests of delegation tokens, so these commands speak for themselves. A token is named by its id; its
secret is looked up where a request takes it, so that none stands on a command line.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mainstem.cli.clients.client_settings import settings_of
from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.errors import RequestRefused
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    TokenPrincipal,
)

CREATE_VERSION, RENEW_VERSION, EXPIRE_VERSION, DESCRIBE_VERSION = 3, 2, 2, 3
USUAL_MS = -1
"""For a time: what the node has for it."""

REMEDIES = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "the nodes have no delegation_token.secret_key_file",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "only clients that show who they are, and not by a token, may ask",
    ErrorCode.POLICY_VIOLATION: "the cluster keeps as many tokens as it can: expire some",
    ErrorCode.UNSUPPORTED_VERSION: "mainstem cluster feature-level --raise, once all nodes run this version",
}


class TokenRequests:
    """Asks any node of a cluster."""

    def __init__(self, connections: KafkaConnections, bootstrap: str) -> None:
        self._connections = connections
        self._bootstrap = bootstrap

    def create(self, owner: str | None, renewers: Sequence[str], lifetime_ms: int) -> Any:
        """A CreateDelegationTokenResponse. Raises RequestRefused."""
        principal = None if owner is None else principal_of(owner)
        request = CreateDelegationTokenRequest(
            owner_principal_type=None if principal is None else principal.principal_type,
            owner_principal_name=None if principal is None else principal.principal_name,
            renewers=tuple(map(principal_of, renewers)),
            max_lifetime_ms=lifetime_ms,
        )
        return self._answer(request, CREATE_VERSION, "no delegation token was made")

    def described(self, owners: Sequence[str] = ()) -> Sequence[DescribedDelegationToken]:
        """The tokens that this client may see; without `owners` of all of them. Raises RequestRefused."""
        request = DescribeDelegationTokenRequest(owners=tuple(map(principal_of, owners)) or None)
        answer = self._answer(request, DESCRIBE_VERSION, "the delegation tokens were not listed")
        return sorted(answer.tokens, key=lambda token: token.issue_timestamp)

    def renew(self, token_id: str, period_ms: int) -> int:
        """When the token expires now, in ms since the Unix epoch. Raises RequestRefused."""
        request = RenewDelegationTokenRequest(hmac=self._secret(token_id), renew_period_ms=period_ms)
        answer = self._answer(request, RENEW_VERSION, f"token {token_id} was not renewed")
        return int(answer.expiry_timestamp_ms)

    def expire(self, token_id: str, period_ms: int) -> int:
        """As `renew`; with a period below 0 it is gone at once."""
        request = ExpireDelegationTokenRequest(hmac=self._secret(token_id), expiry_time_period_ms=period_ms)
        answer = self._answer(request, EXPIRE_VERSION, f"token {token_id} does not expire sooner")
        return int(answer.expiry_timestamp_ms)

    def _secret(self, token_id: str) -> bytes:
        for token in self.described():
            if token.token_id == token_id:
                return token.hmac
        raise RequestRefused(f"there is no delegation token {token_id}, or none that you may see")

    def _answer(self, request: Any, version: int, failure: str) -> Any:
        answer = self._connections.call_any(self._bootstrap, request, version)
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            raise RequestRefused(f"{failure}: {REMEDIES.get(code, code.message)} ({code.name})")
        return answer


@contextmanager
def asked(bootstrap: str) -> Iterator[TokenRequests]:
    """`bootstrap` as options have it. Raises SettingsUnusable."""
    connections = KafkaConnections(settings_of(bootstrap))
    try:
        yield TokenRequests(connections, bootstrap)
    finally:
        connections.close()


def principal_of(text: str) -> TokenPrincipal:
    """`alice` is the user alice, as is `User:alice`."""
    kind, colon, name = text.partition(":")
    return TokenPrincipal(principal_type=kind, principal_name=name) if colon else TokenPrincipal(
        principal_type="User", principal_name=text
    )  # fmt: skip


def shown(principal_type: str, principal_name: str) -> str:
    return f"{principal_type}:{principal_name}"


def moment(timestamp_ms: int) -> str:
    return datetime.datetime.fromtimestamp(timestamp_ms / 1000).isoformat(" ", "seconds")
