"""A leader that hands over holds what clients send, passes it on in order, or appends it after all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated, topic

from mainstem.kernel import ProduceScan, ProduceTopic, Verdict, scan_produce
from mainstem.model import AppendResult, AppendTransaction, BatchAppend, Outcome, slot_of
from mainstem.prompt_future import PromptFuture
from mainstem.protocol import codec
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.storage.queues import hand_overs
from mainstem.storage.queues.hand_overs import HELD_SECONDS_MAX, PASSED_ON_SECONDS

PARTITIONS = 8
GIVEN, KEPT = 1, 0
"""Write groups."""
NEXT = 7
"""The node that is asked to lead."""
VERSION = 10

Story = Callable[[SmallNode, "Next"], Awaitable[None]]


def two_groups(node: SmallNode) -> None:
    node.topics = [topic(partitions=PARTITIONS)]
    node.groups = 2


GIVEN_QUEUES = [QUEUE + number for number in range(PARTITIONS) if slot_of(QUEUE + number) % 2 == GIVEN]
KEPT_QUEUE = next(QUEUE + number for number in range(PARTITIONS) if slot_of(QUEUE + number) % 2 == KEPT)


def request_of(*batches: BatchAppend, acks: int = -1) -> ProduceScan:
    request = ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=(
            TopicProduceData(
                name="topic-1",
                partition_data=tuple(
                    PartitionProduceData(index=batch.queue_id - QUEUE, records=bytes(batch.data)) for batch in batches
                ),
            ),
        ),
    )
    resolved = ProduceTopic(number=1, partitions=PARTITIONS, message_bytes_max=1 << 20)
    return scan_produce(memoryview(codec.write(request, VERSION)), 0, VERSION, lambda key: resolved)


class Next:
    """The next leader, which answers when it is told to."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.answers: list[tuple[int, PromptFuture[list[AppendResult]]]] = []

    def append(
        self,
        batches: Sequence[BatchAppend],
        acks: int,
        *,
        copies_min: int | Mapping[int, int] = 0,
        transaction: AppendTransaction | None = None,
    ) -> PromptFuture[list[AppendResult]]:
        self.came += [bytes(batch.data) for batch in batches]
        answer: PromptFuture[list[AppendResult]] = PromptFuture()
        self.answers.append((len(batches), answer))
        return answer

    def answer(self, outcome: Outcome = Outcome.OK) -> None:
        for count, answer in self.answers:
            answer.set_result([AppendResult(outcome, 40)] * count)
        self.answers = []


def told(directory: Path, story: Story) -> None:
    async def with_next(node: SmallNode) -> None:
        following = Next()
        node.storage.messages.hand_overs.next_leaders = following
        await story(node, following)

    simulated(directory, with_next, two_groups)


def verdicts(scan: ProduceScan) -> list[int]:
    return [batch.verdict for batch in scan.scanned()]


def sent(
    node: SmallNode, *batches: BatchAppend, acks: int = -1
) -> tuple[ProduceScan, PromptFuture[list[AppendResult]]]:
    scan = request_of(*batches, acks=acks)
    future = node.storage.messages.append(scan, acks)
    scan.release()
    return scan, future


def test_batches_wait_for_the_next_leader_and_go_there_in_order(tmp_path: Path) -> None:
    async def story(node: SmallNode, following: Next) -> None:
        messages = node.storage.messages
        batches = [new_batch(GIVEN_QUEUES[number % 2], 100 + number) for number in range(4)]
        messages.hand_overs.begin(GIVEN)
        first, held = sent(node, batches[0], new_batch(KEPT_QUEUE))
        second, also_held = sent(node, batches[1])
        await messages.append([new_batch(GIVEN_QUEUES[0])], -1)  # of this node's own, which leads still
        assert following.came == []
        assert not held.done()
        messages.serve(GIVEN, serving=False)
        messages.hand_overs.led_by(GIVEN, NEXT)
        third, passed_on = sent(node, batches[2])
        assert following.came == [bytes(batch.data) for batch in batches[:3]]
        assert not any(waiting.done() for waiting in (held, also_held, passed_on))
        following.answer()
        await held
        assert all(waiting.done() for waiting in (also_held, passed_on))
        assert [verdicts(scan) for scan in (first, second, third)] == [[Verdict.OK] * 2, [Verdict.OK], [Verdict.OK]]
        assert first.scanned()[0].base_offset == 40
        assert first.taken_elsewhere, "the answer names the leader"
        await asyncio.sleep(PASSED_ON_SECONDS + 0.1)
        late, refused = sent(node, batches[3])
        assert refused.done()
        assert verdicts(late) == [Verdict.NOT_LEADER]
        assert len(following.came) == 3

    told(tmp_path, story)


