"""Visitors over HTTP, and whether they may have what they ask for.

The holder of the node's token may do everything. Everybody else may read and change nothing, but for what the
configuration leaves open: all reads, where `console.users` is off; else health, and where a splitter finds the node.
With `console.users` on, visitors show who they are with each request, as users of the cluster do to its listeners:

    Authorization: Basic …     name and password
    Authorization: Bearer …    the node's token, or one of the issuer whose tokens the listeners take

Looking at what visitors show takes time on purpose, and more for each wrong guess. So those that are looked at are
bounded, in all and for each address, apart from the requests that are answered. A visitor whose address has to wait for
its guesses waits before it takes a place: places go to those that are looked at, and nobody else.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode
from collections import Counter

from starlette.exceptions import HTTPException
from starlette.requests import Request

from mainstem.console.users import NODE_TOKEN, HttpUsers, Shown

LOOKED_AT_MAX = 32
"""Visitors whose credentials are looked at together: a scraper and some people need a few, and each waits no longer
than the listeners of Kafka clients have theirs wait."""

PER_HOST_MAX = 4
"""Of one address, those that wait included: a guesser keeps nobody else from being looked at."""

WAITING_MAX = 256
"""Visitors that wait for the guesses of their addresses: half of the connections that the port has."""

CHALLENGE = {"WWW-Authenticate": 'Basic realm="mainstem", charset="UTF-8"'}


class Visitors:
    def __init__(self, token: str = "", users: HttpUsers | None = None) -> None:
        """An empty token matches none. `users`: None where nobody is asked who they are, who only reads."""
        self._token = token
        self._users = users
        self._under_way: Counter[str] = Counter()
        """By address: visitors that wait, or are looked at."""
        self._waiting = 0
        self._looked_at = 0

    @property
    def ask_everybody(self) -> bool:
        """Whether all show who they are, those that only read included."""
        return self._users is not None

    async def admit(self, request: Request, *, change: bool) -> str:
        """The principal of a request that may go on; empty: nobody asked. Raises HTTPException: 401, 403, 429."""
        given = request.headers.get("authorization", "")
        if self._token and hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return NODE_TOKEN
        if self._users is None:
            if change:
                raise HTTPException(
                    401,
                    "a change needs the node's token (Authorization: Bearer …), the file http-token in its write_dir",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            return ""
        host = request.client.host if request.client is not None else ""
        principal = await self._looked_up(self._users, host, _shown(given))
        if not self._users.may(principal, host, change=change):
            what = "ALTER" if change else "DESCRIBE"
            raise HTTPException(403, f"{principal} may not: it takes {what} on the cluster")
        return principal

    async def _looked_up(self, users: HttpUsers, host: str, shown: Shown) -> str:
        if self._under_way[host] >= PER_HOST_MAX:
            raise _too_many()
        self._under_way[host] += 1
        try:
            if users.must_wait(host):
                await self._wait(users, host)
            if self._looked_at >= LOOKED_AT_MAX:
                raise _too_many()
            self._looked_at += 1
            try:
                principal = await users.principal(host, shown)
            finally:
                self._looked_at -= 1
        finally:
            self._under_way[host] -= 1
            if not self._under_way[host]:
                del self._under_way[host]
        if principal is None:
            raise HTTPException(401, "the credentials were not accepted", headers=CHALLENGE)
        return principal

    async def _wait(self, users: HttpUsers, host: str) -> None:
        if self._waiting >= WAITING_MAX:
            raise _too_many()
        self._waiting += 1
        try:
            await users.wait(host)
        finally:
            self._waiting -= 1


def _too_many() -> HTTPException:
    return HTTPException(429, "too many visitors are being looked at; try again", headers={"Retry-After": "1"})


def _shown(given: str) -> Shown:
    """Raises HTTPException for what is neither."""
    scheme, _, value = given.partition(" ")
    match scheme.lower():
        case "basic":
            try:
                user, colon, password = b64decode(value.strip(), validate=True).partition(b":")
            except (binascii.Error, ValueError):
                colon = b""
            if colon:
                return Shown(user=user, password=password)
        case "bearer":
            if value.strip():
                return Shown(token=value.strip())
    raise HTTPException(401, "this takes a user's name and password, or a token", headers=CHALLENGE)
