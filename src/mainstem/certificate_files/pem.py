"""Certificates in PEM files."""

from __future__ import annotations

import ssl
from pathlib import Path


def first_certificate(file: str) -> bytes:
    """The certificate in front of a chain, in DER form. Raises OSError, ValueError."""
    text = Path(file).read_text("ascii", errors="replace")
    start = text.index(ssl.PEM_HEADER)
    return ssl.PEM_cert_to_DER_cert(text[start : text.index(ssl.PEM_FOOTER, start) + len(ssl.PEM_FOOTER)])
