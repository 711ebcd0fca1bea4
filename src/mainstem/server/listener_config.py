"""The settings of one named listener. Kafka's name of a setting, where it has one, stands beside it."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from mainstem.errors import ConfigError
from mainstem.model import PLAINTEXT
from mainstem.server.addresses import parse_address
from mainstem.server.errors import ListenError

DEFAULT_NAME = PLAINTEXT
"""The listener that `listen` opens, which has no settings of its own."""

_NAME = re.compile(r"[A-Z][A-Z0-9_-]{0,39}")


class ListenerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A listener of the Kafka port; files are in PEM format. `validate` raises ConfigError."""

    listen: str
    """HOST:PORT; port 0 picks a free one (Kafka's `listeners`)."""

    bootstrap_listen: str = ""
    """HOST:PORT that several nodes of one machine listen on together, for the first contact of clients; empty: none."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    """listener.security.protocol.map."""

    advertise: str | None = None
    """advertised.listeners: HOST:PORT that clients of this listener are told to connect to; None: derived from
    `listen`."""

    certificate: str = ""
    """ssl.keystore.certificate.chain: the certificate shown to clients, followed by intermediate ones."""

    key: str = ""
    """ssl.keystore.key: its private key; empty: it is in the certificate's file."""

    key_password_file: str = ""
    """ssl.key.password: the first line of this file opens an encrypted key; empty: it is not encrypted."""

    ca: str = ""
    """ssl.truststore.certificates: the authorities whose certificates are accepted from clients."""

    crl: str = ""
    """Lists of certificates that these authorities have revoked (CRLs); empty: none is. Read again when it changes."""

    client_auth: Literal["none", "requested", "required"] = "none"
    """ssl.client.auth."""

    principal_mapping_rules: tuple[str, ...] = ("DEFAULT",)
    """ssl.principal.mapping.rules, one by one: how the subject of a client's certificate becomes its principal."""

    tls_min: Literal["1.2", "1.3"] = "1.2"
    """ssl.enabled.protocols: the oldest version of TLS that is spoken."""

    mechanisms: tuple[str, ...] = ()
    """listener.name.NAME.sasl.enabled.mechanisms; none: those of `sasl.mechanisms`."""

    @property
    def over_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    def validate(self, name: str) -> None:
        where = f"listeners.{name}"
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: a listener's name is of capitals, digits, - and _, 40 at most")
        if name == DEFAULT_NAME and self.protocol != "PLAINTEXT":
            raise ConfigError(f"{where}: the name {DEFAULT_NAME} is of a listener with this protocol")
        for key, address in (
            ("listen", self.listen), ("bootstrap_listen", self.bootstrap_listen), ("advertise", self.advertise),
        ):  # fmt: skip
            try:
                if address is not None and (address or key != "bootstrap_listen"):
                    parse_address(address)
            except ListenError as error:
                raise ConfigError(f"{where}.{key} = {error}") from None
        if self.mechanisms and not self.protocol.startswith("SASL"):
            raise ConfigError(
                f"{where}.mechanisms is given, and {self.protocol} has no SASL; take SASL_{self.protocol}"
            )
        if not self.over_tls:
            self._validate_plain(where)
        elif not self.certificate:
            raise ConfigError(f"{where}.certificate is missing: {self.protocol} shows clients a certificate")
        elif self.crl and self.client_auth == "none":
            raise ConfigError(f"{where}.crl is given, and client_auth = none asks no client for a certificate")
        elif self.client_auth != "none" and not self.ca:
            raise ConfigError(f"{where}.ca is missing: without it no certificate of a client is accepted")

    def _validate_plain(self, where: str) -> None:
        for key in ("certificate", "key", "key_password_file", "ca", "crl"):
            if getattr(self, key):
                raise ConfigError(f"{where}.{key} is given, and {self.protocol} has no TLS; take SSL, or leave it out")
        if self.client_auth != "none":
            raise ConfigError(f"{where}.client_auth = {self.client_auth}: {self.protocol} has no TLS; take SSL")
