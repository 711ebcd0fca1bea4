"""What a command reports in one line: what went wrong, where, and what to do."""

from __future__ import annotations

from mainstem.errors import MainstemError


class CommandLineError(MainstemError):
    """Base of the command line's errors; the command ends with exit code 1."""


class NodeUnreachable(CommandLineError):
    """Nothing answers at the address given."""


class RequestRefused(CommandLineError):
    """The node answered with an error."""


class NodeDied(CommandLineError):
    """The node in this process cannot go on."""


class CommandFailed(CommandLineError):
    """The command ran and did not do all it was asked to; the message says how far it came."""
