"""Clusters of whole nodes under random faults: invariants A to D, F to H, J to M, T and W, as their clients see them.

The checks of the simulation of storage roles are made here, too; clients speak to the nodes' dispatchers, in Kafka's
protocol. Besides:

A  a topic that was created is there, and one that was deleted is gone, on every node, with its queues
D  producer ids are handed out once
A  what is acknowledged with acks=all is on as many nodes as min.insync.replicas of its topic demands
H  whoever asks for a group's committed offset is told at least what was acknowledged, or told to anybody, before;
   members of a generation own what its one leader assigned, nothing twice, and commit nothing in a later one;
   nobody is told what was committed in a topic that somebody was told is deleted, whoever has its name then
K  what a start reads of the journal is bounded by what is not split (checked for storage roles, too)
L  in some runs topics are compacted, and with them the log of the consumer groups, in which no batch is left out
M  log starts move only where a client or the topic's retention wants it, queues go only with topics that somebody
   wanted to be deleted
T  what retention removes by age was due by the clocks of a majority
W  whoever asks where a queue ends now is told of everything that was acknowledged before the question

In a quarter of the runs each node begins as a program that knows of no feature levels, and is another when it is
started again; the level is raised when all are. A quarter of the runs has `durability = "async"`: then processes die,
and the power goes in the end only, when everything was flushed. Four runs of ten have transactions
(E): see `simulation.transactions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.simulation.cluster.planted import planted
from tests.simulation.cluster.run import COMPACTION, Outcomes
from tests.simulation.find import Play, more_at_length, seed_that_finds
from tests.simulation.oracle import seed_failed
from tests.simulation.steps import parting
from tests.simulation.whole.admin import Admin
from tests.simulation.whole.clients import may_be_told
from tests.simulation.whole.faults import PRODUCERS
from tests.simulation.whole.planted import WHOLE_BREAKS, WHOLE_PLANTS
from tests.simulation.whole.run import WholeRun, play

from mainstem.protocol.error_codes import ErrorCode

SEEDS = 4

BROUGHT_TO_LIGHT_BY = {
    "retention-by-one-clock": ["clock", "transfer"],
    "producers-expire-by-one-clock": ["clock", "transfer"],
    "coordinator-serves-before-replay": ["transfer", "restart"],
    "old-generations-commit": ["transfer", "restart", "pause"],
    "no-checkpoint": [],
    "skipped-is-out-of-order": [],
    "watermark-without-read-index": ["zombie", "pause", "cut off"],
    "offsets-outlive-their-topics": ["transfer", "restart"],
    "old-copy-is-believed": ["old copy"],
    "forgetful-replicas-vote": ["old copy"],
    "older-votes-are-believed": ["old copy"],
}
"""Per planted bug the faults that show it; none: any. `test_damaged_producers` has a story for one more."""

GENERATIONS_SECONDS = 20.0
"""A consumer group needs some seconds for a generation, and a member that is not heard of for the next."""

SEEDS_TO_FIND = 20
"""Runs within which a planted bug is found; a few do, mostly."""


@pytest.mark.parametrize("seed", more_at_length(range(100, 100 + SEEDS)))
def test_the_invariants_hold_for_clients_of_whole_nodes_under_random_faults(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path / str(seed))


@pytest.mark.parametrize("seed", more_at_length(range(3_700_000, 3_700_000 + 20)))
def test_the_latest_record_of_each_key_stays_and_offsets_are_told_from_compacted_logs(
    seed: int, tmp_path: Path
) -> None:
    play(seed, tmp_path / str(seed), faults=[COMPACTION])


@pytest.mark.long
def test_a_tombstone_that_goes_too_early_is_found(tmp_path: Path) -> None:
    with planted("tombstone-gone-early"):
        seed_that_finds(play, "L", range(3_700_000, 3_700_000 + SEEDS_TO_FIND), tmp_path, [COMPACTION, "transfer"])


def test_a_node_on_an_older_copy_of_its_directories_helps_nobody_to_forget(tmp_path: Path) -> None:
    copies = 0
    for seed in range(4, 22):
        if copies >= 4:
            break
        run = WholeRun(seed, tmp_path / str(seed), faults=["old copy"])
        run.play()
        copies += run.faults.copies
    assert copies >= 4


def test_one_node_at_a_time_may_lose_its_power_under_async_durability(tmp_path: Path) -> None:
    """Records that a majority had acknowledged stay, as the one that lost some of it counts for nothing until it has
    it."""
    lost = 0
    for seed in range(1, 49):
        if lost >= 4:
            break
        run = WholeRun(seed, tmp_path / str(seed), faults=["power"])
        if run.cluster.settings.is_async:
            run.play()
            lost += run.faults.powers
    assert lost >= 4


def test_a_flipped_bit_in_any_kind_of_file_is_no_loss(tmp_path: Path) -> None:
    rotten: dict[str, int] = {}
    for seed in range(8, 40):
        if len(rotten) >= 8:
            break
        run = WholeRun(seed, tmp_path / str(seed), faults=["rotten file"])
        run.play()
        for kind, count in run.faults.rotten.items():
            rotten[kind] = rotten.get(kind, 0) + count
    assert len(rotten) >= 8, rotten


def test_producers_of_a_rotten_file_are_known_again(tmp_path: Path) -> None:
    """With any leader, and any node that has lost them: they repeat nothing, and no replica knows others in the end."""
    rotten = mended = 0
    for seed in range(33, 53):  # the first of these have most of them
        if rotten >= 8 and mended >= 1:
            break  # what a seed makes of its faults changes with the nodes' code: as many as it takes
        run = WholeRun(seed, tmp_path / str(seed), faults=["rotten producers", "transfer"])
        run.play()
        rotten += run.faults.rotten.get(PRODUCERS, 0)
        mended += run.faults.mended_pages
        mended += sum(node.storage.producers.damaged.mended for node in run.cluster.nodes.values())
        assert not any(node.storage.producers.damaged.lost for node in run.cluster.nodes.values())
    assert rotten >= 8
    assert mended >= 1


@pytest.mark.long
@pytest.mark.parametrize("name", BROUGHT_TO_LIGHT_BY)
def test_bugs_planted_in_whole_nodes_are_found_by_the_invariants_they_break(name: str, tmp_path: Path) -> None:
    seeds = range(1, 1 + SEEDS_TO_FIND)
    with planted(name, WHOLE_PLANTS):
        how: Play = play_aging if name in ("retention-by-one-clock", "producers-expire-by-one-clock") else play
        if name == "old-generations-commit":
            how = partial(play, seconds=GENERATIONS_SECONDS)
        assert seed_that_finds(how, WHOLE_BREAKS[name], seeds, tmp_path, BROUGHT_TO_LIGHT_BY[name])


class Unmade(WholeRun):
    """The maker of a topic makes no queues of it. All nodes start anew, and the leaders-to-be begin with metadata that
    does not have it."""

    async def _story(self) -> None:
        nodes = self.cluster.nodes.values()
        await self._start_nodes()
        await self._create_topics()
        await self._make_no_queues()
        await Admin(self.work).create()  # all nodes know the one before to be committed, also when they start
        await asyncio.sleep(1.0)
        for node in nodes:
            node.lose_power(keep_all=True)
            node.metadata_hidden = True
        await asyncio.gather(*(node.restart() for node in nodes))
        for group in range(self.cluster.settings.groups):
            await self.cluster.lead(group, 60)
        await asyncio.sleep(1.0)
        for node in nodes:
            node.metadata_hidden = False
        await self._settle_deleted()
        assert any(topic.name == "unmade" for topic in self._topics)

    async def _make_no_queues(self) -> None:
        for _ in range(10):
            for node in self.cluster.nodes.values():
                roles = node.roles
                assert roles is not None
                made = await node.call(roles.nameserver.administration.create_topic("unmade", 1, 1, {}), patience=5)
                if made is not None:
                    return
        raise AssertionError("no node makes a topic")


@pytest.mark.parametrize("seed", more_at_length([1, 2, 3]))
def test_leaders_make_missing_queues_when_their_metadata_is_current_again(seed: int, tmp_path: Path) -> None:
    Unmade(seed, tmp_path).play()


class Aging(WholeRun):
    """Topics that keep their records for ten minutes, which no run lasts, and retention that looks all the time."""

    async def _start_nodes(self) -> None:
        settings = self.cluster.settings
        settings.storage = msgspec.structs.replace(settings.storage, retention_check_seconds=0.5)
        settings.journal = msgspec.structs.replace(settings.journal, segment_bytes=4 * 4096, segment_age_seconds=1.0)
        await super()._start_nodes()

    async def _create_topics(self) -> None:
        admin = Admin(self.work)
        while len(self.work.partitions()) < 3:
            await admin.create(configs={"retention.ms": "600000"})


def play_aging(seed: int, directory: Path, *, faults: Sequence[str] = ()) -> Outcomes:
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return Aging(seed, directory, seconds=4.0, faults=faults).play()
    except Exception as error:
        raise seed_failed(seed, error) from error


@pytest.mark.parametrize("seed", more_at_length([1, 2, 3]))
def test_clocks_that_are_years_off_make_nothing_older(seed: int, tmp_path: Path) -> None:
    play_aging(seed, tmp_path / str(seed), faults=["clock", "transfer"])


class SetRight(WholeRun):
    """Every node starts with a clock that is hours behind, which somebody sets right after the load, while it runs."""

    async def _start_nodes(self) -> None:
        for node in self.cluster.nodes.values():
            node.clock.step(-4 * 3_600_000)
        await super()._start_nodes()


def test_clocks_that_are_set_right_make_no_true_timestamp_one_of_the_future(tmp_path: Path) -> None:
    """In the end every partition takes a batch of now, from nodes that have not been started again since."""
    outcomes = SetRight(3, tmp_path, seconds=2.0, faults=["transfer"]).play()
    assert outcomes.acknowledged > 0


def test_true_timestamps_may_be_refused_where_clocks_are_behind_and_nowhere_else(tmp_path: Path) -> None:
    """By the node whose clock is an hour behind as long as it knows no other clock; by all when two of three are."""
    run = WholeRun(47, tmp_path)
    nodes = run.cluster.nodes
    assert len(nodes) == 3

    def may_refuse() -> list[int]:
        return [it for it in nodes if may_be_told(run.cluster, it, ErrorCode.INVALID_TIMESTAMP)]

    assert may_refuse() == []
    nodes[1].clock.step(-3_605_000)
    assert may_refuse() == [1]
    nodes[2].clock.step(-3_400_000)
    assert may_refuse() == [1, 2, 3]


def test_what_whole_nodes_do_depends_on_nothing_but_the_seed(tmp_path: Path) -> None:
    """On no address, hash, collection of garbage, name of a directory, or process."""
    assert not parting("whole", 48, tmp_path)


@pytest.mark.long  # the test before sees more, at each change
def test_a_run_of_whole_nodes_is_determined_by_its_seed(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first, second = (WholeRun(48, tmp_path / name) for name in ("first", "second"))
    assert first.play().trace == second.play().trace
    assert [node.disk1.paths() for node in first.cluster.nodes.values()] == [
        node.disk1.paths() for node in second.cluster.nodes.values()
    ]
