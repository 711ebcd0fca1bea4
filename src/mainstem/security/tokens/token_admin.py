"""All that a broker has at hand to make the cluster's delegation tokens, and to change them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mainstem.security.tokens.delegation_token import DelegationToken
from mainstem.security.tokens.token_secrets import TokenSecrets
from mainstem.security.tokens.token_table import TokenTable


class TokenAdmin(Protocol):
    """Changes are durable, and known to this node, when a call returns. Raise a MainstemError that says why not."""

    def tokens(self) -> TokenTable:
        """As far as this node knows; another table after a snapshot."""
        ...

    async def current(self) -> None:
        """Wait until this node knows all that was committed before the call."""
        ...

    async def add_token(self, token: DelegationToken) -> None: ...

    async def move_expiry(self, token_id: str, expires_ms: int) -> None: ...

    async def remove_tokens(self, token_ids: Sequence[str], expired_by_ms: int | None = None) -> None:
        """Remove those that expired before `expired_by_ms`; None: all of them. Unknown ones are passed over."""
        ...


class TokenService(NamedTuple):
    """The cluster's delegation tokens, as a node with the key of their secrets has them."""

    admin: TokenAdmin
    secrets: TokenSecrets
    max_lifetime_ms: int
    expiry_time_ms: int
