"""`mainstem` that waits less:

- it reads a damaged log of consumer groups again after half a second each time, not after ever longer;
- a splitter that has not been heard of for five seconds has lost its lease, not after fifteen;
- nodes that do not answer are waited for four seconds, not ten: by a new node that asks who votes, and by replicas that
  lost their power and ask who has the longest log.

That they wait, and what for, is told by simulated clocks (`tests/storage/split/test_split_service.py`,
`tests/broker/consumer_groups/coordinators/test_lost_offsets.py`, `tests/nameserver/`, `tests/simulation/`)."""

from __future__ import annotations

from mainstem.broker.machines import runtime
from mainstem.nameserver.cluster import bootstrap
from mainstem.storage.cluster import rejoining
from mainstem.storage.split import split_lease

HASTY_NODE = "tests.end_to_end.odd_nodes.hasty_node"
"""For `Serving.program`."""
LEASE_SECONDS = 5.0
"""A splitter that lives renews it three times in that, also on a machine that is busy with other tests."""
ANSWER_SECONDS = 4.0


def hurry() -> None:
    runtime.RELOAD_PAUSE_SECONDS_MAX = runtime.RELOAD_PAUSE_SECONDS
    split_lease.LEASE_SECONDS = LEASE_SECONDS
    bootstrap.INTRODUCE_SECONDS_MAX = ANSWER_SECONDS
    rejoining.MISSED_SECONDS_MAX = ANSWER_SECONDS


if __name__ == "__main__":
    from mainstem.cli.main import main

    hurry()
    main()
