"""Methods and their messages: each is declared once, and both ends use the declaration.

A message is a msgspec Struct. Decoding is strict about types and lenient about unknown fields, and a field added
later has a default, so that nodes of neighbouring versions understand each other; a change that cannot be bridged
that way raises `PROTOCOL_VERSION` (`hello.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from mainstem.model import Buffer
from mainstem.rpc.errors import Refused

RequestT = TypeVar("RequestT", bound=msgspec.Struct)
ReplyT = TypeVar("ReplyT", bound=msgspec.Struct)
T = TypeVar("T")


class Failure(msgspec.Struct, frozen=True):
    """The body of an ERROR frame. `kind` names a declared refusal, else it is empty."""

    message: str
    kind: str = ""


class Nothing(msgspec.Struct, frozen=True):
    """A request or a reply without content."""


class Reply(NamedTuple, Generic[ReplyT]):
    """The answer to a call, or one element of a stream: a message and raw bytes."""

    message: ReplyT
    attachment: Buffer | Sequence[Buffer] = b""

    @property
    def buffers(self) -> Sequence[Buffer]:
        """The attachment as buffers to be written in order."""
        attachment = self.attachment
        if not isinstance(attachment, (bytes, bytearray, memoryview)):
            return attachment
        return [attachment] if attachment else ()


DONE: Reply[Nothing] = Reply(Nothing())
"""The reply of a method that says no more than that it was done."""


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ReplyT]):
    """One remote operation. `number` is its name on the wire and is never reused."""

    number: int
    name: str
    request: type[RequestT]
    reply: type[ReplyT]
    refusals: tuple[type[Refused], ...] = ()
    """Refusals that keep their class on the way to the caller."""
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
    """Raises `msgspec.DecodeError`, also for text that is not UTF-8 and for arrays within arrays a thousand deep, for
    which msgspec has other errors."""
    try:
        return decoder.decode(body)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"text that is no UTF-8: {error}") from error
    except RecursionError:
        raise msgspec.DecodeError("values that are nested too deep") from None
