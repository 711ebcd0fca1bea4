"""`mainstem cluster recover`, on the directory of a node that is stopped."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from mainstem.cli.main import root
from mainstem.nameserver.disk.starts import Remembers
from mainstem.nameserver.disk.starts_file import StartsFile
from mainstem.node.node import lock
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.starts import StartShown
from mainstem.rpc.wire.identity import Identity
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.journal.mending.stand_ins import Lost
from mainstem.storage.repair.lost_blocks import Loss, LostBlocks, LostPart


def remembers(write_dir: Path, *, forgot: bool = False) -> Remembers:
    """The memory of the directory; with `forgot` after a start that was found to be on an older copy."""

    async def read() -> Remembers:
        files = DiskFiles(write_dir)
        starts = await StartsFile.open(files, 3)
        if forgot:
            await starts.begin(3, "boot", os.urandom, acknowledges_unsynced=False)
            await starts.forgot_all("it was started on an older copy of its directories")
        await starts.close()
        await files.close()
        return starts.remembers

    return asyncio.run(read())


def recover(write_dir: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(root, ["cluster", "recover", "--write-dir", str(write_dir), *options])
    return result.exit_code, result.output + (str(result.exception) if result.exception else "")


@pytest.fixture
def write_dir(tmp_path: Path) -> Path:
    remembers(tmp_path, forgot=True)
    return tmp_path


def test_it_says_what_is_given_up_and_changes_nothing_without_a_yes(write_dir: Path) -> None:
    before = remembers(write_dir)
    code, said = recover(write_dir)
    assert code == 0
    assert "node 3, 1 starts remembered" in said
    assert "older copy of its directories" in said
    assert "is given up" in said
    assert "give --yes" in said
    assert remembers(write_dir) == before


def test_with_a_yes_nothing_counts_as_forgotten_and_its_starts_stay_known(write_dir: Path) -> None:
    before = remembers(write_dir)
    assert recover(write_dir, "--yes")[0] == 0
    after = remembers(write_dir)
    assert (after.loss, after.why, after.seen) == ("", "", {})
    assert after.drawn == before.drawn


def test_going_on_alone_gives_up_the_nodes_it_has_met(write_dir: Path) -> None:
    code, said = recover(write_dir, "--alone", "--yes")
    assert code != 0
    assert "knows of no other nodes" in said

    async def meet() -> None:
        files = DiskFiles(write_dir)
        starts = await StartsFile.open(files, 3)
        for node_id in (1, 2):
            caller = Identity("cluster", node_id, bytes(16))
            await starts.answer(RpcCall(StartShown([bytes(8)], False), b"", "a node", caller))
        await starts.close()
        await files.close()

    asyncio.run(meet())
    code, said = recover(write_dir, "--alone")
    assert "Nodes 1, 2 are given up for good" in said
    assert "must never be started again" in said
    assert remembers(write_dir).given_up == []
    assert recover(write_dir, "--alone", "--yes")[0] == 0
    assert (remembers(write_dir).given_up, remembers(write_dir).loss) == ([1, 2], "")


def test_a_node_that_runs_is_left_alone(write_dir: Path) -> None:
    held = lock(write_dir)
    try:
        code, said = recover(write_dir, "--yes")
    finally:
        os.close(held)
    assert code != 0
    assert "recover works on a stopped node" in said
    assert remembers(write_dir).loss == "copy"


def test_another_directory_is_refused(tmp_path: Path) -> None:
    code, said = recover(tmp_path, "--yes")
    assert code != 0
    assert "remembers no starts" in said
    assert not list(tmp_path.iterdir())


def test_nodes_that_are_lost_for_good_are_named_with_what_is_given_up(tmp_path: Path) -> None:
    code, output = recover(tmp_path, "--without", "3")
    assert code
    assert "--without goes with --give-up only" in output

    async def note() -> None:
        files = DiskFiles(tmp_path)
        await (await LostBlocks.open(files)).note([
            Loss(4096, 8192, 1, "it cannot be read", [LostPart(0, 4, 4, members=[2, 3])],
                 [Lost(0, 1, 4, 4096, 4096, data=True)])
        ])  # fmt: skip
        await files.close()

    async def without() -> list[list[int]]:
        files = DiskFiles(tmp_path)
        lost = await LostBlocks.open(files)
        await files.close()
        return [part.without for loss in lost.losses for part in loss.parts if part.given_up]

    asyncio.run(note())
    code, output = recover(tmp_path, "--give-up", "0:4-4")
    assert "Nodes 2, 3 are asked first" in output
    assert asyncio.run(without()) == []
    code, output = recover(tmp_path, "--give-up", "0:4-4", "--without", "3", "--yes")
    assert not code, output
    assert "Nodes 2 are asked first" in output
    assert "Nodes 3 are not asked, and must never be started again" in output
    assert asyncio.run(without()) == [[3]]
