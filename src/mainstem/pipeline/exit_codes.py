"""What a splitter process says by its exit code."""

from __future__ import annotations

EXIT_DONE = 0
"""All is split (`--once`), or it was asked to stop."""
EXIT_FAILED = 1
EXIT_LEASE_HELD = 3
"""Another splitter holds the lease, or took it."""
EXIT_YIELDED = 4
"""Gave the lease to another splitter that waited for it."""
