"""Describes a certificate by values that can be printed and compared."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from mainstem.security.certificates.authority import parsed_certificates
from mainstem.security.certificates.pem_files import read_file

_USAGES = {ExtendedKeyUsageOID.SERVER_AUTH: "server", ExtendedKeyUsageOID.CLIENT_AUTH: "client"}


class Description(msgspec.Struct, frozen=True):
    """One certificate of a file. Names as RFC 4514 writes them, times in UTC."""

    file: str
    subject: str
    names: list[str]
    """Hosts and addresses that it is valid for."""
    issuer: str
    authority: bool
    """Whether it signs others."""
    usages: list[str]
    """`server`, `client`; others by their number."""
    key: str
    serial: str
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal digits."""
    not_before: datetime
    not_after: datetime

    def left(self, now: datetime) -> timedelta:
        """How long it is valid still; negative: it has expired."""
        return self.not_after - now


def described(path: Path) -> list[Description]:
    """The certificates of a file, in its order. Raises CertificateUnreadable."""
    return [description_of(one, path) for one in parsed_certificates(read_file(path), path)]


def description_of(certificate: x509.Certificate, path: Path) -> Description:
    return Description(
        file=str(path),
        subject=certificate.subject.rfc4514_string(),
        names=_names(certificate),
        issuer=certificate.issuer.rfc4514_string(),
        authority=_is_authority(certificate),
        usages=_usages(certificate),
        key=_key(certificate),
        serial=f"{certificate.serial_number:x}",
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
    )


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in found]


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _usages(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return []
    return [_USAGES.get(usage, usage.dotted_string) for usage in found]


def _key(certificate: x509.Certificate) -> str:
    key = certificate.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"ECDSA {key.curve.name}"
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA {key.key_size}"
    return type(key).__name__.removesuffix("PublicKey").lstrip("_")
