"""The broker changes delegation tokens through its own node, and the metadata's leader removes those that have
expired."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from mainstem.nameserver.errors import MetadataUnavailable, NameserverError
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.nameserver.requests import Requests
from mainstem.rpc.messages.metadata import Wanted, WantToken, WantTokenExpiry, WantTokenRemovals
from mainstem.security.tokens.delegation_token import DelegationToken
from mainstem.security.tokens.token_table import TokenTable

TOKENS_TOGETHER_MAX = 500
"""Tokens of one change, which is one log entry."""

log = logging.getLogger(__name__)


class TokenAdministration:
    """Implements `TokenAdmin`. `current`: waits until this node has applied all that was committed before the call."""

    def __init__(self, lookups: MetadataLookups, requests: Requests, current: Callable[[], Awaitable[None]]) -> None:
        self._lookups = lookups
        self._requests = requests
        self._current = current

    def tokens(self) -> TokenTable:
        return self._lookups.tokens()

    async def current(self) -> None:
        await self._current()

    async def add_token(self, token: DelegationToken) -> None:
        token_id, owner, requester, renewers, issued_ms, expires_ms, ends_ms = token
        await self._change(WantToken(token_id, owner, requester, list(renewers), issued_ms, expires_ms, ends_ms))

    async def move_expiry(self, token_id: str, expires_ms: int) -> None:
        await self._change(WantTokenExpiry(token_id, expires_ms))

    async def remove_tokens(self, token_ids: Sequence[str], expired_by_ms: int | None = None) -> None:
        for first in range(0, len(token_ids), TOKENS_TOGETHER_MAX):
            part = list(token_ids[first : first + TOKENS_TOGETHER_MAX])
            await self._requests.change(WantTokenRemovals(part, expired_by_ms))

    async def _change(self, wanted: Wanted) -> None:
        outcome = await self._requests.change(wanted)
        if isinstance(refusal := outcome.items[0], NameserverError):
            raise refusal


class TokenExpiry:
    """Removes expired tokens while this node leads the metadata; `run` is a task on every member."""

    def __init__(
        self,
        lookups: MetadataLookups,
        administration: TokenAdministration,
        sleep: Callable[[float], Awaitable[None]],
        now_ms: Callable[[], int],
        pause_seconds: float,
    ) -> None:
        self._lookups = lookups
        self._administration = administration
        self._sleep = sleep
        self._now_ms = now_ms
        self._pause_seconds = pause_seconds

    async def run(self) -> None:
        while True:
            await self._sleep(self._pause_seconds)
            try:
                await self.remove_expired()
            except MetadataUnavailable as error:
                log.info("expired delegation tokens are removed later: %s", error)

    async def remove_expired(self) -> None:
        """Raises `MetadataUnavailable`."""
        if not self._lookups.leads_metadata:
            return
        now_ms = self._now_ms()
        expired = [token.token_id for token in self._lookups.tokens() if token.expired(now_ms)]
        await self._administration.remove_tokens(expired, expired_by_ms=now_ms)
