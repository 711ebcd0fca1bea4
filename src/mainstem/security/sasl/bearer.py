"""OAUTHBEARER (RFC 7628, KIP-255), the server's side.

    client   n,[a=user],^Aauth=Bearer <token>^A[key=value^A]^A   → BearerTokenGiven
    valid    Accepted, with no word
    invalid  {"status":"invalid_token"} is a Challenge, which the client answers with ^A, and has failed then

The caller validates the token (`token_check.py`). SASL extensions (KIP-342) are read past.
"""

from __future__ import annotations

import enum
import re

from mainstem.security.sasl.errors import AuthenticationFailed
from mainstem.security.sasl.steps import Accepted, BearerTokenGiven, Challenge

NAME = "OAUTHBEARER"

MESSAGE_BYTES_MAX = 32 * 1024
"""Tokens with many claims have some kilobytes; no proxy lets pass more than that in a header."""

_MESSAGE = re.compile(
    rb"[ny],(?:a=(?P<user>[^,\x00\x01]{1,1024}))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x00\x01]*\x01){1,64})\x01", re.DOTALL
)
_AUTH = re.compile(rb"(?i:bearer) +(?P<token>[-._~+/A-Za-z0-9]+=*)")
_REFUSAL = b'{"status":"invalid_token"}'
_GONE_ON = b"\x01"


class _Stage(enum.Enum):
    FIRST = enum.auto()
    LOOKING = enum.auto()
    FAILED = enum.auto()
    OVER = enum.auto()


class Bearer:
    """Implements `steps.Mechanism`."""

    def __init__(self) -> None:
        self._stage = _Stage.FIRST
        self._user = ""
        self._why = ""

    def step(self, token: bytes) -> BearerTokenGiven:
        stage, self._stage = self._stage, _Stage.OVER
        if stage is _Stage.FAILED:
            raise AuthenticationFailed(self._why)
        if stage is not _Stage.FIRST or token == _GONE_ON:
            raise AuthenticationFailed("an OAUTHBEARER message that is not expected")
        if len(token) > MESSAGE_BYTES_MAX:
            raise AuthenticationFailed(f"an OAUTHBEARER message of {len(token)} bytes")
        found = _MESSAGE.fullmatch(token)
        if found is None:
            raise AuthenticationFailed("an OAUTHBEARER message is malformed")
        pairs = [pair.split(b"=", 1) for pair in found["pairs"].split(b"\x01") if pair]
        given = [_AUTH.fullmatch(value) for key, value in pairs if key == b"auth"]
        if len(given) != 1 or given[0] is None:
            raise AuthenticationFailed("an OAUTHBEARER message has one bearer token")
        try:
            self._user = (found["user"] or b"").replace(b"=2C", b",").replace(b"=3D", b"=").decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("a name that is not UTF-8") from None
        self._stage = _Stage.LOOKING
        return BearerTokenGiven(given[0]["token"].decode("ascii"), self._user)

    def valid(self, user: str, expires_ms: int) -> Accepted | Challenge:
        """The token is valid, and names this user."""
        assert self._stage is _Stage.LOOKING, "nobody asked"
        if self._user and self._user != user:
            return self.invalid("OAUTHBEARER: to act as somebody else is not possible")
        self._stage = _Stage.OVER
        return Accepted(user, expires_ms=expires_ms)

    def invalid(self, why: str) -> Challenge:
        """The token is not valid. The peer does not hear why."""
        assert self._stage is _Stage.LOOKING, "nobody asked"
        self._stage = _Stage.FAILED
        self._why = why
        return Challenge(_REFUSAL)
