"""Changes that other nodes make for a client of this one: these are told who it is."""

from __future__ import annotations

from typing import Any

from mainstem.acted_for import acting_for
from mainstem.broker.started import Later
from mainstem.model import ForwardedClient


async def handled_for(handle: Later[Any], client: ForwardedClient) -> Any:
    """Handle a request of this client."""
    work = handle()
    del handle  # it holds the request, which the work lets go as soon as it can
    with acting_for(client):
        return await work
