"""The HTTP port as a task of the node: uvicorn on the node's own event loop.

`bind` takes the port, so that a refused one fails the start; `serve` runs until `stop` and then closes the open
connections within `shutdown_seconds`. Connections of clients that do not read their responses end as idle ones do: what
they leave unread the node holds, and counts nowhere. Connections are bounded in number (`http_connection`). The node
handles signals: uvicorn's handlers are never installed.

`serve` imports the HTTP libraries once the node says `begin`: they are a tenth of the cost of a start, and Kafka
clients are served without them. HTTP clients that connect before that wait. It imports them one after the other, on
the event loop: in a thread, CPython 3.11 fails now and then while a library reads its own source (SystemError: AST
constructor recursion depth mismatch).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from mainstem.address import Address
from mainstem.console.config import ConsoleConfig
from mainstem.console.errors import ListenFailed
from mainstem.socket_memory import bound_unsent, end_when_untaken

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

Tls = Callable[[Callable[[], asyncio.BaseProtocol]], asyncio.BaseProtocol]
"""Makes what the event loop has of a connection, from what makes the one behind the handshake."""

_BACKLOG = 64
"""Connections waiting to be accepted: probes, scrapers and a person or two."""

_LIBRARIES = (
    "anyio",
    "starlette.concurrency",
    "starlette.requests",
    "starlette.applications",
    "h11",
    "importlib.metadata",
    "multiprocessing.context",
    "click",
    "uvicorn",
)
"""In the order in which they need each other, a turn of the loop for each."""


class ConsoleServer:
    """One HTTP listener. Call `bind`, then run `serve` in a task group; `stop` ends it."""

    def __init__(
        self,
        application: Callable[[], Starlette],
        config: ConsoleConfig,
        *,
        waits: bool = False,
        tls: Tls | None = None,
    ) -> None:
        """`application` makes the HTTP application; `waits`: do not answer before `begin`; `tls`: what puts TLS between
        the socket and a connection."""
        self._application = application
        self._tls = tls
        self._config = config
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._stopping = False
        self._serving = False
        self._begun = asyncio.Event()
        if not waits:
            self._begun.set()

    def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the address (port 0: a free one) and return it. Raises ListenFailed."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
        except OSError as error:
            raise ListenFailed(f"http {Address(host, port)}: {error.strerror}") from error
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound_unsent(listener)
            end_when_untaken(listener, self._config.keep_alive_seconds)
            listener.bind(address)
            # Listening at once makes a second node fail here, not later in `serve`; early callers wait.
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise ListenFailed(f"http {Address(host, port)}: {error.strerror}") from error
        listener.setblocking(False)
        self._socket = listener
        bound = listener.getsockname()
        return str(bound[0]), int(bound[1])

    async def serve(self) -> None:
        """Answer requests until `stop` is called or the task is cancelled. After an error it may be called again: the
        port stays taken until then, and its clients wait."""
        assert self._socket is not None, "bind comes first"
        if self._stopping:
            return
        self._serving = True
        listeners = [self._socket.dup()]
        try:
            await self._begun.wait()
            for library in _LIBRARIES:
                importlib.import_module(library)
                await asyncio.sleep(0)
            if not self._stopping:
                self._server = _made(self._application, self._config, self._tls)
                await self._server.serve(sockets=listeners)
        except asyncio.CancelledError:
            self._socket.close()
            raise
        finally:
            self._serving = False
            for listener in (*getattr(self._server, "servers", ()), *listeners):  # a cancelled server leaves them open
                listener.close()

    async def finish(self, task: asyncio.Task[None]) -> None:
        """Stop, and wait until `task`, which runs `serve`, has ended."""
        self.stop()
        if not self._serving:
            task.cancel()  # it has not begun, or died and waits for its next beginning
        await asyncio.wait((task,))

    def begin(self) -> None:
        """Answer from now on, if the server was made with `waits`."""
        self._begun.set()

    def stop(self) -> None:
        """Take no more connections; let `serve` finish the requests in flight and return."""
        self._stopping = True
        if self._socket is not None:
            self._socket.close()
        self._begun.set()
        if self._server is not None:
            self._server.should_exit = True


def _made(application: Callable[[], Starlette], config: ConsoleConfig, tls: Tls | None) -> uvicorn.Server:
    import uvicorn

    from mainstem.console.http_connection import HttpConnection, HttpOverTls

    def over_tls(*arguments: Any, **named: Any) -> asyncio.BaseProtocol:
        assert tls is not None
        return tls(partial(HttpOverTls, HttpConnection(*arguments, **named)))

    connection: Any = HttpConnection if tls is None else over_tls

    class QuietServer(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return QuietServer(
        uvicorn.Config(
            application(),
            http=connection,
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
