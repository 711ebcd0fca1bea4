"""The settings of delegation tokens. Kafka's name of a setting stands beside it."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError

DURATION_MS_MAX = 10 * 365 * 24 * 3_600_000


class DelegationTokenConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same on all nodes. `validate` raises ConfigError."""

    secret_key_file: str = ""
    """delegation.token.secret.key: its first line, of 16 bytes at least (mode 0600). A file, since configurations are
    shown and logged. Empty: delegation tokens are switched off."""

    max_lifetime_ms: int = 7 * 24 * 3_600_000
    """delegation.token.max.lifetime.ms: a token ends then, whoever renews it."""

    expiry_time_ms: int = 24 * 3_600_000
    """delegation.token.expiry.time.ms: a token that is not renewed within this time expires."""

    def validate(self) -> None:
        for name in ("max_lifetime_ms", "expiry_time_ms"):
            if not 1 <= getattr(self, name) <= DURATION_MS_MAX:
                raise ConfigError(f"{name} = {getattr(self, name)} is out of range; it is 1 to {DURATION_MS_MAX}")
