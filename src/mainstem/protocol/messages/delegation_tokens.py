"""Delegation tokens (KIP-48, KIP-373).

CreateDelegationToken: make a token, and learn its secret.
RenewDelegationToken: move the time at which it expires.
ExpireDelegationToken: have it expire sooner, or at once.
DescribeDelegationToken: the tokens of owners, with their secrets.
"""

from __future__ import annotations

from mainstem.protocol.schema import array, binary, int16, int32, int64, message, nested, string, wire


@nested
class TokenPrincipal:
    principal_type: str = wire(string)
    principal_name: str = wire(string)


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest:
    owner_principal_type: str | None = wire(string, "3+", nullable="3+", default=None)
    owner_principal_name: str | None = wire(string, "3+", nullable="3+", default=None)
    renewers: tuple[TokenPrincipal, ...] = wire(array(TokenPrincipal))
    max_lifetime_ms: int = wire(int64)


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse:
    error_code: int = wire(int16)
    principal_type: str = wire(string)
    principal_name: str = wire(string)
    token_requester_principal_type: str = wire(string, "3+", default="", ignorable=True)
    token_requester_principal_name: str = wire(string, "3+", default="", ignorable=True)
    issue_timestamp_ms: int = wire(int64)
    expiry_timestamp_ms: int = wire(int64)
    max_timestamp_ms: int = wire(int64)
    token_id: str = wire(string)
    hmac: bytes = wire(binary)
    throttle_time_ms: int = wire(int32, default=0)


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    hmac: bytes = wire(binary)
    renew_period_ms: int = wire(int64)


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    error_code: int = wire(int16)
    expiry_timestamp_ms: int = wire(int64)
    throttle_time_ms: int = wire(int32, default=0)


@message(api_key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest:
    hmac: bytes = wire(binary)
    expiry_time_period_ms: int = wire(int64)


@message(api_key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse:
    error_code: int = wire(int16)
    expiry_timestamp_ms: int = wire(int64)
    throttle_time_ms: int = wire(int32, default=0)


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest:
    owners: tuple[TokenPrincipal, ...] | None = wire(array(TokenPrincipal), nullable="0+")


@nested
class DescribedDelegationToken:
    principal_type: str = wire(string)
    principal_name: str = wire(string)
    token_requester_principal_type: str = wire(string, "3+", default="", ignorable=True)
    token_requester_principal_name: str = wire(string, "3+", default="", ignorable=True)
    issue_timestamp: int = wire(int64)
    expiry_timestamp: int = wire(int64)
    max_timestamp: int = wire(int64)
    token_id: str = wire(string)
    hmac: bytes = wire(binary)
    renewers: tuple[TokenPrincipal, ...] = wire(array(TokenPrincipal))


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse:
    error_code: int = wire(int16)
    tokens: tuple[DescribedDelegationToken, ...] = wire(array(DescribedDelegationToken))
    throttle_time_ms: int = wire(int32, default=0)
