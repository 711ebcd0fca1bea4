"""A directory with a cluster's two authorities and the certificates that they issue.

`nodes-ca.pem` and `users-ca.pem` are the authorities, `node-1.pem`, `splitter.pem` and `user-alice.pem` certificates;
the key of each lies beside it, with the ending `.key`. Nodes and clients get copies of what they need and no key of an
authority.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from mainstem.security.certificates.authority import (
    AUTHORITY_LIFETIME,
    CERTIFICATE_LIFETIME,
    Authority,
    new_authority,
    parsed_certificates,
    parsed_key,
)
from mainstem.security.certificates.errors import CertificateRefused, CertificateUnreadable
from mainstem.security.certificates.holders import AuthorityKind, CertificateHolder
from mainstem.security.certificates.pem_files import key_of, read_file, require_absent, write_pair


class WrittenCertificate(NamedTuple):
    """A certificate that was written, its key, and when it expires."""

    certificate: Path
    key: Path
    until: datetime


class CertificateDirectory:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def authority_file(self, kind: AuthorityKind) -> Path:
        return self._directory / f"{kind.value}-ca.pem"

    def path_of(self, holder: CertificateHolder) -> Path:
        """Where a certificate lies, if it was made."""
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

    def _issuer_of(self, certificate: x509.Certificate, path: Path) -> Authority:
        for kind in AuthorityKind:
            file = self.authority_file(kind)
            if file.exists() and (authority := self._authority(file)).signed(certificate):
                return authority
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
