"""The HTTP port as a task of the node: uvicorn on the node's own event loop.

`bind` takes the port, so that a refused one fails the start; `serve` runs until `stop` and then closes what
is open within `shutdown_seconds`. Signals are the node's business: uvicorn's handlers are never installed.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

from mainstem.console.config import ConsoleConfig
from mainstem.console.errors import ListenFailed

_BACKLOG = 64
"""Connections waiting to be accepted: probes, scrapers and a person or two."""


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ConsoleServer:
    """One HTTP listener. Call `bind`, then run `serve` in a task group; `stop` ends it."""

    def __init__(self, application: Starlette, config: ConsoleConfig) -> None:
        self._socket: socket.socket | None = None
        self._server = _QuietServer(
            uvicorn.Config(
                application,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=_BACKLOG,
                timeout_keep_alive=config.keep_alive_seconds,
                timeout_graceful_shutdown=config.shutdown_seconds,
            )
        )

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the address (port 0: a free one) and return it. Raises ListenFailed."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
        except OSError as error:
            raise ListenFailed(f"http {host}:{port}: {error.strerror}") from error
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # Listening at once makes a second node fail here, not later in `serve`; early callers wait.
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise ListenFailed(f"http {host}:{port}: {error.strerror}") from error
        listener.setblocking(False)
        self._socket = listener
        bound = listener.getsockname()
        return str(bound[0]), int(bound[1])

    async def serve(self) -> None:
        """Answer requests until `stop` is called or the task is cancelled."""
        assert self._socket is not None, "bind comes first"
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            for listener in getattr(self._server, "servers", ()):  # left open when it was cancelled
                listener.close()
            self._socket.close()

    def stop(self) -> None:
        """Let `serve` finish what is in flight and return."""
        self._server.should_exit = True
