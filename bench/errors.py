"""Failures of a measurement, as opposed to a slow result."""

from __future__ import annotations


class BenchError(Exception):
    """The measurement could not be made; the message says which and why."""


class LoadFailed(BenchError):
    """The load generator stopped, or the system answered with errors: the figure would mean nothing."""


class SystemFailed(BenchError):
    """A system did not start, or ended while it was measured."""
