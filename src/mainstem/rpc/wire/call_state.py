"""The two ends of a connection as state machines without I/O: bytes and calls in, bytes and events out.

`CallerConnection` numbers its calls and matches answers to them; `CalleeConnection` turns frames into
requests. Both open with a hello and refuse everything before it. `asyncio` and blocking drivers share them.

A stream has a window of `STREAM_WINDOW_ITEMS`: the callee sends no more elements than the caller has taken
plus the window, so a slow consumer holds back its own stream, not the connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from mainstem.model import Buffer
from mainstem.rpc.errors import (
    CallFailed,
    DeadlineExceeded,
    IdentityRefused,
    NotServed,
    Overloaded,
    ProtocolViolation,
    Refused,
    RpcError,
    VersionMismatch,
)
from mainstem.rpc.wire.frames import (
    EMPTY_BODY,
    HELLO_BYTES_MAX,
    Frame,
    FrameDecoder,
    FrameKind,
    RpcErrorCode,
    bare_reply,
    encode,
)
from mainstem.rpc.wire.hello import MAGIC, TELLS_SINCE_VERSION, Hello, refusal
from mainstem.rpc.wire.identity import NODE
from mainstem.rpc.wire.method import DONE, Failure, Method, Nothing, Reply, decoded
from mainstem.rpc.wire.tls import certificate_refusal

STREAM_WINDOW_ITEMS = 4
"""Elements of about 1 MiB keep a link busy while one is processed; four bound what a caller holds."""

REQUEST_ID_MAX = 0xFFFFFFFF


_HELLO, _REQUEST, _REPLY, _ITEM, _END, _ERROR, _CANCEL, _CREDIT, _TELL = map(int, FrameKind)

_encode_message = msgspec.msgpack.Encoder().encode


class _End:
    """The hello, the decoder and the frame bounds, which both ends share."""

    _takes: frozenset[int]
    """The kinds of frames that the peer may send after its hello."""
    _peer_is: str

    def __init__(self, hello: Hello | None = None) -> None:
        self.peer: Hello | None = None
        self.version = 0
        """The version spoken; 0 until the peer's hello arrived."""
        self.certificate_names: frozenset[str] = frozenset()
        """The names of the peer's certificate that have a meaning here (`tls.names_in`)."""
        self.where = "the other end"
        """The peer's address, for messages; the driver sets it."""
        self._hello = hello or Hello()
        self._decoder = FrameDecoder(HELLO_BYTES_MAX)
        self._frame_bytes_max = HELLO_BYTES_MAX
        """The largest frame that the peer accepts, as far as is known."""

    @property
    def as_node(self) -> bool:
        """Whether this end speaks for a node."""
        return self._hello.node is not None

    @property
    def tells(self) -> bool:
        """Whether both ends know requests that are not answered."""
        return self.version >= TELLS_SINCE_VERSION

    def hello(self) -> list[Buffer]:
        """The bytes to send first."""
        return encode(FrameKind.HELLO, 0, body=msgspec.msgpack.encode(self._hello))

    def writable(self) -> memoryview:
        """The buffer for the next bytes from the connection; the driver then passes their count to `received`."""
        return self._decoder.writable()

    def farewell(self, error: RpcError) -> list[Buffer]:
        """The bytes to send before the connection is closed for this reason; none, unless the peer can
        understand the reason and does not know it yet."""
        if isinstance(error, VersionMismatch):
            return _error_frame(0, RpcErrorCode.VERSION, str(error))
        if isinstance(error, IdentityRefused) and not error.by_peer:
            return _error_frame(0, RpcErrorCode.IDENTITY, str(error), error.kind)
        return []

    def _frames(self, count: int) -> Iterator[Frame]:
        decoder, takes = self._decoder, self._takes
        decoder.received(count)
        while (frame := decoder.next_frame()) is not None:
            if frame.kind == _ERROR and frame.request_id == 0:
                raise _parting(frame, self.where)
            if self.peer is None:
                self._meet(frame)
            elif frame.kind in takes:
                yield frame
            elif frame.kind == _HELLO:
                raise ProtocolViolation("a second hello")
            else:
                raise ProtocolViolation(f"frame kind {frame.kind} from the {self._peer_is} end")

    def _meet(self, frame: Frame) -> None:
        if frame.kind != FrameKind.HELLO:
            raise ProtocolViolation(f"frame kind {frame.kind} before the hello")
        try:
            peer = decoded(_hello_decoder, frame.body)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"unreadable hello: {error}") from error
        if peer.magic != MAGIC or peer.frame_bytes_max < HELLO_BYTES_MAX:
            raise ProtocolViolation(f"not a peer of ours: {peer.magic!r}, frames up to {peer.frame_bytes_max}")
        if (peer.role == NODE) != (peer.node is not None):
            raise ProtocolViolation(f"a hello of role {peer.role!r} {'with' if peer.node else 'without'} a node id")
        own = self._hello
        version = min(peer.newest, own.newest)
        if version < max(peer.oldest, own.oldest):
            raise VersionMismatch(
                f"{peer.name or 'the peer'} speaks protocol versions {peer.oldest} to {peer.newest}, "
                f"this node {own.oldest} to {own.newest}"
            )
        refused = refusal(own, peer, self.where) or certificate_refusal(self.certificate_names, peer.node, self.where)
        if refused is not None:
            raise refused
        self.peer, self.version = peer, version
        self._decoder.frame_bytes_max = own.frame_bytes_max
        self._frame_bytes_max = peer.frame_bytes_max


