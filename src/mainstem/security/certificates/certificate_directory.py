"""A directory with a cluster's two authorities and the certificates that they issue.

`nodes-ca.pem` and `users-ca.pem` are the authorities, `node-1.pem`, `splitter.pem` and `user-alice.pem` certificates;
the key of each lies beside it, with the ending `.key`. Nodes and clients get copies of what they need and no key of an
authority.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from mainstem.security.certificates.authority import (
    AUTHORITY_LIFETIME,
    CERTIFICATE_LIFETIME,
    LIST_LIFETIME,
    Authority,
    new_authority,
    parsed_certificates,
    parsed_key,
    parsed_list,
)
from mainstem.security.certificates.errors import CertificateRefused, CertificateUnreadable
from mainstem.security.certificates.holders import AuthorityKind, CertificateHolder
from mainstem.security.certificates.pem_files import CERTIFICATE_MODE, key_of, read_file, require_absent, write_pair
from mainstem.whole_file import write_whole


class WrittenCertificate(NamedTuple):
    """A certificate that was written, its key, and when it expires."""

    certificate: Path
    key: Path
    until: datetime


class WrittenList(NamedTuple):
    """A list of revoked certificates that was written, how many are in it, and when another is due."""

    file: Path
    revoked: int
    until: datetime


class CertificateDirectory:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def authority_file(self, kind: AuthorityKind) -> Path:
        return self._directory / f"{kind.value}-ca.pem"

    def path_of(self, holder: CertificateHolder) -> Path:
        """The path of a certificate, if it was made."""
        return self._directory / holder.file_name

    def make_authorities(self, name: str, now: datetime, *, replace: bool = False) -> list[WrittenCertificate]:
        """Make both authorities. Raises CertificateExists, before anything is written, and OSError."""
        files = {
            self.authority_file(kind): new_authority(kind, name, now, AUTHORITY_LIFETIME) for kind in AuthorityKind
        }
        if not replace:
            require_absent(*files)
        for path, made in files.items():
            write_pair(path, made.certificate, made.key, replace=replace)
        return [WrittenCertificate(path, key_of(path), made.until) for path, made in files.items()]

    def create(
        self,
        holder: CertificateHolder,
        now: datetime,
        lifetime: timedelta = CERTIFICATE_LIFETIME,
        *,
        replace: bool = False,
    ) -> WrittenCertificate:
        """Issue a certificate with a new key. Raises CertificateError, OSError."""
        path = self.path_of(holder)
        made = self._authority(self.authority_file(holder.authority)).issue(holder, now, lifetime)
        write_pair(path, made.certificate, made.key, replace=replace)
        return WrittenCertificate(path, key_of(path), made.until)

    def renew(
        self, path: Path, now: datetime, lifetime: timedelta | None = None, *, new_key: bool = False
    ) -> WrittenCertificate:
        """Issue a certificate anew, in its place; the key stays unless `new_key`. `lifetime`: None is what new ones of
        its kind have. Raises CertificateError, OSError."""
        old = parsed_certificates(read_file(path), path)[0]
        authority = self._issuer_of(old, path)
        key = None if new_key else parsed_key(read_file(key_of(path)), key_of(path))
        itself = old.issuer == old.subject
        usual = AUTHORITY_LIFETIME if itself else CERTIFICATE_LIFETIME
        made = authority.renew(old, key, now, lifetime or usual)
        write_pair(path, made.certificate, made.key if new_key else None, replace=True)
        return WrittenCertificate(path, key_of(path), made.until)

    def revoke(self, path: Path, now: datetime, lifetime: timedelta = LIST_LIFETIME) -> WrittenList:
        """Add a certificate to the list of those that its authority has revoked. Raises CertificateError, OSError."""
        certificate = parsed_certificates(read_file(path), path)[0]
        if certificate.issuer == certificate.subject:
            raise CertificateRefused(f"{path} is an authority: whoever trusts it has to be told to trust it no more")
        kind, authority = self._kind_and_issuer_of(certificate, path)
        revoked = [one for one in self._revoked(kind) if one.serial_number != certificate.serial_number]
        builder = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number).revocation_date(now)
        return self._write_list(kind, authority, [*revoked, builder.build()], now, lifetime)

    def renew_lists(self, now: datetime, lifetime: timedelta = LIST_LIFETIME) -> list[WrittenList]:
        """Write the lists of both authorities anew, with what is in them. Raises CertificateError, OSError."""
        return [
            self._write_list(kind, self._authority(self.authority_file(kind)), self._revoked(kind), now, lifetime)
            for kind in AuthorityKind
        ]

    def list_file(self, kind: AuthorityKind) -> Path:
        return self._directory / f"{kind.value}.crl"

    def _revoked(self, kind: AuthorityKind) -> list[x509.RevokedCertificate]:
        file = self.list_file(kind)
        return list(parsed_list(read_file(file), file)) if file.exists() else []

    def _write_list(
        self,
        kind: AuthorityKind,
        authority: Authority,
        revoked: Sequence[x509.RevokedCertificate],
        now: datetime,
        lifetime: timedelta,
    ) -> WrittenList:
        file = self.list_file(kind)
        write_whole(file, authority.revocation_list(revoked, now, lifetime), CERTIFICATE_MODE)
        return WrittenList(file, len(revoked), now + lifetime)

    def _issuer_of(self, certificate: x509.Certificate, path: Path) -> Authority:
        return self._kind_and_issuer_of(certificate, path)[1]

    def _kind_and_issuer_of(self, certificate: x509.Certificate, path: Path) -> tuple[AuthorityKind, Authority]:
        for kind in AuthorityKind:
            file = self.authority_file(kind)
            if file.exists() and (authority := self._authority(file)).signed(certificate):
                return kind, authority
        raise CertificateRefused(
            f"{path} is a certificate of {certificate.issuer.rfc4514_string()}, which is not an authority of "
            f"{self._directory}; name its directory with --dir"
        )

    def _authority(self, path: Path) -> Authority:
        if not path.exists():
            raise CertificateUnreadable(f"{path}: there is no authority yet; `mainstem cert authority` makes one")
        certificate = parsed_certificates(read_file(path), path)[0]
        try:
            return Authority(certificate, parsed_key(read_file(key_of(path)), key_of(path)))
        except CertificateRefused as error:
            raise CertificateRefused(f"{path}: {error}") from None
