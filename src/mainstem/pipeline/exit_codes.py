"""The exit codes of a splitter process."""

from __future__ import annotations

EXIT_DONE = 0
"""All is split (`--once`), or the splitter was asked to stop."""
EXIT_FAILED = 1
EXIT_LEASE_HELD = 3
"""Another splitter holds the lease, or took it."""
EXIT_YIELDED = 4
"""The splitter gave the lease to another one that waited for it."""
