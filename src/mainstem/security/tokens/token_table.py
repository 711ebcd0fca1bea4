"""The delegation tokens of a cluster, by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mainstem.security.tokens.delegation_token import DelegationToken

TOKENS_MAX = 20_000
"""Each takes about a kilobyte of memory and of a snapshot."""

TOKENS_OF_OWNER_MAX = 1_000
"""One user alone cannot use up all that a cluster keeps."""


class TokenTable:
    def __init__(self) -> None:
        self._tokens: dict[str, DelegationToken] = {}
        self._owned: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[DelegationToken]:
        """As they are now, whatever changes meanwhile."""
        return iter(tuple(self._tokens.values()))

    def get(self, token_id: str) -> DelegationToken | None:
        return self._tokens.get(token_id)

    def owned_by(self, owner: str) -> int:
        """How many tokens somebody has."""
        return self._owned[owner]

    def put(self, token: DelegationToken) -> None:
        """Keep a token, in place of what it was."""
        self.remove(token.token_id)
        self._tokens[token.token_id] = token
        self._owned[token.owner] += 1

    def remove(self, token_id: str) -> None:
        token = self._tokens.pop(token_id, None)
        if token is not None:
            self._owned[token.owner] -= 1
            if not self._owned[token.owner]:
                del self._owned[token.owner]
