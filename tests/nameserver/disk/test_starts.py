"""Nonces of starts: who is found to run on an older copy of its directories, and who is not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import product
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.fakes.files import PowerLoss, SimulatedFiles

from mainstem.nameserver.disk import starts
from mainstem.nameserver.disk.starts import LossCause, Remembers, all_got_back, begun, has_lost, judged, lost
from mainstem.nameserver.disk.starts_file import COPY_BYTES, NAME, StartsFile
from mainstem.nameserver.errors import ForeignDirectory
from mainstem.rpc.messages.starts import STARTS_MAX, StartShown
from mainstem.rpc.raft.raft_member import METADATA_QUORUM
from mainstem.rpc.wire.identity import Identity

RANDOMNESS = random.Random(1)
NODE_3 = Identity("cluster", 3, b"directory of 3.3")


def start(before: Remembers, number: int, boot: str = "", *, unsynced: bool = False) -> Remembers:
    return begun(before, 3, number.to_bytes(8, "big"), boot, acknowledges_unsynced=unsynced)


def shown(remembers: Remembers, *, forgot: bool = False, believed: bool = False) -> StartShown:
    return StartShown(remembers.drawn, forgot, remembers.restored, believed)


class Peer:
    """Another node, which node 3 shows its starts."""

    def __init__(self) -> None:
        self.remembers = Remembers()

    def believes(self, remembers: Remembers, *, forgot: bool = False, node: Identity = NODE_3) -> bool:
        self.remembers, matches, _ = judged(self.remembers, node, shown(remembers, forgot=forgot))
        return matches


def test_every_start_in_turn_is_believed() -> None:
    node, peer = Remembers(), Peer()
    for number in range(5):
        node = start(node, number)
        assert peer.believes(node)


def test_the_first_start_of_a_version_that_draws_nonces_is_believed() -> None:
    assert Peer().believes(start(Remembers(), 1))


def test_a_copy_from_before_the_last_start_is_found_out_although_it_has_started_as_often() -> None:
    peer = Peer()
    copy = start(Remembers(), 1)
    assert peer.believes(copy)
    assert peer.believes(start(copy, 2))
    assert not peer.believes(start(copy, 3))


def test_a_copy_from_before_nonces_were_drawn_is_found_out() -> None:
    peer = Peer()
    assert peer.believes(start(Remembers(), 1))
    assert not peer.believes(start(Remembers(), 2))


def test_a_start_that_came_to_an_end_before_or_after_others_saw_it_changes_nothing() -> None:
    saw_all, saw_some = Peer(), Peer()
    node = Remembers()
    for number in range(6):
        node = start(node, number)
        assert saw_all.believes(node)
        if number % 3 == 0:
            assert saw_some.believes(node)
    assert saw_some.believes(start(node, 9))


def test_one_that_was_away_believes_what_it_cannot_know_and_one_that_was_not_does_not() -> None:
    here, away = Peer(), Peer()
    copy = start(Remembers(), 1)
    for peer in (here, away):
        assert peer.believes(copy)
    assert here.believes(start(copy, 2))
    assert away.believes(start(copy, 3))
    assert not here.believes(start(copy, 3))


def test_one_that_knows_that_it_has_forgotten_begins_anew() -> None:
    peer = Peer()
    copy = start(Remembers(), 1)
    assert peer.believes(start(copy, 2))
    again = start(copy, 3)
    assert not peer.believes(again)
    again = lost(again, LossCause.COPY, "an older copy")
    assert peer.believes(again, forgot=True)
    assert peer.believes(start(again, 4))  # also when it died before it had caught up
    assert not peer.believes(start(copy, 5))


def test_another_directory_of_the_same_node_is_no_copy() -> None:
    peer = Peer()
    assert peer.believes(start(Remembers(), 1))
    assert peer.believes(start(Remembers(), 2), node=Identity("cluster", 3, b"another director"))


def test_a_cluster_that_is_restored_from_one_backup_notices_nothing_and_need_not() -> None:
    nodes = {node_id: start(Remembers(), node_id) for node_id in (1, 2, 3)}
    peers = {node_id: Peer() for node_id in nodes}
    for node_id, node in nodes.items():
        for other, peer in peers.items():
            assert other == node_id or peer.believes(node, node=Identity("cluster", node_id, bytes(16)))
    for node_id, node in nodes.items():  # all went on, and all are as they were
        for other, peer in peers.items():
            again = start(node, 10 + node_id)
            assert other == node_id or peer.believes(again, node=Identity("cluster", node_id, bytes(16)))


def test_what_is_remembered_is_bounded() -> None:
    node, peer = Remembers(), Peer()
    for number in range(STARTS_MAX + 10):
        node = start(node, number)
    assert len(node.drawn) == STARTS_MAX
    assert peer.believes(node)


# --- power under async ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unsynced", "boot", "ended_well", "loses"),
    [
        (True, "second", False, True),
        (True, "first", False, False),  # the process was killed, the machine went on
        (True, "second", True, False),
        (True, "", False, False),  # nobody can tell
        (False, "second", False, False),  # what is acknowledged is synced
    ],
)
def test_power_takes_what_was_acknowledged_and_not_synced(
    unsynced: bool, boot: str, ended_well: bool, loses: bool
) -> None:
    before = start(Remembers(), 1, "first", unsynced=unsynced)
    before = msgspec.structs.replace(before, ended_well=ended_well)
    after = start(before, 2, boot, unsynced=unsynced)
    assert has_lost(after, 0) == loses
    assert not has_lost(after, METADATA_QUORUM)  # always synced


@pytest.mark.parametrize(("earlier", "now"), [(True, False), (False, True)])
def test_what_power_takes_depends_on_the_life_that_it_ended(earlier: bool, now: bool) -> None:
    """Its durability was configured otherwise, perhaps just because of that loss."""
    before = start(Remembers(), 1, "first", unsynced=earlier)
    after = start(before, 2, "second", unsynced=now)
    assert has_lost(after, 0) == earlier
    again = start(all_got_back(after), 3, "third", unsynced=True)
    assert has_lost(again, 0) == now, "nor on the one before it"


def test_what_a_killed_process_had_not_synced_may_be_lost_with_the_next_one() -> None:
    before = start(start(Remembers(), 1, "first", unsynced=True), 2, "first")
    assert has_lost(start(before, 3, "second"), 0)
    ended_well = msgspec.structs.replace(before, ended_well=True)
    assert not has_lost(start(start(ended_well, 3, "second"), 4, "third"), 0)


def test_a_version_that_did_not_note_it_had_the_durability_that_is_configured_now() -> None:
    before = msgspec.structs.replace(start(Remembers(), 1, "first", unsynced=True), acknowledged_unsynced=None)
    assert has_lost(start(before, 2, "second", unsynced=True), 0)
    assert not has_lost(start(before, 2, "second"), 0)


def test_power_lost_again_before_an_old_copy_has_caught_up_does_not_make_it_less() -> None:
    node = lost(start(Remembers(), 1, "first", unsynced=True), LossCause.COPY, "an older copy")
    node = starts.got_back(starts.got_back(node, METADATA_QUORUM), 0)
    node = start(node, 2, "second", unsynced=True)
    assert node.loss == LossCause.COPY.value
    assert [has_lost(node, group) for group in (METADATA_QUORUM, 0, 1)] == [False, True, True]


# --- the file ---------------------------------------------------------------------------------------------------


def run(work: Callable[[StartsFile], Awaitable[None]], disk: SimulatedFiles, node_id: int = 3) -> Remembers:
    async def story() -> Remembers:
        file = await StartsFile.open(disk, node_id)
        await work(file)
        await file.close()
        return file.remembers

    return asyncio.run(story())


async def begin(file: StartsFile) -> None:
    await file.begin(3, "boot", RANDOMNESS.randbytes, acknowledges_unsynced=False)


async def nothing(file: StartsFile) -> None:
    """It is only read."""


def test_it_is_read_back_and_one_damaged_copy_costs_nothing() -> None:
    disk = SimulatedFiles(1)
    run(begin, disk)
    remembers = run(begin, disk)
    assert len(remembers.drawn) == 2
    for place in (0, COPY_BYTES):
        for at in range(0, 60 * 8, 11):
            damaged = disk.clone(1)
            damaged.flip(NAME, place * 8 + at)
            assert run(nothing, damaged) == remembers


def test_the_power_may_go_at_every_step() -> None:
    for cut_after in (1, 2):
        for seed in range(20):
            disk = SimulatedFiles(seed)
            first = run(begin, disk)

            async def cut(file: StartsFile, disk: SimulatedFiles = disk, cut_after: int = cut_after) -> None:
                disk.cut_power(after=cut_after)
                await begin(file)

            try:
                run(cut, disk)
            except PowerLoss:
                disk.crash()
            assert run(nothing, disk).drawn[:1] == first.drawn


@pytest.mark.parametrize("killed", [False, True], ids=["power lost", "killed"])
def test_the_power_may_go_in_two_starts_in_a_row(killed: bool) -> None:
    """The second leaves the copy alone that the first one left whole: the file would remember nothing. A killed process
    may have left that copy in memory alone."""

    async def remember_anew(file: StartsFile) -> None:
        """It takes some pages, and is rarely whole on the disk by chance."""
        await file.change(lambda before: Remembers(3, [RANDOMNESS.randbytes(8) for _ in range(1000)]))

    for first_cut, second_cut in product(range(1, 5), repeat=2):
        disk = SimulatedFiles(first_cut * 5 + second_cut)
        run(remember_anew, disk)
        for cut_after, keep_all in ((first_cut, killed), (second_cut, False)):

            async def cut(file: StartsFile, disk: SimulatedFiles = disk, cut_after: int = cut_after) -> None:
                disk.cut_power(after=cut_after)
                await remember_anew(file)

            with suppress(PowerLoss):
                run(cut, disk)
            disk.crash(keep_all=keep_all)
        assert len(run(nothing, disk).drawn) == 1000


def test_what_a_node_was_answered_stays_noted_whatever_is_noted_meanwhile() -> None:
    """Else an older copy of its directories would pass for the newest."""
    disk, peer = SimulatedFiles(1), Identity("cluster", 4, b"directory of 4.4")
    drawn = [b"nonce  1", b"nonce  2"]

    async def note_together(file: StartsFile) -> None:
        call: Any = SimpleNamespace(node=peer, request=StartShown(drawn, False, False, False))
        await begin(file)
        await file.ends_lost("power")
        await asyncio.gather(file.answer(call), file.got_back(0), file.got_back(1), file.wrote("hard_states"))

    remembers = run(note_together, disk)
    assert remembers.seen[4].nonce == drawn[-1]
    assert remembers.recovered == [0, 1]
    assert remembers.written == {"hard_states": remembers.drawn[-1]}


def test_a_file_of_which_nothing_is_whole_remembers_nothing_and_is_found_out() -> None:
    disk, peer = SimulatedFiles(1), Peer()
    assert peer.believes(run(begin, disk))
    disk.put(NAME, bytes([1]) * 2 * COPY_BYTES)
    assert not peer.believes(run(begin, disk))


def test_the_file_of_a_neighbour_is_refused() -> None:
    disk = SimulatedFiles(1)
    run(begin, disk)
    with pytest.raises(ForeignDirectory, match="belongs to node 3, the configuration says node 2"):
        run(nothing, disk, node_id=2)


def test_who_is_told_to_believe_its_directories_has_forgotten_nothing() -> None:
    disk = SimulatedFiles(1)

    async def forget(file: StartsFile) -> None:
        await begin(file)
        await file.forgot_all("an older copy")
        assert file.has_lost(0)
        assert file.shown().forgot
        await file.believe()
        assert not file.has_lost(0)

    assert run(forget, disk).why == ""


# --- older copies of single files ---------------------------------------------------------------------------------


def test_a_file_that_an_earlier_start_wrote_is_an_older_copy_if_a_later_one_has() -> None:
    node = start(start(Remembers(), 1), 2)
    first, second = node.drawn
    node = msgspec.structs.replace(node, written={"hard_states": second})
    assert starts.is_older(node, "hard_states", first)
    assert not starts.is_older(node, "hard_states", second)
    assert not starts.is_older(node, "hard_states", b"")  # a version that writes no nonces wrote it
    assert not starts.is_older(node, "vote", first)
    third = start(node, 3)  # it died between writing the file and noting that
    assert not starts.is_older(third, "hard_states", third.drawn[-1])


def test_older_votes_of_write_groups_are_forgotten_votes_and_the_metadata_has_its_own() -> None:
    node = starts.votes_lost(start(Remembers(), 1), "hard_states is an older copy of itself")
    assert [has_lost(node, group) for group in (0, 1, METADATA_QUORUM)] == [True, True, False]
    node = starts.votes_lost(lost(start(Remembers(), 1), LossCause.COPY, "an older copy"), "and its votes")
    assert has_lost(node, METADATA_QUORUM)


def test_what_was_got_back_is_forgotten_again_with_everything_else() -> None:
    node = starts.got_back(lost(start(Remembers(), 1), LossCause.COPY, "an older copy"), 0)
    assert [has_lost(node, group) for group in (0, 1)] == [False, True]
    node = lost(start(node, 2), LossCause.COPY, "an older copy, once more")
    assert [has_lost(node, group) for group in (0, 1)] == [True, True]


def test_who_was_given_up_for_lost_is_told_to_have_forgotten_when_it_comes_back() -> None:
    peer, node = Peer(), start(Remembers(), 1)
    assert peer.believes(node)
    peer.remembers = starts.left_alone(peer.remembers, [2, 3])
    assert not peer.believes(start(node, 2))
    assert peer.believes(start(node, 3), forgot=True)


def test_from_where_on_a_node_is_alone_is_decided_once() -> None:
    disk = SimulatedFiles(1)

    async def first(file: StartsFile) -> None:
        await begin(file)
        assert await file.alone_from(0, 17) is None
        await file.give_up([1, 2])
        assert await file.alone_from(0, 17) == 17

    async def later(file: StartsFile) -> None:
        assert await file.alone_from(0, 40) == 17
        assert await file.alone_from(METADATA_QUORUM, 5) == 5

    run(first, disk)
    run(later, disk)
