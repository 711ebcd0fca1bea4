"""Certificates for tests: an authority that issues them into a directory, and both ends' use of them."""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path
from typing import Any

import trustme

from mainstem.server.listener_config import ListenerConfig


class Authority:
    """Issues certificates into a directory."""

    def __init__(self, directory: Path, name: str = "ours") -> None:
        self._authority = trustme.CA()
        self._directory = directory / name
        self._directory.mkdir(parents=True)
        self.ca = str(self._directory / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(
        self,
        name: str = "node",
        *,
        until: datetime | None = None,
        organization: str | None = None,
        unit: str | None = None,
        key_type: trustme.KeyType = trustme.KeyType.ECDSA,
    ) -> tuple[str, str]:
        """The files of a certificate for this machine and of its key."""
        issued = self._authority.issue_cert(
            "127.0.0.1",
            "localhost",
            common_name=name,
            organization_name=organization,
            organization_unit_name=unit,
            not_after=until,
            key_type=key_type,
        )
        certificate, key = (str(self._directory / f"{name}.{end}") for end in ("pem", "key"))
        Path(certificate).write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return certificate, key

    def listener(self, name: str = "node", /, **settings: Any) -> ListenerConfig:
        """Of a node that shows a certificate of this authority."""
        certificate, key = self.issue(name)
        given: dict[str, Any] = {
            "listen": "127.0.0.1:0",
            "protocol": "SSL",
            "certificate": certificate,
            "key": key,
            **settings,
        }
        return ListenerConfig(**given)

    def client(self, shows: tuple[str, str] | None = None) -> ssl.SSLContext:
        """Of a client that trusts this authority, and `shows` a certificate if given."""
        context = ssl.create_default_context(cafile=self.ca)
        if shows is not None:
            context.load_cert_chain(*shows)
        return context
