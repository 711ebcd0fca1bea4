"""A lane's messages: those of a turn together, in order, once more to the next leader, and never twice to one that may
have appended them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from random import Random
from typing import Any

from tests.fakes.begun_calls import begun
from tests.fakes.simulated_loop import SimulatedLoop
from tests.storage.small_node import new_batch

from mainstem.model import AppendResult, Buffer, Outcome, queue_id_of
from mainstem.prompt_future import PromptFuture
from mainstem.rpc.errors import ConnectionLost
from mainstem.rpc.messages.brokers import AppendedBatch, AppendPart, BatchesAppended
from mainstem.rpc.messages.cluster import WriteGroupsNotLed
from mainstem.rpc.wire.method import Method, Reply
from mainstem.storage_link.append_lane import MESSAGE_BYTES_MAX, UNDER_WAY_MAX, AppendLane, PendingPart
from mainstem.storage_link.leader_calls import LEADER_WAIT_SECONDS, LeaderCalls
from mainstem.storage_link.remote_message_store import RemoteMessageStore

QUEUE, OTHER = queue_id_of(1, 0), queue_id_of(1, 1)


class Nodes:
    """Two nodes, of which node `leader` appends what comes; `lost`: whose answers are lost, after they appended."""

    def __init__(self) -> None:
        self.leader = 1
        self.heard = 1
        """The leader that the broker knows."""
        self.lost: set[int] = set()
        self.led_here = False
        """The lane's own node leads."""
        self.gone: set[int] = set()
        """Nodes whose processes have ended."""
        self.held = asyncio.Event()
        self.held.set()
        self.connected = True
        """There are connections, over which calls can begin at once."""
        self.reached = asyncio.Event()
        """Set once calls that wait for a connection have one."""
        self.reached.set()
        self.messages: list[tuple[int, list[bytes]]] = []
        """(node, batches) of each message that came."""
        self.appended: list[bytes] = []

    async def call(
        self,
        node_id: int,
        method: Method[Any, Any],
        request: Any,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> Reply[Any]:
        await self.reached.wait()
        return await self._answer(node_id, request, attachment)

    async def _answer(self, node_id: int, request: Any, attachment: Sequence[Buffer]) -> Reply[Any]:
        batches = list(map(bytes, attachment))
        if node_id in self.gone:
            raise ConnectionLost("cannot reach it") from ConnectionRefusedError()
        self.messages.append((node_id, batches))
        led = node_id == self.leader
        if led:
            self.appended += batches
        await self.held.wait()
        if node_id in self.lost:
            raise ConnectionLost("the answer was lost")
        if not led:
            raise WriteGroupsNotLed("not here")
        return Reply(BatchesAppended([[AppendResult(Outcome.OK, 0)] * len(part.batches) for part in request.parts]))

    def begin(
        self,
        node_id: int,
        method: Method[Any, Any],
        request: Any,
        attachment: Sequence[Buffer] = (),
        *,
        timeout_seconds: float,
    ) -> PromptFuture[Reply[Any]] | None:
        if not self.connected:
            return None
        return begun(self._answer(node_id, request, attachment))

    def stream(self, *_: Any, **__: Any) -> AsyncGenerator[Reply[Any], None]:
        raise AssertionError("nothing is streamed here")


class Lane:
    def __init__(self) -> None:
        self.nodes = Nodes()
        self.outcomes: dict[bytes, Outcome] = {}
        self.freed = 0
        leaders = LeaderCalls(
            self.nodes, lambda group: (self.nodes.heard, self.nodes.heard), lambda group: self.nodes.led_here
        )
        self.lane = AppendLane(3, leaders, self._freed, lambda node_id: None, lambda principal, seconds: None)

    def _freed(self, size: int) -> None:
        self.freed += size

    def add(self, *batches: bytes) -> None:
        for batch in batches:
            part = AppendPart(-1, 0, None, [AppendedBatch(len(batch), 7, 1, 0, 0, -1, -1, -1, 0, 0, False)])
            self.lane.add(PendingPart(part, batch, self._settling(batch)))

    def _settling(self, batch: bytes) -> Callable[[Sequence[AppendResult]], None]:
        def settle(results: Sequence[AppendResult]) -> None:
            assert batch not in self.outcomes, "settled twice"
            (self.outcomes[batch],) = (result.outcome for result in results)

        return settle


def told(story: Callable[[Lane], Coroutine[Any, Any, None]]) -> None:
    async def run(*, connected: bool) -> None:
        lane = Lane()
        lane.nodes.connected = connected
        await story(lane)
        await lane.lane.close()

    for connected in (True, False):
        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            runner.run(run(connected=connected))


def test_what_is_appended_in_one_turn_is_one_message() -> None:
    async def story(lane: Lane) -> None:
        lane.add(b"a", b"b")
        lane.add(b"c")
        await asyncio.sleep(0.1)
        lane.add(b"d")
        await asyncio.sleep(0.1)
        assert lane.nodes.messages == [(1, [b"a", b"b", b"c"]), (1, [b"d"])]
        assert set(lane.outcomes.values()) == {Outcome.OK}
        assert lane.freed == 4

    told(story)


def test_no_message_passes_one_that_waits_for_a_connection() -> None:
    async def story(lane: Lane) -> None:
        lane.nodes.connected = False
        lane.nodes.reached.clear()
        lane.add(b"a")
        await asyncio.sleep(0.1)
        lane.nodes.connected = True
        lane.add(b"b")
        await asyncio.sleep(0.1)
        lane.nodes.reached.set()
        await asyncio.sleep(0.1)
        lane.add(b"c")
        await asyncio.sleep(0.1)
        assert lane.nodes.appended == [b"a", b"b", b"c"]

    told(story)


def test_messages_that_wait_for_room_leave_together_as_far_as_they_fit() -> None:
    async def story(lane: Lane) -> None:
        lane.nodes.held.clear()
        large = bytes(MESSAGE_BYTES_MAX - 2)
        under_way = [b"%d" % number for number in range(UNDER_WAY_MAX)]
        for batch in [*under_way, b"a", b"b", b"c", large, b"d"]:
            lane.add(batch)
            await asyncio.sleep(0.01)
        assert len(lane.nodes.messages) == UNDER_WAY_MAX
        lane.nodes.held.set()
        await asyncio.sleep(0.1)
        sent = [batches for _, batches in lane.nodes.messages[UNDER_WAY_MAX:]]
        assert sent == [[b"a", b"b", b"c"], [large, b"d"]]
        assert set(lane.outcomes.values()) == {Outcome.OK}
        assert lane.freed == UNDER_WAY_MAX + 4 + len(large)

    told(story)


def test_messages_and_what_is_under_way_are_bounded() -> None:
    async def story(lane: Lane) -> None:
        lane.nodes.held.clear()
        large = [bytes([number]) * (MESSAGE_BYTES_MAX // 2 + 1) for number in range(UNDER_WAY_MAX + 2)]
        lane.add(*large)
        await asyncio.sleep(0.1)
        assert len(lane.nodes.messages) == UNDER_WAY_MAX
        lane.nodes.held.set()
        await asyncio.sleep(0.1)
        assert lane.nodes.appended == large, "each in a message of its own, and all in order"

    told(story)


def test_what_a_node_refuses_that_does_not_lead_goes_to_the_next_leader_in_its_order() -> None:
    async def story(lane: Lane) -> None:
        lane.nodes.leader = 2
        lane.nodes.held.clear()
        for batch in (b"a", b"b", b"c"):
            lane.add(batch)
            await asyncio.sleep(0.01)
        lane.nodes.held.set()
        await asyncio.sleep(0.05)
        lane.add(b"d")
        await asyncio.sleep(0.05)
        assert not lane.nodes.appended, "nobody has told who leads"
        lane.nodes.heard = 2
        await asyncio.sleep(0.1)
        assert lane.nodes.appended == [b"a", b"b", b"c", b"d"]
        assert set(lane.outcomes.values()) == {Outcome.OK}

    told(story)


def test_what_is_refused_twice_goes_back() -> None:
    async def story(lane: Lane) -> None:
        lane.nodes.leader = 0
        lane.add(b"a")
        await asyncio.sleep(5)
        assert lane.outcomes == {b"a": Outcome.NOT_LEADER}
        assert len(lane.nodes.messages) == 2
        assert lane.freed == 1

    told(story)


def test_a_message_whose_answer_is_lost_is_not_sent_again() -> None:
    async def story(lane: Lane) -> None:
        lane.nodes.lost = {1}
        lane.add(b"a")
        await asyncio.sleep(5)
        assert lane.outcomes == {b"a": Outcome.UNDECIDED}
        assert lane.nodes.appended == [b"a"]
        lane.nodes.lost = set()
        lane.add(b"b")
        await asyncio.sleep(0.1)
        assert lane.outcomes[b"b"] is Outcome.OK

    told(story)


def test_a_message_that_never_arrived_waits_for_the_next_leader() -> None:
    async def story(lane: Lane) -> None:
        lane.nodes.gone = {1}
        lane.add(b"a")
        await asyncio.sleep(0.1)
        assert not lane.outcomes
        lane.nodes.leader = lane.nodes.heard = 2
        await asyncio.sleep(0.1)
        assert lane.outcomes == {b"a": Outcome.OK}

    told(story)


def test_what_a_node_passes_on_comes_back_at_once_when_it_leads_again_itself() -> None:
    """It handed over to a node that has died since: nobody else will lead."""

    async def story(lane: Lane) -> None:
        lane.nodes.gone = {1}
        lane.add(b"a")
        await asyncio.sleep(0.1)
        assert not lane.outcomes
        lane.nodes.led_here, lane.nodes.heard = True, -1
        await asyncio.sleep(0.1)
        assert lane.outcomes == {b"a": Outcome.NOT_LEADER}
        assert not lane.nodes.appended
        lane.add(b"b")
        await asyncio.sleep(0.1)
        assert lane.outcomes[b"b"] is Outcome.NOT_LEADER

    told(story)


def test_without_a_leader_producers_are_told_to_look_for_one() -> None:
    async def story(lane: Lane) -> None:
        lane.nodes.heard = -1
        lane.add(b"a")
        await asyncio.sleep(LEADER_WAIT_SECONDS + 0.5)
        assert lane.outcomes == {b"a": Outcome.NOT_LEADER}
        assert not lane.nodes.messages

    told(story)


def test_clients_of_a_misplaced_queue_are_sent_away_and_owners_and_who_wants_no_answer_are_not() -> None:
    async def run() -> None:
        nodes = Nodes()
        leaders = LeaderCalls(nodes, lambda group: (1, 1))
        store = RemoteMessageStore(1, lambda queue_id: 0, leaders, Random(1), lambda queue_id: queue_id == QUEUE)
        batch = new_batch(QUEUE)
        (away,) = await store.append([batch], -1)
        assert away.outcome is Outcome.NOT_LEADER
        there, here = await store.append([batch, new_batch(OTHER)], -1)
        assert (there.outcome, here.outcome) == (Outcome.NOT_LEADER, Outcome.OK)
        assert len(nodes.appended) == 1
        (owners,) = await store.append([batch], -1, owner_epoch=5)
        assert owners.outcome is Outcome.OK
        assert store.append([batch], 0).done()
        await asyncio.sleep(0.1)
        assert len(nodes.appended) == 3
        await store.close()

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(run())
