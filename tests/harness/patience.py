"""How long tests wait for what has to come."""

from __future__ import annotations

PATIENCE_SECONDS = 300.0
"""Before a test says that something hangs. No test that passes waits that long, however slow the machine. A time limit
that a contract sets is told by a simulated clock, never by this."""
PATIENCE_MS = int(PATIENCE_SECONDS * 1000)
"""As clients are configured: theirs of seconds by default make a slow machine look like a node that lost something."""
