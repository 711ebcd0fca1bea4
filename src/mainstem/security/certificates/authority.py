"""Authorities: they make certificates, and make them anew before they expire. No file and no clock is touched here.

Keys are of the curve P-256, which every client of the last ten years knows. The purposes in an authority's certificate
bind those it issues, too: none of the users' authority is accepted from a server."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mainstem.security.certificates.errors import CertificateRefused, CertificateUnreadable
from mainstem.security.certificates.holders import AuthorityKind, CertificateHolder

SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey
"""Keys of an authority that comes from elsewhere may be any of these."""

AUTHORITY_LIFETIME = timedelta(days=3652)
CERTIFICATE_LIFETIME = timedelta(days=365)
LIST_LIFETIME = timedelta(days=30)
"""Of a list of revoked certificates: somebody looks after them as often."""
CLOCK_SLACK = timedelta(hours=1)
"""A certificate is valid from so long before it is made: the clocks of those who see it first may be behind."""

_USAGES = {
    AuthorityKind.NODES: [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    AuthorityKind.USERS: [ExtendedKeyUsageOID.CLIENT_AUTH],
}


class Issued(NamedTuple):
    """In PEM format; the key is not encrypted. `until`: when the certificate expires."""

    certificate: bytes
    key: bytes
    until: datetime


class Authority:
    """A certificate that signs others, with its key."""

    def __init__(self, certificate: x509.Certificate, key: SigningKey) -> None:
        """Raises CertificateRefused if this is no authority or the key is another's."""
        if not _may_sign(certificate):
            raise CertificateRefused(f"{_text(certificate.subject)} is no authority: it signs no certificates")
        if certificate.public_key() != key.public_key():
            raise CertificateRefused(f"the key is not that of {_text(certificate.subject)}")
        self._certificate = certificate
        self._key = key

    @property
    def name(self) -> str:
        return _text(self._certificate.subject)

    def signed(self, certificate: x509.Certificate) -> bool:
        """Whether a certificate, its own included, is of this authority."""
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except Exception:  # whichever the signature's kind raises: another signed it
            return False
        return True

    def issue(self, holder: CertificateHolder, now: datetime, lifetime: timedelta = CERTIFICATE_LIFETIME) -> Issued:
        """A certificate with a new key. Raises CertificateRefused."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(holder.common_name))
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage_of_leaf(), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_USAGES[holder.authority]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if holder.hosts:
            names = x509.SubjectAlternativeName(list(map(_general_name, holder.hosts)))
            builder = builder.add_extension(names, critical=False)
        return self._signed(builder, key, now, lifetime)

    def renew(
        self,
        old: x509.Certificate,
        key: SigningKey | None,
        now: datetime,
        lifetime: timedelta = CERTIFICATE_LIFETIME,
    ) -> Issued:
        """A certificate that says what `old` says, valid from now on. `key`: that of the old one; None: it gets a new
        one. Raises CertificateRefused if `old` is another authority's, or is the authority's own and gets a new key:
        all it has issued would count no more."""
        if not self.signed(old):
            raise CertificateRefused(
                f"{_text(old.subject)} is a certificate of {_text(old.issuer)}, not of {self.name}"
            )
        itself = old.public_key() == self._certificate.public_key()
        if itself and key is None:
            raise CertificateRefused(
                f"{self.name} keeps its key: with another one all it has issued would count no more"
            )
        if key is not None and key.public_key() != old.public_key():
            raise CertificateRefused(f"the key is not that of {_text(old.subject)}")
        used = key if key is not None else ec.generate_private_key(ec.SECP256R1())
        builder = x509.CertificateBuilder().subject_name(old.subject).public_key(used.public_key())
        for extension in old.extensions:
            value = extension.value
            if isinstance(value, x509.SubjectKeyIdentifier):
                value = x509.SubjectKeyIdentifier.from_public_key(used.public_key())
            if not isinstance(value, x509.AuthorityKeyIdentifier):
                builder = builder.add_extension(value, critical=extension.critical)
        return self._signed(builder, used, now, lifetime, itself=itself)

    def revocation_list(self, revoked: Sequence[x509.RevokedCertificate], now: datetime, lifetime: timedelta) -> bytes:
        """A list of certificates of this authority that count no more, in PEM format."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(now - CLOCK_SLACK)
            .next_update(now + lifetime)
            .add_extension(_authority_identifier(self._certificate), critical=False)
        )
        for one in revoked:
            builder = builder.add_revoked_certificate(one)
        return builder.sign(self._key, _hash_for(self._key)).public_bytes(serialization.Encoding.PEM)

    def _signed(
        self,
        builder: x509.CertificateBuilder,
        key: SigningKey,
        now: datetime,
        lifetime: timedelta,
        *,
        itself: bool = False,
    ) -> Issued:
        """Issues a certificate; it expires with the authority at the latest."""
        ends = self._certificate.not_valid_after_utc
        if not itself and now >= ends:
            raise CertificateRefused(f"{self.name} expired on {ends:%Y-%m-%d}: renew it first")
        until = now + lifetime if itself else min(now + lifetime, ends)
        if not itself:
            identifier = _authority_identifier(self._certificate)
            builder = builder.add_extension(identifier, critical=False)
        made = (
            builder.issuer_name(self._certificate.subject)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SLACK)
            .not_valid_after(until)
            .sign(self._key, _hash_for(self._key))
        )
        return Issued(made.public_bytes(serialization.Encoding.PEM), _pem_of(key), until)


def new_authority(kind: AuthorityKind, name: str, now: datetime, lifetime: timedelta = AUTHORITY_LIFETIME) -> Issued:
    """An authority that answers to nobody. `name`: what its subject says besides its kind."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"{name} {kind.value}")
    until = now + lifetime
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage_of_authority(), critical=True)
        .add_extension(x509.ExtendedKeyUsage(_USAGES[kind]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Issued(made.public_bytes(serialization.Encoding.PEM), _pem_of(key), until)


def parsed_certificates(content: bytes, where: object) -> list[x509.Certificate]:
    """All certificates of a file in PEM format, at least one. Raises CertificateUnreadable naming `where`."""
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise CertificateUnreadable(f"{where}: no certificate in PEM format ({_first_line(error)})") from None


def parsed_list(content: bytes, where: object) -> x509.CertificateRevocationList:
    """A list of revoked certificates in PEM format. Raises CertificateUnreadable naming `where`."""
    try:
        return x509.load_pem_x509_crl(content)
    except ValueError as error:
        raise CertificateUnreadable(f"{where}: no list of revoked certificates ({_first_line(error)})") from None


def parsed_key(content: bytes, where: object) -> SigningKey:
    """A private key in PEM format, not encrypted. Raises CertificateUnreadable naming `where`."""
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise CertificateUnreadable(f"{where}: the key is encrypted; it has to be there in the clear") from None
    except ValueError:
        raise CertificateUnreadable(f"{where}: no private key in PEM format") from None
    if not isinstance(key, SigningKey):
        raise CertificateUnreadable(f"{where}: a key of a kind that signs no certificates")
    return key


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["nothing that reads as one"])[0]


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _authority_identifier(certificate: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        subject = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        public = certificate.public_key()
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(public)  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(subject)


def _hash_for(key: SigningKey) -> hashes.SHA256 | None:
    return None if isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey) else hashes.SHA256()


def _pem_of(key: SigningKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _text(name: x509.Name) -> str:
    return name.rfc4514_string()


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage_of_leaf() -> x509.KeyUsage:
    return _usage(digital_signature=True)


def _usage_of_authority() -> x509.KeyUsage:
    return _usage(key_cert_sign=True, crl_sign=True)


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
