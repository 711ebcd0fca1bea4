"""The headers in front of request and response bodies, and the frame around a response.

A request header is read before anything else of a request is known to make sense: key, version, correlation
id and client id stand at the same place in header versions 1 and 2, so they are readable for APIs and
versions that are not supported, and an error can be answered. Version 2 adds tagged fields, which are
skipped; it belongs to flexible versions of an API. (Version 0, without a client id, was only ever used by
ControlledShutdown between brokers.)

Response headers are version 0 (the correlation id) or, for flexible versions, 1 (tagged fields after it).
ApiVersions is the exception: its responses always carry version 0, since a client that reads one does not
know yet what the node speaks. For the same reason an ApiVersions request of a version that is too new is
answered in version 0, with UNSUPPORTED_VERSION: see `is_unsupported_api_versions`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mainstem.model import Buffer
from mainstem.protocol.errors import MalformedMessage
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.varint import skip_tagged_fields

API_VERSIONS_KEY = 18

_FIXED = struct.Struct(">hhih")  # api key, api version, correlation id, length of the client id
_FRAME = struct.Struct(">ii")  # length, correlation id
_FRAME_LENGTH_BYTES = 4
_NO_TAGS = b"\x00"
_FLEXIBLE_FROM = {key: api.flexible_from for key, api in API_MESSAGES.items()}


@dataclass(slots=True)
class RequestHeader:
    """A request's API, version, correlation id and client. `client_id` is null for clients that have no name.
    The object must not be changed, but is not frozen: there is one per request, and a frozen one takes twice
    as long to make."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def request_header_version(api_key: int, api_version: int) -> int:
    """2 for flexible versions of known APIs, else 1. Versions newer than any known are flexible too."""
    flexible_from = _FLEXIBLE_FROM.get(api_key)
    return 1 if flexible_from is None or api_version < flexible_from else 2


def response_header_version(api_key: int, api_version: int) -> int:
    """1 for flexible versions of known APIs except ApiVersions, else 0."""
    if api_key == API_VERSIONS_KEY:
        return 0
    return request_header_version(api_key, api_version) - 1


def parse_header(frame: memoryview | bytes) -> tuple[RequestHeader, int]:
    """The header of a request and the position of its body in `frame` (a request without its length).

    Raises `MalformedMessage`. Whether the API and version are supported is for the caller to decide.
    """
    end = len(frame)
    if end < _FIXED.size:
        raise MalformedMessage(f"a request of {end} bytes has no room for its header", 0)
    api_key, api_version, correlation_id, client_id_size = _FIXED.unpack_from(frame)
    position = _FIXED.size
    client_id = None
    if client_id_size >= 0:
        stop = position + client_id_size
        if stop > end:
            raise MalformedMessage(f"the client id claims {client_id_size} bytes", position)
        try:
            client_id = str(frame[position:stop], "utf-8")
        except UnicodeDecodeError:
            raise MalformedMessage("the client id is not UTF-8", position) from None
        position = stop
    elif client_id_size != -1:
        raise MalformedMessage(f"the client id has length {client_id_size}", position - 2)
    if request_header_version(api_key, api_version) == 1:
        return RequestHeader(api_key, api_version, correlation_id, client_id), position
    if position < end and frame[position] == 0:  # no tagged fields, as always
        position += 1
    else:
        try:
            position = skip_tagged_fields(frame, position, end)
        except IndexError:
            raise MalformedMessage("the request header ends early", position) from None
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def is_unsupported_api_versions(header: RequestHeader) -> bool:
    """Whether this is an ApiVersions request to be answered in version 0 with UNSUPPORTED_VERSION; its
    body must not be read."""
    api = API_MESSAGES[API_VERSIONS_KEY]
    return header.api_key == API_VERSIONS_KEY and not api.version_min <= header.api_version <= api.version_max


def write_request_header(header: RequestHeader) -> bytes:
    """Encode a request header, for clients of this protocol. The client id is at most 32,767 bytes."""
    name = b"" if header.client_id is None else header.client_id.encode()
    size = -1 if header.client_id is None else len(name)
    fixed = _FIXED.pack(header.api_key, header.api_version, header.correlation_id, size)
    tags = _NO_TAGS if request_header_version(header.api_key, header.api_version) == 2 else b""
    return fixed + name + tags


def request_frame(header: RequestHeader, body: bytes) -> bytes:
    """A whole request with its length in front, for clients of this protocol."""
    head = write_request_header(header)
    return (len(head) + len(body)).to_bytes(_FRAME_LENGTH_BYTES, "big") + head + body


def response_frame(correlation_id: int, api_key: int, api_version: int, body_parts: list[Buffer]) -> list[Buffer]:
    """A whole response, its length in front, as buffers to be sent one after the other.

    `body_parts` come from `codec.write_parts`; large ones are not copied. The head is joined with the first
    part, so that a response without records is one buffer.
    """
    tags = _NO_TAGS if response_header_version(api_key, api_version) == 1 else b""
    size = _FRAME.size - _FRAME_LENGTH_BYTES + len(tags) + sum(map(len, body_parts))
    head = _FRAME.pack(size, correlation_id) + tags
    if body_parts and type(body_parts[0]) is bytes:  # the codec's own parts are small
        return [head + body_parts[0], *body_parts[1:]]
    return [head, *body_parts]


def parse_response_header(frame: memoryview | bytes, api_key: int, api_version: int) -> tuple[int, int]:
    """The correlation id of a response and the position of its body in `frame` (without its length), for
    clients of this protocol. Raises `MalformedMessage`."""
    if len(frame) < 4:
        raise MalformedMessage("a response has no room for its header", 0)
    correlation_id = int.from_bytes(frame[:4], "big", signed=True)
    if response_header_version(api_key, api_version) == 0:
        return correlation_id, 4
    try:
        return correlation_id, skip_tagged_fields(frame, 4, len(frame))
    except IndexError:
        raise MalformedMessage("the response header ends early", 4) from None
