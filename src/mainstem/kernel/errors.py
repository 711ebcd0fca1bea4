"""What the kernel reports about bytes it was given."""

from __future__ import annotations

from mainstem.errors import MainstemError


class KernelError(MainstemError):
    """Base of every error of this room."""


class MalformedProduce(KernelError):
    """A Produce body that is no message: the connection that sent it cannot be understood any further."""


class MalformedFetch(KernelError):
    """A Fetch body that is no message: the connection that sent it cannot be understood any further."""


class MalformedImage(KernelError):
    """Saved state that cannot be what was saved."""


class KernelUnavailable(KernelError):
    """The kernel that was asked for by name is not there."""
