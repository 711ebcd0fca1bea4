"""The nameserver's own configuration."""

from __future__ import annotations

import re

import msgspec

from mainstem.errors import ConfigError
from mainstem.model import SLOTS
from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.topic_config import check_configs

NODE_ID_MAX = 0x7FFF_FFFF
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{22}")


class NameserverConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`topic_defaults` stands under Kafka's topic config names; a topic's own configs go before it."""

    cluster_id: str | None = None
    """A base64url uuid of 22 characters; None: made up at the first start, then what the directory says."""
    node_id: int = 1
    write_groups: int = 4
    """For a new cluster only."""
    topic_defaults: dict[str, str] = {}
    changes_waiting_max: int = 1_000
    """Metadata changes that may wait for the log; more are refused, with an error that can be retried."""
    log_bytes_max: int = 4 * 1024 * 1024
    """A snapshot replaces the log when it grows past this, or past the newest snapshot if that is larger."""

    def validate(self) -> None:
        """Raises ConfigError."""
        if self.cluster_id is not None and _CLUSTER_ID.fullmatch(self.cluster_id) is None:
            raise ConfigError(
                f"cluster_id={self.cluster_id!r}: it takes 22 characters of A-Z, a-z, 0-9, '_' and '-'"
            )
        bounds = {
            "node_id": (self.node_id, 0, NODE_ID_MAX),
            "write_groups": (self.write_groups, 1, SLOTS),
            "changes_waiting_max": (self.changes_waiting_max, 1, 1_000_000),
            "log_bytes_max": (self.log_bytes_max, 4096, 1 << 30),
        }
        for key, (value, least, most) in bounds.items():
            if not least <= value <= most:
                raise ConfigError(f"{key}={value}: it takes a whole number from {least} to {most}")
        try:
            check_configs(self.topic_defaults)
        except InvalidConfig as error:
            raise ConfigError(f"topic_defaults: {error}") from error
