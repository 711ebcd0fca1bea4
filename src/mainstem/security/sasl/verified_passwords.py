"""Passwords that were right lately, so that a client that connects often, or ten thousand that connect at once, cost
one hash each instead of thousands.

The cache keeps a keyed hash of the name, the credential and the password; the key is random and lives as long as the
process. A credential that changes has another hash, so that an old password is not taken.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict

from mainstem.model import ScramCredential

PASSWORDS_MAX = 10_000
"""As many as a node has connections: about 1 MB."""


class VerifiedPasswords:
    """`key`: at least 32 random bytes."""

    def __init__(self, key: bytes) -> None:
        assert len(key) >= 32, "a key that somebody may guess"
        self._key = key
        self._right: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._right)

    def knows(self, user: str, credential: ScramCredential, password: bytes) -> bool:
        name = self._name(user, credential, password)
        if name not in self._right:
            return False
        self._right.move_to_end(name)
        return True

    def add(self, user: str, credential: ScramCredential, password: bytes) -> None:
        """That was the password."""
        self._right[self._name(user, credential, password)] = None
        if len(self._right) > PASSWORDS_MAX:
            self._right.popitem(last=False)

    def _name(self, user: str, credential: ScramCredential, password: bytes) -> bytes:
        # each part but the last has its length in front, so that no two tuples have the same bytes
        parts = (user.encode(), credential.salt, credential.stored_key)
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts) + password
        return hmac.digest(self._key, message, "sha256")
