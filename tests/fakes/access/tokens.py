"""Delegation tokens in memory. The rules are the metadata's own, so that refusals are the real ones."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.errors import MainstemError
from mainstem.model import FeatureLevel
from mainstem.nameserver.state.changes import new_cluster
from mainstem.nameserver.state.commands import MoveTokenExpiry, RaiseFeatureLevel, RemoveDelegationToken
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.state import MetadataState, token_command
from mainstem.security.tokens.delegation_token import DelegationToken
from mainstem.security.tokens.token_admin import TokenAdmin
from mainstem.security.tokens.token_table import TokenTable


def tokened(level: int = FeatureLevel.TENANTED) -> MetadataState:
    """The metadata of a cluster at a level, without any token."""
    state = MetadataState(TopicDefaults())
    state.apply(new_cluster("a" * 22, 4))
    state.apply(RaiseFeatureLevel(level))
    return state


class MemoryTokens(TokenAdmin):
    """Tests may set `refuse`: what every call raises until it is None again."""

    def __init__(self) -> None:
        self.refuse: MainstemError | None = None
        self._state = tokened()

    def tokens(self) -> TokenTable:
        return self._state.token_table

    async def current(self) -> None:
        self._refuse()

    async def add_token(self, token: DelegationToken) -> None:
        self._refuse()
        command = token_command(token)
        self._state.check(command)
        self._state.apply(command)

    async def move_expiry(self, token_id: str, expires_ms: int) -> None:
        self._refuse()
        command = MoveTokenExpiry(token_id, expires_ms)
        self._state.check(command)
        self._state.apply(command)

    async def remove_tokens(self, token_ids: Sequence[str], expired_by_ms: int | None = None) -> None:
        self._refuse()
        for token_id in token_ids:
            self._state.apply(RemoveDelegationToken(token_id))

    def _refuse(self) -> None:
        if self.refuse is not None:
            raise self.refuse
