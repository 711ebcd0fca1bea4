"""`mainstem` as `hasty_node` has it, which besides looks twice a second for what is to be deleted from its remote tier.

It leaves readers and executors as long as ever to finish with those objects, unless the file exists that
`GRACE_VARIABLE` names: then they have finished.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.end_to_end.odd_nodes.hasty_node import hurry

TIDY_NODE = "tests.end_to_end.odd_nodes.tidy_node"
"""For `Serving.program`."""
GRACE_VARIABLE = "TEST_REMOTE_GRACE_IS_OVER"
LOOK_SECONDS = 0.5


def tidy() -> None:
    from mainstem.storage.remote import remote_upkeep

    look, over = remote_upkeep.RemoteUpkeep.look, Path(os.environ[GRACE_VARIABLE])

    async def look_on(self: remote_upkeep.RemoteUpkeep, group: int) -> None:
        if over.exists():  # noqa: ASYNC240  # a look that takes microseconds
            remote_upkeep.READ_MS_MAX = remote_upkeep.UPLOAD_MS_MAX = 0
        await look(self, group)

    remote_upkeep.LOOK_SECONDS = LOOK_SECONDS
    remote_upkeep.RemoteUpkeep.look = look_on  # type: ignore[method-assign]


if __name__ == "__main__":
    from mainstem.cli.main import main

    hurry()
    tidy()
    main()
