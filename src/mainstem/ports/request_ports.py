"""Requests between a connection and whoever answers them: sessions, replies, and the dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mainstem.model import (
    BUFFERS,
    Buffer,
)

if TYPE_CHECKING:
    pass

from mainstem.prompt_future import PromptFuture

ANONYMOUS = "User:ANONYMOUS"
"""Kafka's name for a client that nobody has asked who it is."""


ANY_BYTES = 2**31 - 1
"""No bound: as many as a frame of Kafka's can have."""


def any_bytes() -> int:
    """The bound of responses to a client of which nothing is known."""
    return ANY_BYTES


@dataclass(slots=True, eq=False)
class Brought:
    """The bytes of a connection's requests lately, counted by whoever watches for floods."""

    window: int = -1
    """The last one in which it brought anything."""
    size_bytes: int = 0
    """In that window."""
    came_at: float = 0.0
    """When its first requests of that window came, where somebody flooded the node in the one before."""
    light_windows: int = 0
    """So many in a row it has brought little, beside others that brought much."""


@dataclass(slots=True, eq=False)
class Session:
    """One connection of a client, from its first byte to its last: where it comes from, how it came in, and who it is.
    The server makes it, and hands the same object to the dispatcher with every request and every burst."""

    host: str
    port: int
    connection_id: int
    listener: str = "PLAINTEXT"
    """The name of the listener that the client connected to."""
    protocol: str = "PLAINTEXT"
    """That listener's, by Kafka's name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    principal: str = ANONYMOUS
    software_name: str = ""
    """The client library, as it names itself (ApiVersions); empty: it has not."""
    software_version: str = ""
    authenticated: bool = True
    """Whether the client has shown who it is, if that is asked of it (`begin_gated`)."""
    gated: bool = False
    """Whether requests are looked at before they are dispatched: on a listener with SASL, until the client is
    authenticated, and afterwards as long as that may end."""
    authentication: object | None = None
    """How far the client has come with it, kept by whoever asks."""
    frame_bytes_max: int = ANY_BYTES
    """No request may have more bytes, whatever the server would take."""
    muted_until: float = 0.0
    """No requests are taken of it until then (seconds of the monotonic clock); 0: they are."""
    tenant: str = ""
    """Whose the client is, told by whoever charges it; empty: nobody's."""
    client_part: int = 0
    """Which part of the clients of its address it belongs to, by its client id, told by whoever dispatches its first
    request; 0: that is not known yet."""
    brought: Brought = field(default_factory=Brought)
    charged: object | None = None
    """The charges of the client, kept by whoever charges it."""
    verdicts: object | None = None
    """The verdicts on the client, kept by whoever judges it."""
    response_bytes_max: Callable[[], int] = any_bytes
    """Says how many bytes a response that is made now should have at most, by what the client has taken so far."""

    @property
    def sharer(self) -> str:
        """The name for which the client's share of the node counts, while clients take turns: that of its tenant; of
        its principal, if it has no tenant; of all clients of its address with that client id, if it has neither."""
        if self.tenant:
            return self.tenant
        return self.principal if self.principal != ANONYMOUS else f"{self.host}/{self.client_part}"

    def begin_gated(self, frame_bytes_max: int) -> None:
        """The client has to show who it is before anything else; until then its requests are that short."""
        self.authenticated, self.gated, self.frame_bytes_max = False, True, frame_bytes_max


class Scattered(Protocol):
    """Bytes of a response, at least one, that lie in many places; `kernel.ScatteredBytes` implements it."""

    def __len__(self) -> int:
        """Bytes that have not left."""
        ...

    def take(self, size: int) -> Sequence[Buffer]:
        """Views of the next `size` bytes, or of all that are left; they have left then."""
        ...

    def send(self, descriptor: int, size: int) -> int:
        """Write the next `size` bytes, or all that are left, to a socket, as far as it takes them without waiting; how
        many these were. A socket that fails takes none."""
        ...


