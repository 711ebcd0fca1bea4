"""The base of every error Mainstem raises on purpose.

Each room derives one class of its own from `MainstemError` and its errors from that class, so that a caller
can catch what one room reports without knowing the others. A message names what went wrong, where, and what
to do about it.
"""

from __future__ import annotations


class MainstemError(Exception):
    """Base of all errors that Mainstem raises on purpose."""


class ConfigError(MainstemError):
    """A configuration value that cannot be used; the message names the key, the value and what is allowed."""


class LeaderMissing(MainstemError):
    """What is to be changed is led by another node, or by nobody now. It may be tried again, there or later."""


class LeaderUntold(LeaderMissing):
    """A leader there is could not be told of a change in time: it may go on as if there were none."""
