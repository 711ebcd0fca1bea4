"""The context of a request: what its handler is told besides the body."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.ports import Session


class RequestContext(NamedTuple):
    """The circumstances of one request: its version, client and connection."""

    version: int
    client_id: str | None
    session: Session
    correlation_id: int = 0
