"""`mainstem` that waits less. It reads a damaged log of consumer groups again after half a second each time, not after
ever longer; and a splitter that has not been heard of for five seconds has lost its lease, not after fifteen.

How long it waits is told by simulated clocks (`tests/broker/consumer_groups/test_lost_offsets.py`,
`tests/storage/split/test_split_service.py`)."""

from __future__ import annotations

from mainstem.broker.machines import runtime
from mainstem.storage.split import split_lease

HASTY_NODE = "tests.end_to_end.hasty_node"
"""For `Serving.program`."""
LEASE_SECONDS = 5.0
"""A splitter that lives renews it three times in that, also on a machine that is busy with other tests."""

if __name__ == "__main__":
    from mainstem.cli.main import main

    runtime.RELOAD_PAUSE_SECONDS_MAX = runtime.RELOAD_PAUSE_SECONDS
    split_lease.LEASE_SECONDS = LEASE_SECONDS
    main()
