"""Files of certificates and keys: written whole or not at all, keys for their owner's eyes alone.

A file gets its content under another name in the same directory and then takes its own, so that a node that loads its
certificate anew reads the old one or the new one, never a part. A certificate and its key are two files: a node that
reads them between two renames sees that they do not match, keeps what it has and reads them again.
"""

from __future__ import annotations

from pathlib import Path

from mainstem.security.certificates.errors import CertificateExists, CertificateUnreadable
from mainstem.whole_file import write_whole

CERTIFICATE_MODE = 0o644
KEY_MODE = 0o600

FILE_BYTES_MAX = 1024 * 1024
"""A file of the authorities of a whole operating system has a quarter of that; a chain has some thousand bytes."""


def key_of(certificate: Path) -> Path:
    """The path of a certificate's key: `node-1.key` beside `node-1.pem`."""
    return certificate.with_suffix(".key")


def write_pair(path: Path, certificate: bytes, key: bytes | None, *, replace: bool) -> None:
    """Write a certificate, and its key beside it; None: the key stays as it is. Raises CertificateExists if either is
    there and `replace` is not set, before anything is written; OSError."""
    if not replace:
        require_absent(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if key is not None:
        write_whole(key_of(path), key, KEY_MODE)
    write_whole(path, certificate, CERTIFICATE_MODE)


def require_absent(*certificates: Path) -> None:
    """Raises CertificateExists if one of these or its key is there."""
    for path in certificates:
        for file in (path, key_of(path)):
            if file.exists():
                raise CertificateExists(f"{file} is there already and would be lost; --force replaces it")


def read_file(path: Path) -> bytes:
    """The bytes of a file. Raises CertificateUnreadable."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CertificateUnreadable(f"{path}: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise CertificateUnreadable(f"{path}: more than {FILE_BYTES_MAX} bytes; this is no file of certificates")
    return content
