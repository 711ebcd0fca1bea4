"""Errors of certificates and their files."""

from __future__ import annotations

from mainstem.errors import MainstemError


class CertificateError(MainstemError):
    """Base of this room's errors."""


class LibraryMissing(CertificateError):
    """The library that makes and reads certificates is not installed."""


class CertificateUnreadable(CertificateError):
    """A file is not there, or does not hold the certificate or the key that it should."""


class CertificateExists(CertificateError):
    """A file would be written over that nobody said may be lost."""


class CertificateRefused(CertificateError):
    """An authority does not issue a certificate that was asked for; the message says why."""