def test_a_hand_over_that_comes_to_nothing_gives_back_what_was_held(tmp_path: Path) -> None:
    async def story(node: SmallNode, following: Next) -> None:
        messages = node.storage.messages
        queue = GIVEN_QUEUES[0]
        messages.hand_overs.begin(GIVEN)
        held = [sent(node, new_batch(queue, producer=(5, 0, number))) for number in range(3)]
        messages.hand_overs.stays(GIVEN)
        behind, future = sent(node, new_batch(queue, producer=(5, 0, 3)))
        await future
        assert [verdicts(scan) for scan, _ in (*held, (behind, future))] == [[Verdict.OK]] * 4
        assert [scan.scanned()[0].base_offset for scan, _ in held] == [0, 1, 2], "none has passed another"
        assert behind.scanned()[0].base_offset == 3
        assert not held[0][0].taken_elsewhere
        assert following.came == []
        assert not messages.hand_overs.under_way

    told(tmp_path, story)


@pytest.mark.parametrize("refused", [False, True])
def test_nothing_passes_what_was_held_when_this_node_is_elected_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """The node that was asked to lead has made this one step down, and has lost the election."""
    if refused:
        monkeypatch.setattr(hand_overs, "HELD_BYTES_MAX", 0)

    async def story(node: SmallNode, following: Next) -> None:
        messages = node.storage.messages
        messages.hand_overs.begin(GIVEN)
        first, held = sent(node, new_batch(GIVEN_QUEUES[0]))
        messages.serve(GIVEN, serving=False)
        monkeypatch.setattr(hand_overs, "HELD_BYTES_MAX", 3000)
        messages.hand_overs.begin(GIVEN)
        second, also_held = sent(node, new_batch(GIVEN_QUEUES[0]))
        messages.serve(GIVEN, serving=True)
        await held
        await also_held
        verdict = Verdict.NOT_LEADER if refused else Verdict.OK
        assert verdicts(first) + verdicts(second) == [verdict] * 2
        if not refused:
            assert [scan.scanned()[0].base_offset for scan in (first, second)] == [0, 1]

    told(tmp_path, story)


def test_without_a_leader_in_time_clients_are_refused(tmp_path: Path) -> None:
    async def story(node: SmallNode, following: Next) -> None:
        messages = node.storage.messages
        messages.hand_overs.begin(GIVEN)
        scan, held = sent(node, new_batch(GIVEN_QUEUES[0]))
        messages.serve(GIVEN, serving=False)
        await asyncio.sleep(HELD_SECONDS_MAX + 0.1)
        assert held.done()
        assert verdicts(scan) == [Verdict.NOT_LEADER]
        messages.hand_overs.led_by(GIVEN, NEXT)
        assert following.came == []

    told(tmp_path, story)


def test_what_is_held_is_bounded_and_nothing_passes_what_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_overs, "HELD_BYTES_MAX", 3000)

    async def story(node: SmallNode, following: Next) -> None:
        messages = node.storage.messages
        messages.hand_overs.begin(GIVEN)
        sizes = (1000, 1000, 1500, 10)
        scans = [sent(node, new_batch(GIVEN_QUEUES[0], size))[0] for size in sizes]
        assert not messages.has_room(0.5)
        messages.serve(GIVEN, serving=False)
        messages.hand_overs.led_by(GIVEN, NEXT)
        following.answer()
        assert [verdicts(scan) for scan in scans] == [[Verdict.OK]] * 2 + [[Verdict.NOT_LEADER]] * 2
        assert messages.has_room()

    told(tmp_path, story)


def test_who_wants_no_answer_is_passed_on_as_well(tmp_path: Path) -> None:
    async def story(node: SmallNode, following: Next) -> None:
        messages = node.storage.messages
        messages.hand_overs.begin(GIVEN)
        batch = new_batch(GIVEN_QUEUES[0])
        sent(node, batch, acks=0)
        messages.serve(GIVEN, serving=False)
        messages.hand_overs.led_by(GIVEN, NEXT)
        assert following.came == [bytes(batch.data)]

    told(tmp_path, story)


def test_an_answer_that_is_lost_is_not_known(tmp_path: Path) -> None:
    async def story(node: SmallNode, following: Next) -> None:
        messages = node.storage.messages
        messages.hand_overs.begin(GIVEN)
        messages.serve(GIVEN, serving=False)
        messages.hand_overs.led_by(GIVEN, NEXT)
        scan, future = sent(node, new_batch(GIVEN_QUEUES[0]))
        following.answers.pop()[1].set_exception(RuntimeError("gone"))
        await future
        assert verdicts(scan) == [Verdict.UNDECIDED]

    told(tmp_path, story)


def test_damaged_batches_are_refused_by_the_node_they_came_to(tmp_path: Path) -> None:
    async def story(node: SmallNode, following: Next) -> None:
        messages = node.storage.messages
        messages.hand_overs.begin(GIVEN)
        whole = new_batch(GIVEN_QUEUES[0])
        damaged = bytearray(whole.data)
        damaged[-1] ^= 1
        scan, future = sent(node, whole._replace(data=memoryview(damaged)))
        assert future.done()
        assert verdicts(scan) == [Verdict.BAD_CHECKSUM]

    told(tmp_path, story)
