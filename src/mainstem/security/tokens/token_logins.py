"""Lets clients in by their delegation tokens."""

from __future__ import annotations

from collections.abc import Callable

from mainstem.model import ScramMechanism
from mainstem.security.sasl.steps import TokenLogin
from mainstem.security.tokens.delegation_token import user_of
from mainstem.security.tokens.token_secrets import TokenSecrets
from mainstem.security.tokens.token_table import TokenTable


class TokenLogins:
    def __init__(self, tokens: Callable[[], TokenTable], secrets: TokenSecrets, now_ms: Callable[[], int]) -> None:
        self._tokens = tokens
        self._secrets = secrets
        self._now_ms = now_ms

    async def __call__(self, token_id: str, mechanism: ScramMechanism) -> TokenLogin | None:
        """None: there is no such token, or it has expired."""
        token = self._tokens().get(token_id)
        if token is None or token.expired(self._now_ms()):
            return None
        credential = await self._secrets.credential(token_id, mechanism)
        return TokenLogin(credential, user_of(token.owner), token.expires_ms)
