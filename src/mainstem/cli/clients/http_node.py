"""A node's HTTP port as the commands use it: GET a path, get a typed value or an error worth reading."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from mainstem.address import is_loopback, parsed
from mainstem.cli.clients import tls
from mainstem.cli.clients.client_settings import HttpAddress, http_address
from mainstem.cli.errors import CommandLineError, NodeUnreachable, RequestRefused
from mainstem.console.token_file import TOKEN_NAME, read_token

T = TypeVar("T")

TIMEOUT_SECONDS = 10.0
"""A view is made from memory; a node that takes longer is stuck."""

_RESPONSE_BYTES_MAX = 256 * 1024 * 1024
"""A topic of a million partitions is about 200 MB of JSON; anything longer is not one of ours."""


_REASON_BYTES_MAX = 4096
"""Of what is not ready: one sentence."""

_NO_PROXY = urllib.request.ProxyHandler({})
"""Never through a proxy of the environment, which knows nothing of 127.0.0.1."""


class _WriteDisk(msgspec.Struct):
    """As much of `/v1/cluster` as says where a node keeps its token."""

    class Disk(msgspec.Struct):
        path: str

    write_disk: Disk


class HttpNode:
    def __init__(self, address: str, token: str | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """`token`: the node's, for changes; None: what the address is let in with, else the token is read where the
        node runs on this host. Raises SettingsUnusable."""
        self._address = http_address(address)
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._user = _basic(self._address)
        self._open = _opener(self._address)

    def get(self, path: str, kind: type[T]) -> T:
        """The JSON of a path, as `kind`. Raises NodeUnreachable or RequestRefused."""
        try:
            return msgspec.json.decode(self._content(path), type=kind)
        except msgspec.MsgspecError as error:
            raise RequestRefused(
                f"{self._address} is not a Mainstem node, or one of another version: {error}"
            ) from None

    def text(self, path: str) -> str:
        """The text of a path. Raises NodeUnreachable or RequestRefused."""
        return self._content(path).decode("utf-8", "replace")

    def _content(self, path: str) -> bytes:
        request = urllib.request.Request(self._url(path), headers=self._shown())
        try:
            with self._open(request, timeout=self._timeout_seconds) as response:
                content: bytes = response.read(_RESPONSE_BYTES_MAX)
                return content
        except urllib.error.HTTPError as error:
            raise RequestRefused(f"{self._address}: {_reason(error)}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def post(self, path: str, content: msgspec.Struct) -> None:
        """Ask for a change. Raises NodeUnreachable or RequestRefused."""
        self._posted(path, content)

    def ask(self, path: str, content: msgspec.Struct, kind: type[T]) -> T:
        """Ask for a change, and get what it came to. Raises NodeUnreachable or RequestRefused."""
        try:
            return msgspec.json.decode(self._posted(path, content), type=kind)
        except msgspec.MsgspecError as error:
            raise RequestRefused(f"{self._address} is a node of another version: {error}") from None

    def _posted(self, path: str, content: msgspec.Struct) -> bytes:
        shown = self._shown() or {"authorization": f"Bearer {self._known_token()}"}
        try:
            try:
                return self._answer_to(path, content, shown)
            except urllib.error.HTTPError as error:
                if error.code != http.client.UNAUTHORIZED or self._token is not None or not self._user:
                    raise
            # a node that asks no visitor for a user takes its token alone
            return self._answer_to(path, content, {"authorization": f"Bearer {self._known_token()}"})
        except urllib.error.HTTPError as error:
            raise RequestRefused(f"{self._address}: {_reason(error)}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def _answer_to(self, path: str, content: msgspec.Struct, shown: Mapping[str, str]) -> bytes:
        headers = {"content-type": "application/json", **shown}
        request = urllib.request.Request(self._url(path), msgspec.json.encode(content), headers, method="POST")
        with self._open(request, timeout=self._timeout_seconds) as response:
            answer: bytes = response.read(_RESPONSE_BYTES_MAX)
            return answer

    def _url(self, path: str) -> str:
        return f"{self._address.url}{urllib.parse.quote(path)}"

    def _shown(self) -> dict[str, str]:
        """The header by which the node knows who asks; none where there is nothing to show."""
        if self._token is not None:
            return {"authorization": f"Bearer {self._token}"}
        return {"authorization": self._user} if self._user else {}

    def _known_token(self) -> str:
        """Raises NodeUnreachable or RequestRefused."""
        if self._token is not None:
            return self._token
        write_dir = self.get("/v1/cluster", _WriteDisk).write_disk.path
        token = read_token(Path(write_dir))
        if token is None:
            raise RequestRefused(
                f"{self._address}: a change needs the node's token, and {Path(write_dir) / TOKEN_NAME} cannot be read "
                "here; give it with --token or MAINSTEM_TOKEN"
            )
        return token

    def not_ready(self) -> str | None:
        """Why the node should get no traffic, in its words; None when it is ready. Raises NodeUnreachable."""
        try:
            with self._open(self._url("/readyz"), timeout=self._timeout_seconds):
                return None
        except urllib.error.HTTPError as error:
            return error.read(_REASON_BYTES_MAX).decode("utf-8", "replace").strip() or str(error.reason)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def get_or_tell(self, path: str, kind: type[T], consequence: str) -> T | None:
        """Like `get`, for what is good to have: None, after one line on stderr, where it cannot be had."""
        try:
            return self.get(path, kind)
        except CommandLineError as error:
            click.echo(f"mainstem: {error}; {consequence}", err=True)
            return None

    def _unreachable(self, error: Exception) -> NodeUnreachable:
        reason = getattr(error, "reason", None) or error
        return NodeUnreachable(
            f"no answer from {self._address.url} ({reason}); is `mainstem serve` running? Give another address with "
            "--http"
        )

    def tell(self, finding: str, consequence: str) -> None:
        """One line on stderr about this address."""
        click.echo(f"mainstem: {self._address.url} {finding}; {consequence}", err=True)


def _opener(address: HttpAddress) -> Callable[..., Any]:
    if not address.over_tls:
        return urllib.request.build_opener(_NO_PROXY).open
    context = tls.context_of({"security.protocol": "ssl", **_of_tls(address.settings)})
    return urllib.request.build_opener(_NO_PROXY, urllib.request.HTTPSHandler(context=context)).open


def _of_tls(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in settings.items() if key.startswith(("ssl.", "enable.ssl."))}


def _basic(address: HttpAddress) -> str:
    """A user's name and password as HTTP has them. Empty: there are none, or others on the way could read them."""
    user, password = address.settings.get("sasl.username"), address.settings.get("sasl.password")
    if not user or not password or not (address.over_tls or is_loopback(parsed(address).host)):
        return ""
    return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return msgspec.json.decode(error.read(), type=dict[str, str])["error"]
    except (msgspec.MsgspecError, KeyError, OSError):
        return f"HTTP {error.code} {error.reason}"
