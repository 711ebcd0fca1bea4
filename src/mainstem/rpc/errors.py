"""What a call between nodes reports.

Faults of the peer's bytes (`ProtocolViolation`), of the way there (`ConnectionLost`, `DeadlineExceeded`) and
of the callee (`CallFailed`, `Refused`) are different classes, because callers react differently: close,
retry, report.
"""

from __future__ import annotations

from typing import ClassVar

from mainstem.errors import MainstemError


class RpcError(MainstemError):
    """Base of the errors of calls between nodes."""


class ProtocolViolation(RpcError):
    """The peer sent bytes that the protocol does not allow. The connection is closed."""


class VersionMismatch(RpcError):
    """The two ends have no protocol version in common; the message names both ranges."""


class ConnectionLost(RpcError):
    """No connection, or it went away before the answer came. Whether the call took effect is unknown."""


class DeadlineExceeded(RpcError):
    """The answer did not come in time. Whether the call took effect is unknown."""


class Overloaded(RpcError):
    """The peer holds as many requests of this connection as it may. Nothing was done; try again."""


class CallFailed(RpcError):
    """The callee failed in a way its method does not declare; the message is what it logged."""


class Refused(RpcError):
    """Base of the refusals a method declares (`Method.refusals`): they keep their class across the wire.

    A subclass names itself in `kind`, which is what travels."""

    kind: ClassVar[str] = ""
