"""`mainstem` with a bug: its write loop dies with the first turn in which the file exists that `BUG_VARIABLE` names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainstem.storage.write_groups.write_group import WriteGroup

BUG_VARIABLE = "TEST_WRITE_LOOP_BUG"


def plant() -> None:
    from mainstem.storage.write_groups.write_loop import WriteLoop

    turn, bug = WriteLoop._turn, Path(os.environ[BUG_VARIABLE])

    async def buggy(self: WriteLoop, due: list[WriteGroup]) -> bool:
        if bug.exists():  # noqa: ASYNC240  # a look that takes microseconds
            raise ArithmeticError("a bug that was planted")
        return await turn(self, due)

    WriteLoop._turn = buggy  # type: ignore[method-assign]


if __name__ == "__main__":
    from mainstem.cli.main import main

    plant()
    main()
