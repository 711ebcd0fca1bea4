"""The keys of the issuer of bearer tokens, as its JWKS document says: read when first needed, and again when they are
old, or when a token names a key that is not among them.

Reading never holds up the event loop, and happens once however many clients wait for it. Tokens that name keys nobody
has cannot make the node ask more often than the issuer is to bear. Keys that cannot be read anew stay in use: an issuer
that is away for a while locks nobody out.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.errors import ConfigError
from mainstem.ports import Clock, SideWork
from mainstem.security.sasl.errors import KeysUnavailable
from mainstem.security.sasl.token_check import KEY_SET_BYTES_MAX, read_keys

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

logger = logging.getLogger(__name__)

READ_SECONDS_MAX = 10.0
FRESH_SECONDS = 3600.0
"""As Kafka (sasl.oauthbearer.jwks.endpoint.refresh.ms)."""
PAUSE_SECONDS = 10.0
"""Between two readings, whatever clients send: about what an issuer takes to publish a new key."""


class KeySource:
    """`read` returns the document, or raises OSError or `KeysUnavailable`; it is run by `side_work`."""

    def __init__(self, read: Callable[[], bytes], side_work: SideWork, clock: Clock) -> None:
        self._read = read
        self._side_work = side_work
        self._clock = clock
        self._keys: KeySet | None = None
        self._read_at = 0.0
        self._tried_at: float | None = None
        self._lock = asyncio.Lock()

    async def keys(self, *, missed: bool = False) -> KeySet:
        """The keys; `missed`: the present ones lack one that a token names. Raises `KeysUnavailable`."""
        if self._due(missed):
            async with self._lock:
                if self._due(missed):  # nobody else has read them meanwhile
                    await self._refresh()
        if self._keys is None:
            raise KeysUnavailable("the issuer's keys could not be read")
        return self._keys

    def _due(self, missed: bool) -> bool:
        now = self._clock.monotonic()
        if self._tried_at is not None and now - self._tried_at < PAUSE_SECONDS:
            return False
        return missed or self._keys is None or now - self._read_at >= FRESH_SECONDS

    async def _refresh(self) -> None:
        self._tried_at = self._clock.monotonic()
        try:
            self._keys = await self._side_work.run(lambda: read_keys(self._read()))
            self._read_at = self._clock.monotonic()
        except (OSError, KeysUnavailable) as error:
            logger.warning("the keys that OAUTHBEARER tokens are checked with could not be read: %s", error)


def reader_of(place: str) -> Callable[[], bytes]:
    """Reads a JWKS document from a URL (https, http, file) or a path. Raises ConfigError."""
    url = urllib.parse.urlsplit(place)
    if url.scheme in ("https", "http"):
        if not url.hostname:
            raise ConfigError(f"sasl.oauth_jwks: {place!r} names no host")
        return lambda: _fetched(place)
    path = Path(urllib.parse.unquote(url.path) if url.scheme == "file" else place)
    return lambda: _read(path)


def _fetched(url: str) -> bytes:
    import urllib.request  # with all of HTTP behind it, which nodes without tokens do not need

    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=READ_SECONDS_MAX) as response:
        return bytes(response.read(KEY_SET_BYTES_MAX + 1))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(KEY_SET_BYTES_MAX + 1)
