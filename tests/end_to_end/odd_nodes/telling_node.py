"""`mainstem` that waits less, as `hasty_node.py` does, and tells its object store every half a second that its cluster
lives, not every fifteen."""

from __future__ import annotations

from tests.end_to_end.odd_nodes.hasty_node import hurry

from mainstem.storage.remote.chain import owner_beats

TELLING_NODE = "tests.end_to_end.odd_nodes.telling_node"
"""For `Serving.program`."""


if __name__ == "__main__":
    from mainstem.cli.main import main

    hurry()
    owner_beats.BEAT_SECONDS = owner_beats.LOOK_SECONDS = 0.5
    main()
