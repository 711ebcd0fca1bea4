"""The result that a start makes of a journal in which the undecided end of a log lies more than once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.clock import FakeClock
from tests.fakes.files import SimulatedFiles
from tests.storage.journal.sample_blocks import started

from mainstem.kernel import QueueTable
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.encoding.format import KIND_NO_OP, BlockHeader, position_of
from mainstem.storage.journal.encoding.framing import BlockToWrite
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.journal_map import JournalMap
from mainstem.storage.repair.rewriting import UNDECIDED_SECONDS, Rewriting
from mainstem.storage.state.producers.cold_producers import ColdProducers
from mainstem.storage.state.producers.producer_expiry import ProducerExpiry
from mainstem.storage.state.state_recovery import Recovery
from mainstem.storage.write_groups.log_block import LogBlock
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_loop import BlockCopy, WriteLoop

GROUPS = 2

APPEND, REPLACE, COPY, COPY_PART = "append", "replace", "copy", "copy cut off"


class Step(NamedTuple):
    what: str
    group: int
    number: int


STEPS = st.lists(
    st.builds(Step, st.sampled_from([APPEND, APPEND, REPLACE, COPY, COPY_PART]), st.integers(0, GROUPS - 1),
              st.integers(0, 9)),
    max_size=25,
)  # fmt: skip


class Written(NamedTuple):
    term: int
    place: int
    """Which of all blocks in the journal it is."""


class Model:
    """The logs as they are, and what the journal was given for them."""

    def __init__(self) -> None:
        self.logs: list[list[Written]] = [[] for _ in range(GROUPS)]
        self.terms = [1] * GROUPS
        self.journal: list[BlockToWrite] = []
        self.cut_off: tuple[int, int, int, list[Written]] | None = None
        """The newest copies that were cut off: the group, where in the log and in the journal they end."""

    def play(self, step: Step) -> None:
        log = self.logs[step.group]
        match step.what:
            case "append":
                for _ in range(1 + step.number % 3):
                    log.append(self._write(step.group, len(log) + 1))
            case "replace" if log:  # by a leader of the next term
                first = step.number % len(log)
                self.terms[step.group] += 1
                del log[first:]
                log.append(self._write(step.group, first + 1))
            case "copy" if log:
                first = step.number % len(log)
                begun = self._begun(step.group, first)  # by copies that were cut off right before: they count now
                log[first:] = [self._again(step.group, at, log) for at in range(first, len(log))]
                log[first - len(begun) : first] = begun
            case "copy cut off" if len(log) > 1:  # the power went, and the node started again
                first = step.number % (len(log) - 1)
                begun = self._begun(step.group, first)
                last = min(first + 1 + step.number // 3, len(log) - 1)
                copies = begun + [self._again(step.group, at, log) for at in range(first, last)]
                self.cut_off = step.group, last, len(self.journal), copies

    def _begun(self, group: int, first: int) -> list[Written]:
        """The copies right before this one that it goes on from: nobody can tell them from its own."""
        at = group, first, len(self.journal)
        return self.cut_off[3] if self.cut_off is not None and self.cut_off[:3] == at else []

    def _again(self, group: int, at: int, log: list[Written]) -> Written:
        term = log[at].term
        return self._write(group, at + 1, term)

    def _write(self, group: int, index: int, term: int | None = None) -> Written:
        term = term or self.terms[group]
        self.journal.append(BlockToWrite(KIND_NO_OP, group, term, index, b"", 0, (), 1))
        return Written(term, len(self.journal) - 1)


@settings(max_examples=examples(200), deadline=None)
@given(STEPS)
def test_a_start_finds_the_log_whose_copies_are_complete(steps: list[Step]) -> None:
    model = Model()
    for step in steps:
        model.play(step)

    async def story() -> None:
        files, config = SimulatedFiles(1), JournalConfig(segment_bytes=1 << 14, pool_segments=0)
        journal = (await started(files, config)).journal
        places = []
        for block in model.journal:
            (header,) = await journal.write([block])
            places.append(header.position)
        await journal.close()
        journal = await Journal.open(files, FakeClock(), config)
        state: Any = SimpleNamespace(journal_map=JournalMap(GROUPS))
        groups = [
            WriteGroup(group, QueueTable(), state, state, block_bytes_max=5000, batch_bytes_max=1 << 20)
            for group in range(GROUPS)
        ]
        clock = FakeClock()
        expiry = ProducerExpiry(clock, AgreedClock(clock), groups, seconds=1)
        producers = ColdProducers(
            files, clock, expiry, [group.producers for group in groups], bool, lambda: False,
            memory_max=1, count_max=1,
        )  # fmt: skip
        await Recovery(files, journal, groups, state, producers).run()
        live = set()
        for group, log in zip(groups, model.logs, strict=True):
            blocks = group.blocks
            assert [blocks.term(index) for index in range(1, blocks.last_index() + 1)] == [one.term for one in log]
            expected = [places[one.place] for one in log]
            assert [blocks.position_of(index) for index in range(1, blocks.last_index() + 1)] == expected
            held = [block.header.position for block in blocks.unapplied(0) if block.header is not None]
            assert held == expected, "what is applied later is read from there"
            live |= set(expected)
        assert state.journal_map.dead == set(places) - live
        last = [len(log) for log in model.logs]
        assert list(state.journal_map.dump().marks[-1].last) == last if places else True
        await journal.close()

    asyncio.run(story())


def header_at(index: int, position: int, term: int = 1) -> BlockHeader:
    return BlockHeader(KIND_NO_OP, 0, term, index, 80, 0, 0, 0, position, 0, 0, 1)


def test_what_was_decided_or_replaced_while_its_copy_was_written_stays_where_it_was() -> None:
    watcher: Any = SimpleNamespace()
    group = WriteGroup(0, QueueTable(), watcher, watcher, block_bytes_max=5000, batch_bytes_max=1 << 20)
    old = {index: position_of(1, 4096 + 80 * index) for index in range(1, 6)}
    new = {index: position_of(9, 4096 + 80 * index) for index in range(1, 6)}
    for index, place in old.items():
        block = LogBlock(KIND_NO_OP, 1, index)
        block.header = header_at(index, place)
        group.blocks.append(block)
    group.applied_index = 2  # a majority came meanwhile
    group.blocks.truncate(5)  # and a leader who has another block there
    replaced = LogBlock(KIND_NO_OP, 2, 5)
    group.blocks.append(replaced)
    moved = group.copied([header_at(index, place) for index, place in new.items()], list(old.values()))
    assert moved == {new[3]: old[3], new[4]: old[4]}
    assert [group.blocks.position_of(index) for index in range(1, 6)] == [old[1], old[2], new[3], new[4], 0]
    assert [group.blocks.held(index).header.position for index in (3, 4)] == [new[3], new[4]]  # type: ignore[union-attr]


def log_of(count: int, *, segment: int = 1) -> tuple[WriteGroup, list[BlockCopy]]:
    """A write group whose log of so many blocks is written and undecided, and what would be written again of it."""
    watcher: Any = SimpleNamespace(serving_changed=lambda group, serving: None)
    group = WriteGroup(0, QueueTable(), watcher, watcher, block_bytes_max=5000, batch_bytes_max=1 << 20)
    copies = []
    for index in range(1, count + 1):
        block = LogBlock(KIND_NO_OP, 1, index)
        block.header = header_at(index, position_of(segment, 4096 + 80 * index))
        group.blocks.append(block)
        to_write = BlockToWrite(KIND_NO_OP, 0, 1, index, b"", 0, (), 1)
        copies.append(BlockCopy(index, 1, block.header.position, to_write))
    return group, copies


def written_behind(group: WriteGroup, index: int, term: int) -> None:
    block = LogBlock(KIND_NO_OP, term, index)
    block.header = header_at(index, position_of(2, 4096 + 80 * index), term)
    group.blocks.append(block)


@pytest.mark.parametrize("meanwhile", ["nothing", "decided", "written behind", "replaced", "moved"])
def test_only_what_is_the_whole_undecided_end_of_its_log_is_written_again(meanwhile: str) -> None:
    """Else blocks would lie out of their order in the journal, on which all that looks for them by place relies."""

    async def story() -> None:
        group, copies = log_of(4)
        match meanwhile:
            case "decided":
                group.applied_index = 1
            case "written behind":
                written_behind(group, 5, 1)
            case "replaced":
                group.blocks.truncate(4)
                written_behind(group, 4, 2)
            case "moved":
                group.blocks.moved(header_at(2, position_of(2, 8192)))
        written: list[int] = []

        async def write(blocks: list[BlockToWrite]) -> list[BlockHeader]:
            written.extend(block.index for block in blocks)
            return [header_at(block.index, position_of(3, 4096 + 80 * block.index), block.term) for block in blocks]

        journal: Any = SimpleNamespace(write=write)
        no_votes: Any = None
        loop = WriteLoop(journal, [group], JournalMap(1), no_votes, FakeClock())
        running = asyncio.ensure_future(loop.run())
        moved = await loop.rewrite(0, copies)
        assert (moved, written) == ((4, [1, 2, 3, 4]) if meanwhile == "nothing" else (0, []))
        await loop.close()
        await running

    asyncio.run(story())


def test_a_block_that_was_moved_since_stays_where_it_is() -> None:
    group, copies = log_of(2)
    newer = position_of(2, 8192)
    group.blocks.moved(header_at(2, newer))
    new = [header_at(copy.index, position_of(3, 4096 + 80 * copy.index)) for copy in copies]
    assert group.copied(new, [copy.source for copy in copies]) == {new[0].position: copies[0].source}
    assert group.blocks.position_of(2) == newer


class Stuck(NamedTuple):
    """A write group whose log is written and undecided, far behind the end of the journal."""

    group: WriteGroup
    rewriting: Rewriting
    clock: FakeClock
    rewritten: list[list[int]]
    """The indexes of the blocks that each rewriting took."""
    anew: list[set[int]]
    """The segments whose indexes were made anew."""


def stuck(count: int) -> Stuck:
    group, _copies = log_of(count)
    clock, rewritten, anew = FakeClock(), list[list[int]](), list[set[int]]()

    async def index_anew(segments: Any) -> None:
        anew.append(set(segments))

    async def rewrite(number: int, wanted: Any) -> int:
        rewritten.append([copy.index for copy in wanted])
        return len(wanted)

    journal: Any = SimpleNamespace(segment_bytes=1 << 14, end=position_of(9, 4096), index_anew=index_anew)
    write_loop: Any = SimpleNamespace(out_of_space=False, rewrite=rewrite)
    rewriting = Rewriting(journal, [group], write_loop, clock, lambda: True)

    return Stuck(group, rewriting, clock, rewritten, anew)


def test_the_indexes_of_segments_that_blocks_have_left_are_made_anew() -> None:
    """After a start a segment may be indexed with blocks that are undecided: it would be read for them, and be gone."""

    async def story() -> None:
        log = stuck(3)
        await log.rewriting.round()
        log.clock.advance(UNDECIDED_SECONDS + 1)
        await log.rewriting.round()
        assert log.rewritten == [[1, 2, 3]]
        assert log.rewriting.rewritten_blocks == 3
        assert log.anew == [{1}]

    asyncio.run(story())


def test_a_block_that_has_become_the_first_undecided_one_waits_anew() -> None:
    """A write group that decides block after block is not stuck, however long it has had undecided blocks."""

    async def story() -> None:
        log = stuck(3)
        for decided in range(3):
            log.group.applied_index = decided
            await log.rewriting.round()
            log.clock.advance(UNDECIDED_SECONDS - 1)
            await log.rewriting.round()
            assert log.rewritten == []
        log.clock.advance(2)
        await log.rewriting.round()
        assert log.rewritten == [[3]]

    asyncio.run(story())
