"""Whether certificates can be made and read here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from mainstem.security.certificates.errors import LibraryMissing


def require_cryptography(find: Callable[[str], object] = importlib.util.find_spec) -> None:
    """Raises LibraryMissing if `find` does not find the library."""
    if find("cryptography") is None:
        raise LibraryMissing("certificates need a library that is not installed: pip install 'mainstem[security]'")
