"""The secret that a delegation token's owner shows, and the key that a node checks it with: made of the key that all
nodes share.

As in Kafka a token's secret is an HMAC (SHA-512) of its id, and clients use it, in Base64, as a password for SCRAM with
the id as their name. A node makes the SCRAM credential when the token is used first, beside the event loop, and keeps
those of tokens that were used lately.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from functools import partial

from mainstem.lru import Lru
from mainstem.model import ScramCredential, ScramMechanism
from mainstem.ports import SideWork
from mainstem.security.sasl import credentials
from mainstem.security.tokens.token_table import TokenTable

CREDENTIALS_KEPT_MAX = 4_096
"""About 2 MB; another one costs a few milliseconds of a thread."""

IDS_PER_TURN = 500
"""Ids hashed within one turn of the event loop: about a millisecond."""

SALT_BYTES = 32


class TokenSecrets:
    """`key`: the same on all nodes. `work`: hashes beside the event loop."""

    def __init__(self, key: bytes, work: SideWork) -> None:
        assert key, "a key has bytes"
        self._key = key
        self._work = work
        self._credentials: Lru[tuple[str, ScramMechanism], ScramCredential] = Lru(CREDENTIALS_KEPT_MAX)
        self._ids: dict[bytes, str] = {}
        """Ids by what they are looked up by: tokens that were there at the last look."""

    def secret_of(self, token_id: str) -> bytes:
        """64 bytes."""
        return hmac.digest(self._key, token_id.encode(), "sha512")

    async def id_of(self, secret: bytes, tokens: TokenTable) -> str | None:
        """The token that has this secret; None: there is none."""
        if (known := self._ids.get(secret)) is not None and tokens.get(known) is not None:
            return known
        before = {token_id: kept for kept, token_id in self._ids.items()}  # who guesses has each hashed once
        ids = {}
        for number, token in enumerate(tokens, 1):
            ids[before.get(token.token_id) or self.secret_of(token.token_id)] = token.token_id
            if number % IDS_PER_TURN == 0:
                await asyncio.sleep(0)
        self._ids = ids
        return ids.get(secret)

    async def credential(self, token_id: str, mechanism: ScramMechanism) -> ScramCredential:
        """The credential by which SCRAM checks the secret: the same on each node, so that none of them tells more than
        another."""
        kept = self._credentials.get((token_id, mechanism))
        if kept is not None:
            return kept
        salt = hmac.digest(self._key, f"salt\0{mechanism.value}\0{token_id}".encode(), "sha512")[:SALT_BYTES]
        password = base64.b64encode(self.secret_of(token_id))
        made = await self._work.run(partial(credentials.made_of, mechanism, password, salt))
        self._credentials.put((token_id, mechanism), made)
        return made
