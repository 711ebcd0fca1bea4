"""A node's HTTP port as the commands use it: GET a path, get a typed value or an error worth reading."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from typing import TypeVar

import msgspec

from mainstem.cli.errors import NodeUnreachable, RequestRefused

T = TypeVar("T")

TIMEOUT_SECONDS = 10.0
"""A view is made from memory; a node that takes longer is stuck."""

_RESPONSE_BYTES_MAX = 256 * 1024 * 1024
"""A topic of a million partitions is about 200 MB of JSON; anything longer is not one of ours."""


class HttpNode:
    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, kind: type[T]) -> T:
        """The JSON of a path, as `kind`. Raises NodeUnreachable or RequestRefused."""
        url = f"http://{self._address}{urllib.parse.quote(path)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
                content = response.read(_RESPONSE_BYTES_MAX)
        except urllib.error.HTTPError as error:
            raise RequestRefused(f"{self._address}: {_reason(error)}") from None
        except (urllib.error.URLError, TimeoutError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise NodeUnreachable(
                f"no answer from http://{self._address} ({reason}); is `mainstem serve` running? --http names it"
            ) from None
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise RequestRefused(
                f"{self._address} is not a Mainstem node, or one of another version: {error}"
            ) from None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return msgspec.json.decode(error.read(), type=dict[str, str])["error"]
    except (msgspec.MsgspecError, KeyError, OSError):
        return f"HTTP {error.code} {error.reason}"
