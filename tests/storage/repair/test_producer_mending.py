"""A page of a producers' file goes bad: its producers are known again from another replica, and answered "not now"
until then. Only where no replica has them they are lost, and that is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy
import pytest
from tests.harness.handler_of import handler_of
from tests.storage.small_node import SmallNode, simulated
from tests.storage.state.producers.test_cold_producers import FEW, few, files_of, fill, sent, settle

from mainstem.kernel import crc32c
from mainstem.kernel.pure.producer_states import KEY
from mainstem.model import Outcome
from mainstem.rpc.errors import ConnectionLost, NotServed
from mainstem.rpc.handlers import RpcCall
from mainstem.rpc.messages.repair import FETCH_PRODUCERS, FetchedProducers, FetchProducers, ProducersNotNow
from mainstem.rpc.wire.method import Reply
from mainstem.storage.errors import StorageError
from mainstem.storage.repair.producer_mending import PATIENCE_SECONDS, UNSERVED_SECONDS, ProducerMending
from mainstem.storage.state.producers.producer_files import PAGE_BYTES, ROWS_PER_PAGE
from mainstem.storage.state.producers.producer_rows import STATE, known_at

COUNT = 3 * ROWS_PER_PAGE
DAMAGED = range(ROWS_PER_PAGE, 2 * ROWS_PER_PAGE)
NODE, TWIN = 1, 2

Answer = Callable[[FetchProducers], Awaitable[Reply[FetchedProducers]]]


class Replicas:
    """`Calls` to nodes that answer as a test wants them to."""

    def __init__(self, **nodes: Answer) -> None:
        self.nodes = {int(name.removeprefix("node")): answer for name, answer in nodes.items()}
        self.asked: list[int] = []

    async def call(self, node_id: int, method: Any, request: Any, *, timeout_seconds: float) -> Any:
        self.asked.append(node_id)
        await asyncio.sleep(0.01)
        return await self.nodes[node_id](msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=FetchProducers))

    def stream(self, *_arguments: Any, **_options: Any) -> Any:
        raise AssertionError("nothing is streamed")


class Others:
    """The write group of a node, which has replicas on other nodes as well: those that a test says are there by now."""

    group = 0

    def __init__(self, node: SmallNode) -> None:
        self.replicas = Replicas()
        self._here = node.storage.groups[0]

    @property
    def applied_index(self) -> int:
        return self._here.applied_index

    @property
    def consensus(self) -> Any:
        return SimpleNamespace(core=object(), voters={NODE, *self.replicas.nodes}, learners=set())

    async def call(self, *arguments: Any, **options: Any) -> Any:
        return await self.replicas.call(*arguments, **options)

    def stream(self, *arguments: Any, **options: Any) -> Any:
        return self.replicas.stream(*arguments, **options)


class MendingFromOthers(ProducerMending):
    """The mending of a node whose write group has replicas on other nodes."""

    def __init__(self, node: SmallNode) -> None:
        self.others = Others(node)
        groups: Any = [self.others]
        super().__init__(NODE, groups, node.storage.producers, node.clock, self.others)


def may_have_replicas(node: SmallNode, replicas: Replicas | None = None) -> None:
    """Before the storage role begins its work: let its write group have these replicas, or those to come."""
    node.storage.producer_mending = MendingFromOthers(node)
    has_replicas(node, replicas or Replicas())


def has_replicas(node: SmallNode, replicas: Replicas) -> None:
    mending = node.storage.producer_mending
    assert isinstance(mending, MendingFromOthers)
    mending.others.replicas = replicas


def answers_of(twin: SmallNode) -> Answer:
    serve = handler_of(twin.storage.producer_mending, FETCH_PRODUCERS)

    async def answer(request: FetchProducers) -> Reply[FetchedProducers]:
        fetched: Reply[FetchedProducers] = await serve(RpcCall(request, b"", "a test"))
        return fetched

    return answer


async def away(_request: FetchProducers) -> Reply[FetchedProducers]:
    raise ConnectionLost("it is away")


async def of_an_old_version(_request: FetchProducers) -> Reply[FetchedProducers]:
    raise NotServed("groups.fetch_producers is not served here")


async def one_file(node: SmallNode) -> str:
    """Let everything be in one file, which a checkpoint names."""
    producers = node.storage.producers
    await producers.flush()
    producers.merged_whole_at[0] = -1e9
    await producers.keep_within()
    await node.storage.checkpointer.save()
    (path,) = files_of(node)
    return path


def flip(node: SmallNode, path: str, page: int = 1, at: int = 100) -> None:
    node.disk1.flip(path, 8 * ((1 + page) * PAGE_BYTES + at))


def told(
    directory: Path,
    story: Callable[[SmallNode, SmallNode], Awaitable[None]],
    prepare: Callable[[SmallNode], None] = few,
) -> None:
    """A node, and another one to which the same happened: two batches of each of some producers."""

    async def with_twin(node: SmallNode) -> None:
        (directory / "twin").mkdir()
        twin = SmallNode(node.clock, directory / "twin")  # type: ignore[arg-type]
        twin.config = node.config
        await twin.start()
        for sequence in range(2):
            for one in (node, twin):
                await fill(one, COUNT, sequence)
                await settle(one)
        await story(node, twin)
        await twin.storage.close()

    def prepared(node: SmallNode) -> None:
        prepare(node)
        node.opened = lambda: may_have_replicas(node)

    simulated(directory, with_twin, prepared)


async def outcome_of(node: SmallNode, producer_id: int, sequence: int = 1) -> tuple[Outcome, int]:
    """The outcome of a batch in the end, for a client that tries again."""
    for _ in range(1000):
        (result,) = await node.append(sent(producer_id, sequence))
        if result.outcome is not Outcome.STORAGE_BUSY:
            return result.outcome, result.base_offset
        await asyncio.sleep(0.1)
    raise AssertionError("it is never answered")


async def all_known(node: SmallNode) -> None:
    for producer_id in range(COUNT):
        assert await outcome_of(node, producer_id, 0) == (Outcome.OK, producer_id), "a duplicate"
        assert await outcome_of(node, producer_id, 1) == (Outcome.OK, COUNT + producer_id), "a duplicate"
    end = node.offsets().high_watermark
    for producer_id in DAMAGED:
        assert await outcome_of(node, producer_id, 2) == (Outcome.OK, end + producer_id - DAMAGED.start)


def cold(node: SmallNode) -> int:
    """A producer of the damaged page that is not in memory."""
    held = node.storage.groups[0].producers.held(b"".join(KEY.pack(1 << 32, number) for number in DAMAGED))
    in_memory = {int(row["producer_id"]) for row in numpy.frombuffer(held, STATE)}
    return next(number for number in DAMAGED if number not in in_memory)


def test_a_damaged_page_is_fetched_from_a_replica(tmp_path: Path) -> None:
    async def story(node: SmallNode, twin: SmallNode) -> None:
        replicas = Replicas(node2=answers_of(twin))
        has_replicas(node, replicas)
        flip(node, await one_file(node))
        (result,) = await node.append(sent(cold(node), 1))
        assert result.outcome is Outcome.STORAGE_BUSY, "while the replica is asked"
        await all_known(node)
        assert replicas.asked == [TWIN], "once for all of the page"
        assert (node.storage.producers.damaged.mended, node.storage.producers.damaged.lost) == (1, 0)
        assert node.storage.producers.damaged.noted() == []

    told(tmp_path, story)


def test_what_a_replica_said_outlives_a_crash_and_the_file(tmp_path: Path) -> None:
    async def story(node: SmallNode, twin: SmallNode) -> None:
        has_replicas(node, Replicas(node2=answers_of(twin)))
        path = await one_file(node)
        flip(node, path)
        await outcome_of(node, cold(node))
        await settle(node)
        assert path != await one_file(node)
        has_replicas(node, Replicas())
        await node.crash()
        await node.start()
        await all_known(node)

    told(tmp_path, story)


def test_a_merge_asks_before_it_drops_a_page(tmp_path: Path) -> None:
    async def story(node: SmallNode, twin: SmallNode) -> None:
        has_replicas(node, Replicas(node2=answers_of(twin)))
        path = await one_file(node)
        for page in range(3):
            flip(node, path, page)
        node.storage.producers.merged_whole_at[0] = -1e9
        await node.storage.producers.keep_within()
        assert path in files_of(node), "it is left until it is known what was in it"
        assert len(node.storage.producers.damaged.asked(0)) == 3, "all of it is asked for at once"
        await asyncio.sleep(5)
        node.storage.producers.merged_whole_at[0] = -1e9
        assert path != await one_file(node)
        assert not [name for name in files_of(node) if name.endswith(".tmp")]
        await all_known(node)

    told(tmp_path, story)


def test_files_behind_a_damaged_one_are_merged_meanwhile(tmp_path: Path) -> None:
    async def story(node: SmallNode, _twin: SmallNode) -> None:
        has_replicas(node, Replicas(node2=away))
        flip(node, await one_file(node))
        await outcome_and_busy(node)
        for sequence in range(40):
            for producer_id in range(COUNT, COUNT + 2):
                assert (await outcome_of(node, producer_id, sequence))[0] is Outcome.OK
            await node.storage.producers.flush()
            await node.storage.producers.keep_within()
        assert node.storage.producers.damaged.asked(0)
        assert node.storage.producers.file_count(0) <= 10

    async def outcome_and_busy(node: SmallNode) -> None:
        (result,) = await node.append(sent(cold(node), 1))
        assert result.outcome is Outcome.STORAGE_BUSY

    told(tmp_path, story)


def test_a_snapshot_waits_for_what_is_damaged(tmp_path: Path) -> None:
    async def story(node: SmallNode, twin: SmallNode) -> None:
        has_replicas(node, Replicas(node2=answers_of(twin)))
        flip(node, await one_file(node))
        rows = numpy.concatenate([rows async for rows in node.storage.producers.all_states(0)])
        whole = numpy.concatenate([rows async for rows in twin.storage.producers.all_states(0)])
        assert rows["producer_id"].tolist() == list(range(COUNT))
        for cell in ("epoch", "count", "partial", "batches"):
            assert (rows[cell] == whole[cell]).all(), cell

    told(tmp_path, story)


def test_a_start_forgets_nobody(tmp_path: Path) -> None:
    async def story(node: SmallNode, twin: SmallNode) -> None:
        path = await one_file(node)
        await node.storage.close()
        flip(node, path)
        node.config = msgspec.structs.replace(node.config, producers_in_memory=1000)  # all are read at the start
        node.opened = lambda: may_have_replicas(node, Replicas(node2=answers_of(twin)))
        await node.start()
        await all_known(node)

    told(tmp_path, story)


def test_a_start_takes_no_older_state_for_the_newest(tmp_path: Path) -> None:
    """The page that is damaged has what came last; an older file has what was before it."""

    async def story(node: SmallNode, twin: SmallNode) -> None:
        await one_file(node)
        for one in (node, twin):
            for producer_id in range(COUNT):
                assert await outcome_of(one, producer_id, 2) == (Outcome.OK, 2 * COUNT + producer_id)
        await node.storage.producers.flush()
        await node.storage.close()
        newest = files_of(node)[-1]
        flip(node, newest, 0)
        node.config = msgspec.structs.replace(node.config, producers_in_memory=1000)
        node.opened = lambda: may_have_replicas(node, Replicas(node2=answers_of(twin)))
        await node.start()
        for producer_id in range(COUNT):
            assert await outcome_of(node, producer_id, 2) == (Outcome.OK, 2 * COUNT + producer_id), "a duplicate"

    told(tmp_path, story)


def test_who_is_lost_stays_lost_when_the_page_is_gone(tmp_path: Path) -> None:
    """An older file has an older state of them, which is not to be taken for the newest."""

    async def story(node: SmallNode, _twin: SmallNode) -> None:
        await one_file(node)
        for producer_id in DAMAGED:
            assert (await outcome_of(node, producer_id, 2))[0] is Outcome.OK
        await settle(node)
        await node.storage.producers.flush()
        for path in files_of(node)[1:]:
            for page in range((len(node.disk1.content(path)) - 1) // PAGE_BYTES - 1):
                flip(node, path, page)
        lost = cold(node)
        assert (await outcome_of(node, lost, 2))[0] is Outcome.UNKNOWN_PRODUCER
        await asyncio.sleep(5)
        path = await one_file(node)
        assert files_of(node) == [path]
        assert (await outcome_of(node, lost, 2))[0] is Outcome.UNKNOWN_PRODUCER

    told(tmp_path, story)


def test_names_of_a_damaged_page_are_told_by_names_that_are_damaged_elsewhere(tmp_path: Path) -> None:
    async def story(node: SmallNode, twin: SmallNode) -> None:
        path = await one_file(node)
        await node.storage.close()
        flip(node, path)
        node.disk1.flip(path, 8 * (len(node.disk1.content(path)) - 3))
        await twin.restart()  # it has the block with which the node begins again, too
        node.opened = lambda: may_have_replicas(node, Replicas(node2=answers_of(twin)))
        await node.start()
        await all_known(node)

    told(tmp_path, story)


# --- nobody has it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [(away, PATIENCE_SECONDS), (of_an_old_version, UNSERVED_SECONDS)],
    ids=["away", "old"],
)
def test_what_no_replica_has_is_lost_in_time_and_said_to_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: Answer, seconds: float
) -> None:
    async def story(node: SmallNode, _twin: SmallNode) -> None:
        has_replicas(node, Replicas(node2=answer))
        flip(node, await one_file(node))
        await node.append(sent(cold(node), 1))
        await asyncio.sleep(seconds - 1)
        (result,) = await node.append(sent(cold(node), 1))
        assert result.outcome is Outcome.STORAGE_BUSY
        await asyncio.sleep(7)
        (result,) = await node.append(sent(cold(node), 1))
        assert result.outcome is Outcome.UNKNOWN_PRODUCER
        damaged = node.storage.producers.damaged
        assert ROWS_PER_PAGE - FEW <= damaged.lost <= ROWS_PER_PAGE
        assert [page.lost for page in damaged.noted()] == [damaged.lost]
        assert f"no replica of write group 0 knows {damaged.lost} of its producers: they are lost" in caplog.text
        (sample,) = [one for one in node.storage.producers.samples() if one.name == "mainstem_producers_lost_total"]
        assert sample.value == damaged.lost

    told(tmp_path, story)


def test_a_snapshot_of_what_cannot_be_known_soon_is_refused_first(tmp_path: Path) -> None:
    async def story(node: SmallNode, _twin: SmallNode) -> None:
        has_replicas(node, Replicas(node2=away))
        node.storage.producers.damaged.met = lambda *_arguments: None  # type: ignore[method-assign]
        flip(node, await one_file(node))
        with pytest.raises(StorageError, match="the page of producers at byte 8192 is damaged"):
            _ = [rows async for rows in node.storage.producers.all_states(0)]

    told(tmp_path, story)


# --- answers that are not used ----------------------------------------------------------------------------


def changed(twin: SmallNode, change: Callable[[Any], None], *, damage: int = 0, applied: int = 0) -> Answer:
    """Answers of another replica with something else in them."""
    ask = answers_of(twin)

    async def answer(request: FetchProducers) -> Reply[FetchedProducers]:
        reply = await ask(request)
        rows = numpy.frombuffer(b"".join(bytes(part) for part in reply.buffers), STATE).copy()
        change(rows)
        content = rows.tobytes()
        return Reply(FetchedProducers(reply.message.applied + applied, crc32c(content) ^ damage), content)

    return answer


def without_the_newest(rows: Any) -> None:
    for row in rows:
        row["count"] = 1


def of_another_sequence(rows: Any) -> None:
    rows["batches"]["base_sequence"] += 1


@pytest.mark.parametrize("what", ["older", "other", "broken", "short"])
def test_an_answer_that_contradicts_what_is_known_here_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    async def story(node: SmallNode, twin: SmallNode) -> None:
        wrong = {
            "older": changed(twin, without_the_newest),
            "other": changed(twin, of_another_sequence),
            "broken": changed(twin, lambda rows: None, damage=1),
            "short": changed(twin, lambda rows: None, applied=-1000),
        }
        flip(node, await one_file(node))
        replicas = Replicas(node2=wrong[what], node3=answers_of(twin))
        has_replicas(node, replicas)
        for one in (
            node,
            twin,
        ):  # as by a leader elsewhere: the node knows this batch, and not those before it
            applied = one.storage.groups[0].applied_index
            for producer_id in DAMAGED:
                one.storage.groups[0].producers.applied(
                    1 << 32, producer_id, 0, 2, 1, 2 * COUNT + producer_id, applied, 1
                )
        for producer_id in DAMAGED:
            for sequence in range(3):
                found = await outcome_of(node, producer_id, sequence)
                assert found == (Outcome.OK, sequence * COUNT + producer_id), "a duplicate"
        assert {2, 3} <= set(replicas.asked)
        assert ("its answer is not used" in caplog.text) == (what in ("older", "other"))

    told(tmp_path, story)


def test_a_replica_that_is_behind_is_asked_again(tmp_path: Path) -> None:
    async def story(node: SmallNode, twin: SmallNode) -> None:
        ask, tries = answers_of(twin), 0

        async def late(request: FetchProducers) -> Reply[FetchedProducers]:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise ProducersNotNow("not applied yet")
            return await ask(request)

        has_replicas(node, Replicas(node2=late))
        flip(node, await one_file(node))
        await all_known(node)
        assert tries == 4

    told(tmp_path, story)


def test_a_replica_says_what_it_knows_as_of_a_block_or_not_at_all(tmp_path: Path) -> None:
    async def story(_node: SmallNode, twin: SmallNode) -> None:
        ask, applied = answers_of(twin), twin.storage.groups[0].applied_index
        names = b"".join(KEY.pack(1 << 32, number) for number in (70, 5, 1000))
        reply = await ask(FetchProducers(0, applied, names))
        rows = numpy.frombuffer(b"".join(bytes(part) for part in reply.buffers), STATE)
        assert reply.message.applied == applied
        assert rows["producer_id"].tolist() == [5, 70]
        assert rows["batches"]["base_offset"][:, :2].tolist() == [[5, COUNT + 5], [70, COUNT + 70]]
        for request, why in (
            (FetchProducers(0, applied + 1, names), f"is applied up to block {applied}, not {applied + 1}"),
            (FetchProducers(1, applied, names), "has no part in write group 1 now"),
            (FetchProducers(0, applied, names[1:]), "47 bytes are not a number of names of 16"),
        ):
            with pytest.raises(ProducersNotNow, match=why):
                await ask(request)

    told(tmp_path, story)


def test_of_what_is_beyond_this_nodes_log_it_takes_nothing() -> None:
    rows = numpy.zeros(2, STATE)
    rows["producer_id"], rows["count"] = [1, 2], [2, 1]
    rows["batches"]["block_index"][:, :2] = [[5, 9], [8, 0]]
    (kept,) = numpy.frombuffer(known_at(7, rows.tobytes()), STATE)
    assert (kept["producer_id"], kept["count"], kept["batches"]["block_index"].tolist()) == (
        1,
        1,
        [5, 0, 0, 0, 0],
    )