def _error_frame(request_id: int, code: RpcErrorCode, message: str, kind: str = "") -> list[Buffer]:
    body = msgspec.msgpack.encode(Failure(message[:FAILURE_CHARACTERS_MAX], kind))
    return encode(FrameKind.ERROR, request_id, code=code, body=body)


def _parting(frame: Frame, where: str) -> RpcError:
    """The reason the peer gives for closing the connection."""
    failure = _failure(frame)
    text = f"refused by {where}: {failure.message}"
    if frame.code == RpcErrorCode.VERSION:
        return VersionMismatch(text)
    if frame.code == RpcErrorCode.IDENTITY:
        return _identity_refusal(failure, text)
    return ProtocolViolation(f"error {frame.code} of the connection: {failure.message}")


def _identity_refusal(failure: Failure, text: str) -> IdentityRefused:
    for known in IdentityRefused.__subclasses__():
        if known.kind == failure.kind:
            break
    else:
        known = IdentityRefused
    error = known(text)
    error.by_peer = True
    return error


_hello_decoder = msgspec.msgpack.Decoder(Hello)
_failure_decoder = msgspec.msgpack.Decoder(Failure)


def _failure(frame: Frame) -> Failure:
    try:
        return decoded(_failure_decoder, frame.body)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"unreadable error: {error}") from error


# --- the calling end ------------------------------------------------------------------------------------


class CallAnswer(NamedTuple):
    """An arrival for one call: a reply (of a stream: one element), its end, or its error."""

    request_id: int
    reply: Reply[Any] | None = None
    error: RpcError | None = None
    ends: bool = True
    """Nothing more comes for this call."""


@dataclass(slots=True)
class _Call:
    method: Method[Any, Any]
    window: int = STREAM_WINDOW_ITEMS
    cancelled: bool = False


