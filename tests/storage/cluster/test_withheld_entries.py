"""Entries that wait for more of them leave after a moment, those of all write groups at once, or sooner."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.storage.cluster.withheld_entries import STEP_SECONDS, STEPS, WithheldEntries


class Asked:
    """The calls for each write group, with the number of the step in which they were made, and whether it was late."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, bool]] = []
        self.stuck: set[int] = set()
        """Write groups that wait for the follower that they count on."""

    def send(self, group: int, late: bool) -> bool:
        step = round(asyncio.get_running_loop().time() / STEP_SECONDS)
        self.calls.append((group, step, late))
        return not late and group not in self.stuck

    @property
    def sent(self) -> list[tuple[int, int]]:
        return [(group, step) for group, step, late in self.calls if late or group in self.stuck]


async def steps(count: float) -> None:
    await asyncio.sleep(count * STEP_SECONDS)


def test_all_write_groups_send_together_some_steps_after_the_first() -> None:
    asked = Asked()

    async def play() -> None:
        withheld = WithheldEntries(asked.send)
        withheld.note(1)
        await steps(1.5)
        withheld.note(2)
        withheld.note(1)
        await steps(STEPS)
        withheld.note(3)
        await steps(2 * STEPS)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(play())
    assert asked.sent[:2] == [(1, STEPS), (2, STEPS)]
    ((group, step),) = asked.sent[2:]
    assert group == 3
    assert step - (STEPS + 1.5) == pytest.approx(STEPS, abs=1)
    assert len(asked.calls) == STEPS + (STEPS - 1) + STEPS, "nobody is looked at who withholds nothing"


def test_a_write_group_that_waits_for_somebody_sends_at_once() -> None:
    asked = Asked()
    asked.stuck = {1}

    async def play() -> None:
        withheld = WithheldEntries(asked.send)
        withheld.note(1)
        withheld.note(2)
        await steps(2 * STEPS)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(play())
    assert asked.sent == [(1, 1), (2, STEPS)]


def test_what_is_withheld_while_others_send_waits_as_long() -> None:
    asked = Asked()

    async def play() -> None:
        def send(group: int, late: bool) -> bool:
            if late and group == 1:
                withheld.note(2)
            return asked.send(group, late)

        withheld = WithheldEntries(send)
        withheld.note(1)
        await steps(3 * STEPS)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(play())
    assert asked.sent == [(1, STEPS), (2, 2 * STEPS)]


def test_a_write_group_that_fails_holds_up_no_other() -> None:
    asked = Asked()
    failures: list[str] = []

    async def play() -> None:
        def send(group: int, late: bool) -> bool:
            if group == 1 and not failures:
                raise ValueError("once")
            return asked.send(group, late)

        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: failures.append(str(context["exception"]))
        )
        withheld = WithheldEntries(send)
        for group in (1, 2, 3):
            withheld.note(group)
        await steps(2 * STEPS)
        withheld.note(1)
        await steps(2 * STEPS)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(play())
    assert failures == ["once"]
    assert [group for group, _step in asked.sent] == [2, 3, 1]


def test_nothing_leaves_after_the_end() -> None:
    asked = Asked()

    async def play() -> None:
        for noted_before in (True, False):
            withheld = WithheldEntries(asked.send)
            if noted_before:
                withheld.note(1)
            withheld.close()
            withheld.note(2)
        await steps(2 * STEPS)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(play())
    assert not asked.calls
