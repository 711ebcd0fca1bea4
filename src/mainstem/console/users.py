"""The users of the cluster, as the HTTP port needs to know them, and what is told of the changes that they make."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Shown(NamedTuple):
    """The credentials that a visitor shows: a name with a password, or a token of an issuer."""

    user: bytes = b""
    password: bytes = b""
    token: str = ""


class HttpUsers(Protocol):
    """The users of the cluster."""

    def must_wait(self, host: str) -> bool:
        """Whether visitors from this address wait before anybody looks at what they show, for its wrong guesses."""
        ...

    async def wait(self, host: str) -> None:
        """As long as the guesses of this address cost it now."""
        ...

    async def principal(self, host: str, shown: Shown) -> str | None:
        """The visitor's principal; None: nobody, which a visitor may know as soon as this returns. Looks at once."""
        ...

    def may(self, principal: str, host: str, *, change: bool) -> bool:
        """Whether they may change the cluster, or read about it."""
        ...


NODE_TOKEN = "Token:node"
"""The principal of whoever has the node's token."""


class HttpChange(NamedTuple):
    """A change that somebody asked for, and what came of it."""

    principal: str
    host: str
    operation: str
    resource: str
    refusal: str | None
    """None: it was made."""