class CallerConnection(_End):
    """The calling end: numbers calls, and matches answers to them."""

    _takes = frozenset({_REPLY, _ITEM, _END, _ERROR})
    _peer_is = "called"

    def __init__(self, hello: Hello | None = None) -> None:
        super().__init__(hello)
        self._calls: dict[int, _Call] = {}
        self._next_id = 1

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    def call(
        self,
        method: Method[Any, Any],
        request: msgspec.Struct,
        attachment: Sequence[Buffer] = (),
        *,
        time_left_ms: int = 0,
    ) -> tuple[int, list[Buffer]]:
        """Start a call; returns its id and the bytes to send. Only after the peer's hello.

        Raises ValueError when the message is larger than the peer accepts."""
        assert self.peer is not None, "the hello comes first"
        request_id = self._next_id
        buffers = encode(
            _REQUEST,
            request_id,
            code=method.number,
            time_left_ms=time_left_ms,
            body=_encode_message(request),
            attachment=attachment,
            frame_bytes_max=self._frame_bytes_max,
        )
        self._calls[request_id] = _Call(method)
        self._next_id = request_id % REQUEST_ID_MAX + 1
        assert self._next_id not in self._calls, "request ids wrapped around onto a call still in flight"
        return request_id, buffers

    def tell(
        self, method: Method[Any, Any], request: msgspec.Struct, attachment: Sequence[Buffer] = ()
    ) -> list[Buffer]:
        """A request that is not answered, as the bytes to send; only where `_End.tells`.

        Raises ValueError when the message is larger than the peer accepts."""
        assert self.tells, "the other end expects to answer every request"
        return encode(
            _TELL,
            0,
            code=method.number,
            body=_encode_message(request),
            attachment=attachment,
            frame_bytes_max=self._frame_bytes_max,
        )

    def take(self, request_id: int) -> list[Buffer]:
        """The consumer took one element of a stream; returns the bytes to send, so that one more may come."""
        call = self._calls.get(request_id)
        if call is None or call.cancelled:
            return []
        call.window += 1
        return encode(_CREDIT, request_id)

    def cancel(self, request_id: int) -> list[Buffer]:
        """The caller no longer wants the answer; returns the bytes to send. Answers on their way are dropped
        silently."""
        call = self._calls.get(request_id)
        if call is None or call.cancelled:
            return []
        call.cancelled = True
        return encode(_CANCEL, request_id)

    def receive(self, data: Buffer) -> list[CallAnswer]:
        """As `received`, for bytes that are not in `writable` yet."""
        return [answer for count in self._decoder.fill(data) for answer in self.received(count)]

    def received(self, count: int) -> list[CallAnswer]:
        """The answers in the bytes that were written to `writable`. Raises `ProtocolViolation`,
        `VersionMismatch` or `IdentityRefused`: close the connection."""
        answers = [self._answer(frame) for frame in self._frames(count)]
        return [answer for answer in answers if answer is not None]

    def _answer(self, frame: Frame) -> CallAnswer | None:
        kind, request_id = frame.kind, frame.request_id
        call = self._calls.get(request_id)
        if call is None:
            raise ProtocolViolation(f"an answer to request {request_id}, which was never made")
        method = call.method
        if kind == _ITEM:
            if not method.streams or call.window == 0:
                raise ProtocolViolation(f"{method.name}: a stream element beyond the window")
            call.window -= 1
        else:
            del self._calls[request_id]
            if kind != _ERROR and (kind == _END) != method.streams:
                raise ProtocolViolation(f"{method.name}: answered by frame kind {kind}")
        if call.cancelled:
            return None
        if kind == _END:
            return CallAnswer(request_id)
        if kind == _ERROR:
            return CallAnswer(request_id, error=_error(method, frame))
        if kind == _REPLY and method.reply is Nothing and frame.body == EMPTY_BODY and not frame.attachment:
            return CallAnswer(request_id, DONE)
        try:
            message = method.decode_reply(frame.body)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"{method.name}: unreadable reply: {error}") from error
        return CallAnswer(request_id, Reply(message, frame.attachment), None, kind == _REPLY)


def _error(method: Method[Any, Any], frame: Frame) -> RpcError:
    failure = _failure(frame)
    text = f"{method.name}: {failure.message}"
    if frame.code == RpcErrorCode.REFUSED:
        for refusal in method.refusals:
            if refusal.kind == failure.kind:
                return refusal(failure.message)
    if frame.code == RpcErrorCode.IDENTITY:
        return _identity_refusal(failure, text)
    if frame.code == RpcErrorCode.DEADLINE:
        return DeadlineExceeded(text)
    if frame.code == RpcErrorCode.OVERLOADED:
        return Overloaded(text)
    if frame.code == RpcErrorCode.UNKNOWN_METHOD:
        return NotServed(text)
    return CallFailed(text)


# --- the called end -------------------------------------------------------------------------------------


class CalleeConnection(_End):
    """The called end: gives the frames of requests, told ones, cancels and credits. The driver keeps the open requests,
    and answers each once."""

    _takes = frozenset({_REQUEST, _CANCEL, _CREDIT, _TELL})
    _peer_is = "calling"

    def receive(self, data: Buffer) -> Iterator[Frame]:
        """As `received`, for bytes that are not in `writable` yet."""
        for count in self._decoder.fill(data):
            yield from self.received(count)

    def received(self, count: int) -> Iterator[Frame]:
        """The requests, told ones, cancels and credits in the bytes that were written to `writable`; exhaust the
        iterator. Raises `ProtocolViolation`, `VersionMismatch` or `IdentityRefused`: close the connection."""
        return self._frames(count)

    def reply(self, request_id: int, reply: Reply[Any], *, streams: bool) -> list[Buffer]:
        """The answer, or one element of it. Raises ValueError when it is larger than the peer accepts."""
        if reply is DONE and not streams:
            return bare_reply(request_id)
        return encode(
            _ITEM if streams else _REPLY,
            request_id,
            body=_encode_message(reply.message),
            attachment=reply.buffers,
            frame_bytes_max=self._frame_bytes_max,
        )

    def end(self, request_id: int) -> list[Buffer]:
        return encode(_END, request_id)

    def fail(self, request_id: int, code: RpcErrorCode, message: str, kind: str = "") -> list[Buffer]:
        return _error_frame(request_id, code, message, kind)

    def refuse(self, request_id: int, refusal: Refused) -> list[Buffer]:
        return self.fail(request_id, RpcErrorCode.REFUSED, str(refusal), refusal.kind)


FAILURE_CHARACTERS_MAX = 900
"""A message of so many characters fits the smallest frame a peer may accept, even at four bytes per
character."""
