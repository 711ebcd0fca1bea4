"""`mainstem` that reads a damaged log of consumer groups again after half a second each time, not after ever longer.

How long it waits is told by a simulated clock (`tests/broker/consumer_groups/test_lost_offsets.py`)."""

from __future__ import annotations

from mainstem.broker.machines import runtime

if __name__ == "__main__":
    from mainstem.cli.main import main

    runtime.RELOAD_PAUSE_SECONDS_MAX = runtime.RELOAD_PAUSE_SECONDS
    main()
