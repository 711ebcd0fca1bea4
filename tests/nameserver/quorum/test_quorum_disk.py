"""A member of the metadata quorum writes what the core hands out in a certain order."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from mainstem.nameserver.quorum.quorum_disk import QuorumDisk
from mainstem.raft import HardState


async def some_turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_snapshot_waits_for_the_terms_that_were_handed_in_before_it() -> None:
    async def story() -> None:
        gates: list[asyncio.Future[None]] = []

        async def write(vote: object, wait: object) -> None:
            gates.append(asyncio.get_running_loop().create_future())
            await gates[-1]

        core: Any = SimpleNamespace(commit_index=0, persisted_index=0, hard_state_persisted=lambda state: None)
        vote_file: Any = SimpleNamespace(write=write)
        nothing: Any = SimpleNamespace(wait=None)
        disk = QuorumDisk(core, nothing, nothing, vote_file, nothing, lambda: None)
        await disk.all_written()
        writing = asyncio.ensure_future(disk.write_votes())
        disk.write(HardState(1))
        waiting = asyncio.ensure_future(disk.all_written())
        for term in (2, 3):
            await some_turns()
            disk.write(HardState(term))
            gates[-1].set_result(None)
            await some_turns()
            assert not waiting.done(), "a newer term is not durable"
        gates[-1].set_result(None)
        await waiting
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing

    asyncio.run(story())
