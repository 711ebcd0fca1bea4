"""The errors of calls between nodes.

Faults of the peer's bytes (`ProtocolViolation`), of the connection (`ConnectionLost`, `DeadlineExceeded`) and
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


class IdentityRefused(RpcError):
    """The two ends must not talk, because of the identity of one of them. The connection is closed; another
    attempt helps only after an operator has changed a configuration. Subclasses keep their class across the
    wire."""

    kind: ClassVar[str] = ""
    by_peer = False
    """The other end refused; this message came from there."""


class OtherCluster(IdentityRefused):
    """The peer belongs to another cluster."""

    kind = "other cluster"


class DuplicateNode(IdentityRefused):
    """Two nodes with different write directories claim one node id."""

    kind = "duplicate node"


class OwnAddress(IdentityRefused):
    """The address of a peer leads back to the node itself."""

    kind = "own address"


class UnexpectedNode(IdentityRefused):
    """The address belongs to another node than the one looked for."""

    kind = "unexpected node"


class IdentityMissing(IdentityRefused):
    """The peer does not say which node it is, where that is required."""

    kind = "identity missing"


class CertificateMismatch(IdentityRefused):
    """The peer's certificate is not that of the node it claims to be."""

    kind = "certificate mismatch"


class ConnectionLost(RpcError):
    """There is no connection, or it was lost before the answer came. Whether the call took effect is
    unknown."""


class TlsRefused(ConnectionLost):
    """There is no connection, because one end does not accept the other's certificate, or only one end speaks
    TLS."""


class DeadlineExceeded(RpcError):
    """The answer did not come in time. Whether the call took effect is unknown."""


class Overloaded(RpcError):
    """The peer holds as many requests of this connection as it may. Nothing was done; try again."""


class CallFailed(RpcError):
    """The callee failed in a way its method does not declare; the message is what it logged."""


class NotServed(CallFailed):
    """The callee has no such method: its version does not know it, or the node is still starting."""


class Refused(RpcError):
    """Base of the refusals a method declares (`Method.refusals`): they keep their class across the wire.

    The `kind` of a subclass names it there."""

    kind: ClassVar[str] = ""
