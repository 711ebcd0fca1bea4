"""The responses of one connection, put in the order of its requests and cut into writes.

Each request has a place in the queue from its dispatch on; a response that is ready early waits there for those before
it. Responses whose turn has come become chunks for the transport: small buffers (headers, small batches) are joined,
others go together as they are, very large ones in pieces, so that a response of many batches costs neither a system
call per batch nor a copy of its bulk, and no single write holds the event loop for long. Scattered bytes can be written
past the transport.

`bytes_unsent` counts everything that is ready and not yet given to the transport, in order or not; `bytes_shared` its
part that other responses contain, too.
"""

from __future__ import annotations

from collections import deque

from mainstem.kernel import untrack
from mainstem.model import BUFFERS, Buffer, SharedBytes
from mainstem.ports import Reply, Scattered

CHUNK_BYTES_MAX = 128 * 1024
"""Bytes given to the transport at once: it may copy what the socket does not take, and sends that in one go later.
Half of it costs more system calls; more of it saves nothing."""

SMALL_BYTES = 4 * 1024
"""Buffers that are smaller on average are joined: to copy one costs less than to hand it on by itself."""


class ResponsePlace:
    """The place of one request, or of several that are answered together."""

    __slots__ = ("ready", "reply", "request_bytes", "requests")

    def __init__(self, request_bytes: int, requests: int) -> None:
        self.request_bytes = request_bytes
        """Bytes charged to the budget of requests until they are answered."""
        self.requests = requests
        self.ready = False
        self.reply: Reply = None


class ResponseQueue:
    __slots__ = ("_chunks", "_places", "bytes_shared", "bytes_unsent", "in_flight")

    def __init__(self) -> None:
        self._places: deque[ResponsePlace] = deque()
        self._chunks: deque[Buffer | Scattered] = deque()
        self.bytes_unsent = 0
        self.bytes_shared = 0
        self.in_flight = 0
        """Requests without a place in the outgoing chunks yet: unanswered, or answered out of turn."""
        for thing in (self, self._places, self._chunks):
            untrack(thing)  # each connection has them; replies hold no connection

    @property
    def sendable(self) -> bool:
        return bool(self._chunks)

    @property
    def idle(self) -> bool:
        return not self._places and not self._chunks

    @property
    def scattered(self) -> Scattered | None:
        """The next reply to leave, if it lies scattered. Tell `left` what of it was written."""
        if not self._chunks:
            return None
        first = self._chunks[0]
        return None if isinstance(first, BUFFERS) else first

    def left(self, size: int) -> None:
        """So many bytes of `scattered` have left."""
        self.bytes_unsent -= size
        if not len(self._chunks[0]):
            self._chunks.popleft()

    def expect(self, request_bytes: int, requests: int = 1) -> ResponsePlace:
        """A place at the end of the queue."""
        place = ResponsePlace(request_bytes, requests)
        self.in_flight += requests
        self._places.append(place)
        return place

    def take_only(self, place: ResponsePlace, reply: Reply) -> Buffer | None:
        """The response of a place, if it is one chunk and the only thing there is to write: it has left then."""
        places = self._places
        if reply is None or len(reply) != 1 or len(places) != 1 or self._chunks:
            return None
        only = reply[0]
        if len(only) > CHUNK_BYTES_MAX or not isinstance(only, BUFFERS):
            return None
        assert places[0] is place
        places.clear()
        self.in_flight = 0
        return only

    def answer(self, place: ResponsePlace, reply: Reply) -> None:
        """The response of a place is ready (None: there is none)."""
        place.ready = True
        place.reply = reply
        if reply is not None:
            self.bytes_unsent += sum(map(len, reply))
            # shared ones are rare, and a fetch may have thousands of parts
            if len(reply) > 1 and SharedBytes in set(map(type, reply)):
                self.bytes_shared += sum(len(part) for part in reply if type(part) is SharedBytes)
        places = self._places
        while places and places[0].ready:
            first = places.popleft()
            self.in_flight -= first.requests
            leaving = first.reply
            if leaving is not None:
                self._chunks.extend(leaving)

    def next_chunks(self) -> list[Buffer]:
        """The next bytes to write in one go: a piece of one very large buffer, or as many buffers as fit together.
        Empty when there is nothing."""
        chunks = self._chunks
        if not chunks:
            return []
        first = chunks[0]
        size = len(first)
        if not isinstance(first, BUFFERS):
            views = first.take(CHUNK_BYTES_MAX)
            self.left(size - len(first))
            return list(views)
        if size > CHUNK_BYTES_MAX:
            whole = memoryview(first)
            chunks[0] = whole[CHUNK_BYTES_MAX:]
            if self.bytes_shared and type(whole.obj) is SharedBytes:
                self.bytes_shared -= CHUNK_BYTES_MAX
            self.bytes_unsent -= CHUNK_BYTES_MAX
            return [whole[:CHUNK_BYTES_MAX]]
        take = chunks.popleft
        leaving: list[Buffer] = [first]
        take()
        while chunks:
            part = take()
            if size + len(part) > CHUNK_BYTES_MAX or not isinstance(part, BUFFERS):
                chunks.appendleft(part)
                break
            size += len(part)
            leaving.append(part)
        self.bytes_unsent -= size
        if self.bytes_shared:
            self.bytes_shared -= sum(len(part) for part in leaving if _is_shared(part))
        if len(leaving) > 1 and size < SMALL_BYTES * len(leaving):
            return [b"".join(leaving)]
        return leaving

    def abandon(self) -> None:
        """The connection is gone: let go of every response."""
        self._chunks.clear()
        self._places.clear()
        self.bytes_unsent = 0
        self.bytes_shared = 0
        self.in_flight = 0


def _is_shared(part: Buffer) -> bool:
    return type(part.obj if isinstance(part, memoryview) else part) is SharedBytes
