"""The errors that the kernel reports about bytes it was given."""

from __future__ import annotations

from mainstem.errors import MainstemError


class KernelError(MainstemError):
    """Base of every error of this room."""


class MalformedBody(KernelError):
    """A request body whose lengths and counts contradict the bytes that are there."""


class MalformedProduce(MalformedBody):
    """A Produce body that is no message: the connection that sent it cannot be understood any further."""


class ManyTopics(MalformedProduce):
    """A Produce body of more topics than are scanned at once."""


class MalformedFetch(MalformedBody):
    """A Fetch body that is no message: the connection that sent it cannot be understood any further."""


class MalformedImage(KernelError):
    """Saved state that cannot be what was saved."""


class KernelUnavailable(KernelError):
    """The kernel that was asked for by name is not there."""
