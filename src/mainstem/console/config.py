"""Configuration of the HTTP console, and its checks."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError


class ConsoleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP port: whom it lets in, its certificate, its limits."""

    users: bool = False
    """Whether visitors show who they are: users of the cluster, by password or token of the issuer. With
    `authorizer.enabled`, reading takes DESCRIBE on the cluster, and changing ALTER."""
    open_metrics: bool = False
    """Whether /metrics is for everybody even then, but for what names tenants, topics, groups or clients."""
    hosts: tuple[str, ...] = ()
    """Names under which the port is reached, besides addresses, `localhost`, the names in `http` and
    `server.advertise`, and the machine's. A request for another name is refused: it may come from a web page whose name
    somebody points here."""
    certificate: str = ""
    """File in PEM format, followed by intermediate ones; with it the port speaks TLS alone. It is read again when it
    changes."""
    key: str = ""
    """Its private key; empty: it is in the certificate's file."""
    key_password_file: str = ""
    """The first line of this file opens an encrypted key."""
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
        for key in ("key", "key_password_file"):
            if getattr(self, key) and not self.certificate:
                raise ConfigError(f"console.{key} is given, and console.certificate is not: without it there is no TLS")
