"""How long tests wait for what has to come."""

from __future__ import annotations

PATIENCE_SECONDS = 300.0
"""Before a test says that something hangs. No test that passes waits that long, however slow the machine. What has to
come within some time by contract is told by a simulated clock, never by this."""
