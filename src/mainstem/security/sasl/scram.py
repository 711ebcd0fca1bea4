"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), the server's side.

    client-first   n,,n=user,r=<its nonce>            → CredentialWanted
    server-first   r=<both nonces>,s=<salt>,i=<count>   a Challenge
    client-final   c=biws,r=<both nonces>,p=<proof>   → Accepted, with v=<signature>

A user that does not exist gets a salt like any other, always the same one, and fails at the proof like a wrong
password (`credentials.absent`). The server's nonce is new in each conversation, so that no message can be used again.
Names are compared byte by byte, as Kafka does; SASLprep is not applied. Channel binding is not offered, and refused.
A conversation that says `tokenauth=true` has a delegation token's id as the user's name; whoever shows that token's
secret is the token's owner.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re

from mainstem.model import ScramCredential, ScramMechanism
from mainstem.security.sasl.errors import AuthenticationFailed
from mainstem.security.sasl.steps import Accepted, Challenge, CredentialWanted

NONCE_BYTES = 24
"""192 random bits: no two conversations have the same."""

MESSAGE_BYTES_MAX = 4096
"""A name, a nonce and a proof have some hundred bytes."""

_NONCE = rb"[\x21-\x2b\x2d-\x7e]{8,512}"
_NAME = rb"(?:[^=,\x00]|=2C|=3D){1,1024}"
_FIRST = re.compile(
    rb"(?P<gs2>(?P<binding>n|y|p=[A-Za-z0-9.-]+),(?:a=(?P<acts_as>" + _NAME + rb"))?,)"
    rb"(?P<bare>n=(?P<name>" + _NAME + rb"),r=(?P<nonce>" + _NONCE + rb")(?P<more>(?:,[A-Za-z]+=[^,\x00]+)*))",
    re.DOTALL,
)
_FINAL = re.compile(
    rb"(?P<unproven>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>" + _NONCE + rb")(?:,[A-Za-z]+=[^,\x00]+)*)"
    rb",p=(?P<proof>[A-Za-z0-9+/=]+)",
    re.DOTALL,
)


class _Stage(enum.Enum):
    FIRST = enum.auto()
    LOOKING = enum.auto()
    FINAL = enum.auto()
    OVER = enum.auto()


class Scram:
    """Implements `steps.Mechanism`. `nonce_bytes` are random, at least `NONCE_BYTES` of them, and of this conversation
    alone."""

    def __init__(self, mechanism: ScramMechanism, nonce_bytes: bytes) -> None:
        assert len(nonce_bytes) >= NONCE_BYTES, "a nonce that somebody may guess"
        self.mechanism = mechanism
        self._own_nonce = base64.b64encode(nonce_bytes).rstrip(b"=")
        self._stage = _Stage.FIRST
        self._user = ""
        self._gs2 = b""
        self._nonce = b""
        self._said = b""
        """client-first without its header, then server-first: what the proof and the signature are of."""
        self._credential: ScramCredential | None = None
        self._exists = False
        self._by_token = False
        self._owner = ""
        self._expires_ms: int | None = None

    def step(self, token: bytes) -> Accepted | CredentialWanted:
        stage, self._stage = self._stage, _Stage.OVER
        if len(token) > MESSAGE_BYTES_MAX:
            raise AuthenticationFailed(f"a SCRAM message of {len(token)} bytes")
        if stage is _Stage.FIRST:
            return self._first(token)
        if stage is _Stage.FINAL:
            return self._final(token)
        raise AuthenticationFailed("a SCRAM message that is not expected")

    def found_token(self, credential: ScramCredential, owner: str, expires_ms: int) -> Challenge:
        """Go on with the credential of a delegation token, whose owner the client is if it knows the secret."""
        self._owner, self._expires_ms = owner, expires_ms
        return self.found(credential, exists=True)

    def found(self, credential: ScramCredential, *, exists: bool) -> Challenge:
        """Go on with the user's credential; with `credentials.absent` if there is none (`exists`)."""
        assert self._stage is _Stage.LOOKING, "nobody asked"
        self._credential, self._exists = credential, exists
        salt = base64.b64encode(credential.salt)
        server_first = b"r=%b,s=%b,i=%d" % (self._nonce, salt, credential.iterations)
        self._said += b"," + server_first
        self._stage = _Stage.FINAL
        return Challenge(server_first)

    def _first(self, token: bytes) -> CredentialWanted:
        found = _FIRST.fullmatch(token)
        if found is None:
            raise AuthenticationFailed("the first SCRAM message is malformed")
        if found["binding"].startswith(b"p"):
            raise AuthenticationFailed("SCRAM with channel binding is not offered")
        if b"tokenauth=true" in found["more"].split(b","):
            self._by_token = True
        try:
            self._user = _unescaped(found["name"]).decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("a name that is not UTF-8") from None
        if found["acts_as"] is not None and found["acts_as"] != found["name"]:
            raise AuthenticationFailed("SCRAM: to act as somebody else is not possible")
        self._gs2 = found["gs2"]
        self._nonce = found["nonce"] + self._own_nonce
        self._said = found["bare"]
        self._stage = _Stage.LOOKING
        return CredentialWanted(self._user, self.mechanism, self._by_token)

    def _final(self, token: bytes) -> Accepted:
        found = _FINAL.fullmatch(token)
        credential = self._credential
        assert credential is not None, "the first message comes first"
        if found is None:
            raise AuthenticationFailed("the final SCRAM message is malformed")
        if not hmac.compare_digest(found["nonce"], self._nonce):
            raise AuthenticationFailed("the final SCRAM message has another nonce")
        if _decoded(found["binding"]) != self._gs2:
            raise AuthenticationFailed("the final SCRAM message has another header")
        proof = _decoded(found["proof"])
        said = self._said + b"," + found["unproven"]
        digest = self.mechanism.digest
        signature = hmac.digest(credential.stored_key, said, digest)
        if len(proof) != len(signature):
            raise AuthenticationFailed("the proof has another length than the hash")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        right = hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key)
        if not right or not self._exists:
            raise AuthenticationFailed("the credentials are wrong")
        own = base64.b64encode(hmac.digest(credential.server_key, said, digest))
        return Accepted(self._owner or self._user, b"v=" + own, self._expires_ms, by_token=self._by_token)


def _unescaped(name: bytes) -> bytes:
    return name.replace(b"=2C", b",").replace(b"=3D", b"=")


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailed("SCRAM: what should be Base64 is not") from None
