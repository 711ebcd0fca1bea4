"""A delegation token: who it stands for, who made it, who may renew it, and until when.

Its secret is no part of it: nodes make that of their key and the token's id (`token_secrets.py`), so that neither the
metadata nor a snapshot of it lets anybody in.
"""

from __future__ import annotations

from typing import NamedTuple

TOKEN_ID_LENGTH_MAX = 64
"""The ids that nodes make have 22 characters."""

PRINCIPAL_LENGTH_MAX = 1_024
RENEWERS_MAX = 32

USER_TYPE = "User"


class DelegationToken(NamedTuple):
    """Times are in ms since the Unix epoch, principals are written `User:name`."""

    token_id: str
    owner: str
    requester: str
    """Its maker: its owner, or somebody who may make tokens for the owner."""
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    """Moved by those who renew the token, up to `ends_ms`."""
    ends_ms: int

    def expired(self, now_ms: int) -> bool:
        return now_ms > self.expires_ms

    def concerns(self, principal: str) -> bool:
        """Whether somebody is shown the token without any access rule."""
        return principal in (self.owner, self.requester) or principal in self.renewers

    def renewed_by(self, principal: str) -> bool:
        """Whether somebody may renew the token, and have it expire."""
        return principal == self.owner or principal in self.renewers


def user_of(principal: str) -> str:
    """The name in a principal."""
    return principal.partition(":")[2]


def fault_of(token: DelegationToken) -> str | None:
    """Why a token is not to be kept."""
    if not 1 <= len(token.token_id) <= TOKEN_ID_LENGTH_MAX:
        return f"a token's id has 1 to {TOKEN_ID_LENGTH_MAX} characters"
    if len(token.renewers) > RENEWERS_MAX:
        return f"{len(token.renewers)} renewers: a token has {RENEWERS_MAX} at most"
    for principal in (token.owner, token.requester, *token.renewers):
        kind, _, name = principal.partition(":")
        if kind != USER_TYPE or not name or len(principal) > PRINCIPAL_LENGTH_MAX:
            return f"{principal[:100]!r} is no principal; it is {USER_TYPE}: and a name of less than 1,020 characters"
    if not 0 <= token.issued_ms <= token.expires_ms <= token.ends_ms:
        return "a token is issued before it expires, and expires before it ends"
    return None
