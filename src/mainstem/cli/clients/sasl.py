"""SASL for connections that the command line makes without librdkafka, by librdkafka's settings: PLAIN, and SCRAM as
RFC 5802 has it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mainstem.cli.errors import NotAdmitted, SettingsUnusable
from mainstem.model import SCRAM_MECHANISMS, ScramMechanism
from mainstem.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from mainstem.security.sasl import plain
from mainstem.security.sasl.credentials import ITERATIONS_MAX, ITERATIONS_MIN, keys_of

HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2
NONCE_BYTES = 24
_KNOWN = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})

Call = Callable[[Any, int], Any]
"""Asks a node: a request and its version in, the response out."""


class Login(NamedTuple):
    """The identity of a client, and how the client shows it."""

    mechanism: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.mechanism!r}, {self.user!r}, …)"  # the rest is secret

    def authenticate(self, call: Call) -> None:
        """Raises NotAdmitted, OSError."""
        answer = call(SaslHandshakeRequest(mechanism=self.mechanism), HANDSHAKE_VERSION)
        if answer.error_code:
            offered = ", ".join(answer.mechanisms) or "none"
            raise NotAdmitted(f"the listener has no mechanism {self.mechanism}; it offers {offered}")
        if self.mechanism == plain.NAME:
            self._send(call, f"\0{self.user}\0{self.password}".encode())
        else:
            self._scram(call, SCRAM_MECHANISMS[self.mechanism])

    def _scram(self, call: Call, mechanism: ScramMechanism) -> None:
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        name = self.user.replace("=", "=3D").replace(",", "=2C")
        first = f"n={name},r={nonce}"
        challenge = self._send(call, f"n,,{first}".encode()).decode()
        fields = dict(part.split("=", 1) for part in challenge.split(",") if "=" in part)
        try:
            both, salt, iterations = fields["r"], base64.b64decode(fields["s"], validate=True), int(fields["i"])
        except (KeyError, ValueError):
            raise NotAdmitted("the node's challenge is none of SCRAM") from None
        if not both.startswith(nonce) or not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise NotAdmitted("the node's challenge is no answer to this client, or asks for too much or too little")
        digest = mechanism.digest
        salted = hashlib.pbkdf2_hmac(digest, self.password.encode(), salt, iterations)
        stored_key, server_key = keys_of(mechanism, salted)
        last = f"c=biws,r={both}"
        signed = ",".join((first, challenge, last)).encode()
        client_key = hmac.digest(salted, b"Client Key", digest)
        signature = hmac.digest(stored_key, signed, digest)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        outcome = self._send(call, f"{last},p={base64.b64encode(proof).decode()}".encode())
        expected = b"v=" + base64.b64encode(hmac.digest(server_key, signed, digest))
        if not hmac.compare_digest(outcome, expected):
            raise NotAdmitted("the node does not know the password of this user, and so is not the cluster's")

    def _send(self, call: Call, token: bytes) -> bytes:
        answer = call(SaslAuthenticateRequest(auth_bytes=token), AUTHENTICATE_VERSION)
        if answer.error_code:
            raise NotAdmitted(f"user {self.user!r} is not let in: {answer.error_message}")
        return bytes(answer.auth_bytes)


def login_of(settings: Mapping[str, str]) -> Login | None:
    """How a client shows who it is; None: by nothing, or by its certificate. Raises SettingsUnusable; also for settings
    of SASL that it does not know, rather than connect otherwise than they say."""
    if settings.get("security.protocol", "").lower() not in ("sasl_plaintext", "sasl_ssl"):
        return None
    if unknown := sorted(key for key in settings if key.startswith("sasl.") and key not in _KNOWN):
        raise SettingsUnusable(f"{unknown[0]}: this command has no use for it; known are {', '.join(sorted(_KNOWN))}")
    mechanism = settings.get("sasl.mechanisms") or settings.get("sasl.mechanism") or "GSSAPI"
    if mechanism != plain.NAME and mechanism not in SCRAM_MECHANISMS:
        known = ", ".join((plain.NAME, *SCRAM_MECHANISMS))
        raise SettingsUnusable(f"sasl.mechanism = {mechanism[:64]}: this command has {known}")
    user, password = settings.get("sasl.username", ""), settings.get("sasl.password", "")
    if not user or not password:
        raise SettingsUnusable("a listener with SASL takes sasl.username and sasl.password")
    return Login(mechanism, user, password)
