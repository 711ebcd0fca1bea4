"""The console's errors."""

from __future__ import annotations

from mainstem.errors import MainstemError


class ConsoleError(MainstemError):
    """Base of the console's errors."""


class ListenFailed(ConsoleError):
    """The HTTP address cannot be listened on; the message names it and the reason."""


class TokenUnusable(ConsoleError):
    """The file of the node's token cannot be read or made; the message names it and the reason."""
