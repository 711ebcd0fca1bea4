"""Configuration of the HTTP console, and its checks."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError


class ConsoleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the HTTP port."""

    requests_in_flight_max: int = 64
    """More requests at once are answered 503: a console and a scraper need a handful, and a page of a topic
    with many partitions takes memory."""
    keep_alive_seconds: int = 30
    """An idle connection is closed after this long, and one whose client takes nothing of its response; after twice as
    long, one whose request does not arrive whole."""
    shutdown_seconds: int = 2
    """How long a stopping node waits for HTTP requests in flight."""

    def validate(self) -> None:
        """Raises ConfigError naming the key, the value and what is allowed."""
        least = {"requests_in_flight_max": 1, "keep_alive_seconds": 1, "shutdown_seconds": 0}
        for key, smallest in least.items():
            if getattr(self, key) < smallest:
                raise ConfigError(f"console.{key} = {getattr(self, key)}: must be at least {smallest}")
