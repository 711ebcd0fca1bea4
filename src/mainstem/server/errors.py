"""The server's errors, by whose fault they are.

This node's or the operator's: `ListenError`. The peer's: `BadFrame` and `TruncatedFrame`; both end in a closed
connection and one line in the log.
"""

from __future__ import annotations

from mainstem.errors import MainstemError


class ServerError(MainstemError):
    """Base of every error of this room."""


class ListenError(ServerError):
    """A listener that cannot be opened; the message names the address and the reason."""


class BadFrame(ServerError):
    """A length prefix that no request can have."""


class TruncatedFrame(ServerError):
    """The peer ended the stream inside a frame."""