Reply = Sequence[Buffer | Scattered] | None
"""A whole response frame as buffers to be written in order (length prefix included); None: no response."""


def joined(parts: Sequence[Buffer | Scattered]) -> bytes:
    """All bytes of a reply. The scattered bytes have left then."""
    return b"".join(part if isinstance(part, BUFFERS) else b"".join(part.take(len(part))) for part in parts)


class Exchange(NamedTuple):
    """The dispatcher's result for one request frame.

    `reply` is the response, at once or later. While a reply that is not `pipelined` is pending, the connection
    dispatches no further request; pipelined ones (Produce) may overlap each other. Responses leave in the order of
    the requests. A `last` one ends the connection once everything is answered: the client must ask another node, or
    its later requests must not be taken before this one.
    """

    reply: asyncio.Future[Reply] | PromptFuture[Reply] | Reply
    pipelined: bool = False
    last: bool = False
    holds: int = 0
    """Bytes of memory that the decoded request takes until the reply, unless another account has them."""


class Burst(PromptFuture[Reply]):
    """Several request frames that came together, all of them pipelined. The result is the responses to all of them, in
    their order. A `last` one ends the connection, and memory is held, as in `Exchange`."""

    __slots__ = ("bytes_taken", "holds", "last", "requests")

    def __init__(self, requests: int, bytes_taken: int) -> None:
        super().__init__()
        self.requests = requests
        self.bytes_taken = bytes_taken
        """Bytes of the frames, their length prefixes included."""
        self.last = False
        self.holds = 0


class LastReply(list[Buffer | Scattered]):
    """A response that turns out to be the last of its connection: later requests of the client are not taken.
    Only for an exchange that is not pipelined, after which no request was taken yet."""


def always(size_bytes: int) -> bool:
    """Grants any amount of memory."""
    return True


OWN_FRAME_BYTES_MIN = 4 * 1024 * 1024
"""Frames of more bytes have memory of their own, which is not used again."""


class Dispatcher(Protocol):
    """Turns request frames into responses; handed to the server by the node."""

    def dispatch_burst(
        self,
        frames: memoryview,
        start: int,
        stop: int,
        requests_max: int,
        frame_bytes_max: int,
        session: Session,
    ) -> Burst | None:
        """Take those requests that are cheaper together, out of the whole frames at the front of
        `frames[start:stop]`, length prefixes included, up to `requests_max` and none of more than
        `frame_bytes_max`; None: there is none, and the first frame is for `dispatch`. `frames` is only valid
        during the call, and it raises as `dispatch` does. All requests belong to `session`."""
        ...

    def dispatch(
        self, frame: memoryview, session: Session, may_hold: Callable[[int], bool] = always
    ) -> Exchange | None:
        """`frame` (without its length prefix) is only valid during the call; one of more than `OWN_FRAME_BYTES_MIN` has
        memory of its own, and is valid as long as somebody holds a view of it. Before the decoding of a request
        that takes much memory, `may_hold` is asked for that many bytes. None: they were refused, nothing was
        done, and the frame is to be dispatched again later. Raises a `MainstemError` when the connection must
        be closed (the error's message goes to the log)."""
        ...

    def has_room(self, light: bool = False) -> bool:
        """Whether to dispatch requests that bring batches now; `light`: those of a tenant that brings little, which is
        let past the others."""
        ...

    def shared(self) -> bool:
        """Whether several tenants bring batches, or some connections far more than others, so that they take turns
        (`Session.sharer`)."""
        ...

    def brings_batches(self, frames: memoryview, start: int, stop: int) -> bool:
        """Whether `frames[start:stop]` begins with a request, length prefix included, that must wait while
        there is no room."""
        ...

    def tell_of_room(self, told: Callable[[], object]) -> None:
        """Call back, once and never at once, when there is room."""
        ...

    def disconnected(self, session: Session) -> None:
        """The peer is gone or about to be: its reads may be given up (their replies are cancelled). May be
        called more than once."""
        ...
