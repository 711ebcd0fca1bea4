"""Certificates for tests: an authority that issues them into a directory, and both ends' use of them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

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

    def revocation_list(
        self, *certificates: tuple[str, str], next_update: datetime | None = None, changes_alone: bool = False
    ) -> bytes:
        """A list (CRL) of certificates of this authority; `changes_alone`: those revoked since another list was."""
        key = serialization.load_pem_private_key(self._authority.private_key_pem.bytes(), password=None)
        assert isinstance(key, EllipticCurvePrivateKey)
        now = datetime.now(UTC)
        issuer = x509.load_pem_x509_certificate(self._authority.cert_pem.bytes())
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(issuer.subject)
            .last_update(now - timedelta(days=2))
            .next_update(next_update or now + timedelta(days=30))
        )
        for file, _ in certificates:
            serial = x509.load_pem_x509_certificate(Path(file).read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            reason = x509.CRLReason(x509.ReasonFlags.key_compromise)
            builder = builder.add_revoked_certificate(entry.add_extension(reason, critical=False).build())
        if changes_alone:
            builder = builder.add_extension(x509.DeltaCRLIndicator(1), critical=True)
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

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
