"""Methods and their messages: each declared once, used by both ends.

A message is a msgspec Struct. Decoding is strict about types and lenient about unknown fields, and a field
added later has a default, so that nodes of neighbouring versions understand each other; what cannot be
bridged that way raises `PROTOCOL_VERSION`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from mainstem.model import Buffer
from mainstem.rpc.errors import Refused
from mainstem.rpc.frames import FRAME_BYTES_MAX
from mainstem.rpc.identity import ANY_NODE, CLIENT, Identity

PROTOCOL_VERSION = 1
PROTOCOL_VERSION_OLDEST = 1
MAGIC = "mainstem-rpc"

RequestT = TypeVar("RequestT", bound=msgspec.Struct)
ReplyT = TypeVar("ReplyT", bound=msgspec.Struct)
T = TypeVar("T")


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame each end sends. The highest version both know is spoken from then on."""

    magic: str = MAGIC
    oldest: int = PROTOCOL_VERSION_OLDEST
    newest: int = PROTOCOL_VERSION
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Larger frames are not accepted by the sender of this hello."""
    name: str = ""
    """Who this is, for logs."""
    role: str = CLIENT
    """`node`, with an identity, or `client`: a splitter, a command."""
    node: Identity | None = None
    seeks: int = ANY_NODE
    """The id of the node the caller believes to be at this address."""
    reached_at: str = ""
    """HOST:PORT at which other nodes reach this one, for those who do not know it yet."""


class Failure(msgspec.Struct, frozen=True):
    """The body of an ERROR frame. `kind` names a declared refusal, else it is empty."""

    message: str
    kind: str = ""


class Nothing(msgspec.Struct, frozen=True):
    """A request or a reply without content."""


class Reply(NamedTuple, Generic[ReplyT]):
    """What a call answers, or one element of a stream: a message and raw bytes."""

    message: ReplyT
    attachment: Buffer | Sequence[Buffer] = b""

    @property
    def buffers(self) -> Sequence[Buffer]:
        """The attachment as buffers to be written in order."""
        attachment = self.attachment
        return [attachment] if isinstance(attachment, (bytes, bytearray, memoryview)) else attachment


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ReplyT]):
    """One remote operation. `number` is its name on the wire and is never reused."""

    number: int
    name: str
    request: type[RequestT]
    reply: type[ReplyT]
    refusals: tuple[type[Refused], ...] = ()
    """Refusals that reach the caller as their own class."""
    streams: bool = False
    """The answer is a stream of any number of replies."""
    nodes_only: bool = False
    """Only a node of the same cluster may call it."""
    _request_decoder: msgspec.msgpack.Decoder[Any] = field(init=False, repr=False, compare=False)
    _reply_decoder: msgspec.msgpack.Decoder[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_request_decoder", msgspec.msgpack.Decoder(self.request))
        object.__setattr__(self, "_reply_decoder", msgspec.msgpack.Decoder(self.reply))

    def decode_request(self, body: bytes) -> RequestT:
        """Raises `msgspec.DecodeError` (ValidationError included)."""
        message: RequestT = decoded(self._request_decoder, body)
        return message

    def decode_reply(self, body: bytes) -> ReplyT:
        """Raises `msgspec.DecodeError` (ValidationError included)."""
        message: ReplyT = decoded(self._reply_decoder, body)
        return message


def decoded(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    """Raises `msgspec.DecodeError`, for text that is no UTF-8 as well, which msgspec has another error for."""
    try:
        return decoder.decode(body)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"text that is no UTF-8: {error}") from error
