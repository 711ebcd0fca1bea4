"""The errors that a command reports in one line: what went wrong, where, and what to do."""

from __future__ import annotations

from typing import ClassVar

from mainstem.errors import MainstemError


class CommandLineError(MainstemError):
    """Base of the command line's errors."""

    exit_code: ClassVar[int] = 1
    """The exit code of the command."""


class NodeUnreachable(CommandLineError):
    """Nothing answers at the address given."""


class RequestRefused(CommandLineError):
    """The node answered with an error."""


class SettingsUnusable(CommandLineError):
    """The settings that a client should connect with cannot be used; the message names the file or the setting, never a
    secret."""

    exit_code: ClassVar[int] = 2


class NotAdmitted(CommandLineError):
    """The node and this client do not trust each other: its certificate, our certificate, our name or password."""


class NodeDied(CommandLineError):
    """The node in this process cannot go on."""


class DiskFailed(CommandLineError):
    """Disk 1 of the node in this process cannot be written, now or at its start: start it again when that is put right.
    Starting it before that does no harm."""

    exit_code: ClassVar[int] = 3


class CommandFailed(CommandLineError):
    """The command ran and did not do all it was asked to; the message says how far it came."""
