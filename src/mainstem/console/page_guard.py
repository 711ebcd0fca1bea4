"""Keeps web pages from changing anything over HTTP, and from reading a port that asks nobody who they are.

A page in any browser of the node's network can send requests here, too, and browsers add the password of a user who
gave it once. A page may read answers only from its own host: so an attacker points the name of that host here, once the
page is loaded. A request for such a name is refused: the Host has to be an address, `localhost`, or a name of the
node. A change moreover has to come

* as JSON, which a page of another origin may not send without permission;
* without an Origin, or from the node's own.

`visitors.py` decides who may change anything. The body of a change is small, and a larger one is refused before it is
read."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

BODY_BYTES_MAX = 16 * 1024
"""A hundred times what any change takes."""

JSON = "application/json"


class PageGuard:
    """Checks requests by what browsers say of the page that sends them. `hosts`: the node's names, besides addresses
    and `localhost`."""

    def __init__(self, hosts: Collection[str] = ()) -> None:
        self._hosts = frozenset(host.lower() for host in hosts) | {"localhost"}

    async def body_of(self, request: Request) -> bytes:
        """The body of a request that may change something. Raises HTTPException with the reason."""
        self._check(request)
        body = bytearray()
        try:
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise _too_large()
        except ClientDisconnect:
            raise HTTPException(400, "the client hung up") from None  # no client reads this
        return bytes(body)

    def check_host(self, request: Request) -> None:
        """Raises HTTPException for a name that is not the node's. A request without any is no browser's."""
        host = request.headers.get("host")
        if host is not None and not self._is_own(host):
            raise HTTPException(
                403, f"Host {host[:100]!r} is no address, and no name of this node; console.hosts may list it"
            )

    def _check(self, request: Request) -> None:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:
            raise HTTPException(415, f"a change is posted as {JSON}")
        self.check_host(request)
        host = request.headers.get("host", "")
        origin = request.headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            raise HTTPException(403, f"changes are not taken from the pages of {origin[:100]!r}")
        size = request.headers.get("content-length", "0")
        if not size.isdecimal() or int(size) > BODY_BYTES_MAX:
            raise _too_large()

    def _is_own(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _too_large() -> HTTPException:
    return HTTPException(413, f"a change has at most {BODY_BYTES_MAX} bytes", headers={"Connection": "close"})
