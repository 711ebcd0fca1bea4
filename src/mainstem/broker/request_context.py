"""What every handler is told of the request besides its body."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.ports import Session


class RequestContext(NamedTuple):
    """The circumstances of one request: its version, client and connection."""

    version: int
    client_id: str | None
    session: Session
    correlation_id: int = 0
