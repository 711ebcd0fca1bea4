"""Becomes the split application: three commands run it, each for another part of its work."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from mainstem.cli.clients.client_settings import http_address
from mainstem.cli.clients.http_node import HttpNode
from mainstem.console.views.of_split import SplitEndpoint


def become(http: str, master: str | None, more: tuple[str, ...], *, once: bool, only: tuple[str, ...] = ()) -> NoReturn:
    """Run it for the node at `http` in place of this process. `only`: the option that leaves out the rest of its work;
    `more`: options as they were typed."""
    if "--help" not in more:
        # A wrong address is told here in a second, not by Spark in ten.
        HttpNode(http).get("/v1/split/endpoint", SplitEndpoint)
    arguments = [*only, *(["--master", master] if master else []), *(["--once"] if once else []), *more]
    os.execv(
        sys.executable, [sys.executable, "-m", "mainstem.pipeline.main", "--node", http_address(http).url, *arguments]
    )
