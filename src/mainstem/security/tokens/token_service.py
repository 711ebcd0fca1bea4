"""All that a broker has at hand to make delegation tokens, and to change them."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.security.tokens.token_admin import TokenAdmin
from mainstem.security.tokens.token_secrets import TokenSecrets


class TokenService(NamedTuple):
    """The cluster's delegation tokens, as a node with the key of their secrets has them."""

    admin: TokenAdmin
    secrets: TokenSecrets
    max_lifetime_ms: int
    expiry_time_ms: int
