"""The certificates of callers, at a listener or among nodes, that their authorities have revoked: the lists (CRLs) of a
file.

The file is trusted as those of authorities are: whoever may write to it says who comes in. Lists are read again when
the file changes, and open connections whose certificate is in them end then. A list that was to be replaced by now
counts all the same: what is in it stays revoked, and a metric tells of its age. Lists with critical extensions (of
changes alone, or of several authorities) are refused, since their entries mean something else.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mainstem.certificate_files import x509

FILE_BYTES_MAX = 1024 * 1024
"""Some 25,000 certificates: reading them again takes the event loop a tenth of a second, once for each change."""

_HEADER, _FOOTER = "-----BEGIN X509 CRL-----", "-----END X509 CRL-----"


class Revoked(NamedTuple):
    """The content of the lists of a file; `next_update_at` is that of the oldest, in seconds since the epoch; None: no
    list says when it is replaced."""

    serials: frozenset[tuple[str, int]]
    next_update_at: float | None


class Revocations:
    """Connections are followed by the issuer and the serial number of the certificate that they showed."""

    def __init__(self, file: str) -> None:
        """Raises OSError, ValueError."""
        self._file = file
        self._revoked = read_lists(file)
        self._followed: dict[Callable[[], None], tuple[str, int]] = {}
        """By what ends the connection."""

    @property
    def next_update_at(self) -> float | None:
        return self._revoked.next_update_at

    def read_again(self) -> None:
        """Go by what the file has now, and end the connections that it revokes. Raises OSError, ValueError, and leaves
        all as it was."""
        self._revoked = read_lists(self._file)
        for end, identity in list(self._followed.items()):
            if identity in self._revoked.serials:
                end()

    def admits(self, certificate: bytes, end: Callable[[], None]) -> bool:
        """Whether a connection may stay that showed this certificate (DER); `end` is called once it may not. Raises
        ValueError."""
        identity = x509.identity(certificate)
        if identity in self._revoked.serials:
            return False
        self._followed[end] = identity
        return True

    def forget(self, end: Callable[[], None]) -> None:
        """The connection has ended; telling it twice does no harm."""
        self._followed.pop(end, None)


def read_lists(file: str) -> Revoked:
    """Raises OSError, ValueError."""
    with Path(file).open("rb") as opened:
        content = opened.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
    pieces = content.decode("ascii", errors="replace").split(_HEADER)[1:]
    if not pieces:
        raise ValueError("no list of revoked certificates is in it")
    serials: set[tuple[str, int]] = set()
    updates = []
    for piece in pieces:
        text, footer, _ = piece.partition(_FOOTER)
        if not footer:
            raise ValueError("a list of revoked certificates that ends early")
        try:
            found = x509.revocation_list(binascii.a2b_base64(text, strict_mode=False))
        except binascii.Error as error:
            raise ValueError(f"a list of revoked certificates that is not Base64: {error}") from None
        serials.update((found.issuer, serial) for serial in found.serials)
        if found.next_update_at is not None:
            updates.append(found.next_update_at)
    return Revoked(frozenset(serials), min(updates, default=None))
