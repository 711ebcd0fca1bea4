"""PLAIN (RFC 4616): one message with name and password, for listeners with TLS.

As in Kafka, the identity to act as is empty or the user's own name.
"""

from __future__ import annotations

from mainstem.security.sasl.errors import AuthenticationFailed
from mainstem.security.sasl.steps import PasswordGiven

NAME = "PLAIN"

PASSWORD_BYTES_MAX = 1024
"""Far more than anybody types or a program makes up. Longer passwords are refused unhashed."""


class Plain:
    """Implements `steps.Mechanism`. The caller judges the password; nothing comes after it."""

    def __init__(self) -> None:
        self._over = False

    def step(self, token: bytes) -> PasswordGiven:
        if self._over:
            raise AuthenticationFailed("PLAIN has one message only")
        self._over = True
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise AuthenticationFailed(f"a PLAIN message has three parts, this one {len(parts)}")
        acts_as, name, password = parts
        if not name or not password:
            raise AuthenticationFailed("a PLAIN message without name or password")
        if acts_as and acts_as != name:
            raise AuthenticationFailed("PLAIN: to act as somebody else is not possible")
        if len(password) > PASSWORD_BYTES_MAX:
            raise AuthenticationFailed(f"a password of more than {PASSWORD_BYTES_MAX} bytes")
        try:
            return PasswordGiven(name.decode(), password)
        except UnicodeDecodeError:
            raise AuthenticationFailed("a name that is not UTF-8") from None
