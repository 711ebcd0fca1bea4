"""The base of every error Mainstem raises on purpose.

Each room derives one class of its own from `MainstemError` and its errors from that class, so that a caller
can catch one room's errors without knowing the others. A message names the fault, its place, and the
remedy.
"""

from __future__ import annotations


class MainstemError(Exception):
    """Base of all errors that Mainstem raises on purpose."""


class ConfigError(MainstemError):
    """A configuration value that cannot be used; the message names the key, the value and what is allowed."""


class LeaderMissing(MainstemError):
    """Another node leads what the call would change, or no node does now. The caller may try again, there or
    later."""


class StorageUnavailable(MainstemError):
    """A disk of this node failed during a change, or its part in a write group ended, and it is unknown whether the
    change was logged. The caller may try again, at the node that leads next."""

    groups: frozenset[int] = frozenset()
    """The write groups in which the change failed, while it was made in the others; empty: that is not known."""


class LeaderUntold(LeaderMissing):
    """A leader could not be told of a change in time: it may go on as if the change had not been made."""
