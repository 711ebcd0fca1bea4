"""Changes of topics: one after the other at the same topic, side by side at others, whoever gives up in between."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.topics.topic_changes import TopicChanges


def test_changes_of_other_topics_do_not_wait() -> None:
    async def story() -> None:
        changes = TopicChanges()
        async with changes.of(["a", "b"]), asyncio.timeout(1), changes.of(["c"]), changes.of([]):
            pass
        assert not changes.topics_in_line

    asyncio.run(story())


def test_who_gives_up_in_line_lets_nobody_pass() -> None:
    async def story() -> None:
        changes = TopicChanges()
        seen: list[str] = []

        async def change(name: str, *topics: str) -> None:
            async with changes.of(topics):
                seen.append(name)

        async with changes.of(["a"]):
            second = asyncio.create_task(change("second", "a", "b"))
            await asyncio.sleep(0)
            third = asyncio.create_task(change("third", "b"))
            fourth = asyncio.create_task(change("fourth", "a"))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.wait([second])
            fifth = asyncio.create_task(change("fifth", "a"))
            for _ in range(5):
                await asyncio.sleep(0)
            assert "fourth" not in seen
            assert "fifth" not in seen
        await asyncio.gather(third, fourth, fifth)
        assert seen.index("fourth") < seen.index("fifth")
        assert not changes.topics_in_line

    asyncio.run(story())


def test_changes_that_waited_for_one_go_on_in_the_order_in_which_they_were_begun() -> None:
    async def story() -> None:
        changes, topics = TopicChanges(), [f"topic-{number}" for number in range(50)]
        seen: list[str] = []

        async def change(topic: str) -> None:
            async with changes.of([topic]):
                seen.append(topic)

        async with changes.of(reversed(topics)):
            waiting = []
            for topic in topics:
                waiting.append(asyncio.create_task(change(topic)))
                await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert seen == topics

    asyncio.run(story())


@pytest.mark.parametrize("seed", range(40))
def test_at_random_each_topic_has_one_change_at_a_time_in_order_and_nobody_hangs(seed: int) -> None:
    async def story() -> None:
        chance = random.Random(seed)
        changes = TopicChanges()
        inside: dict[str, int] = {}
        begun: dict[str, int] = {}

        async def change(number: int, topics: list[str]) -> None:
            async with changes.of(topics):
                for topic in topics:
                    assert topic not in inside, f"changes {inside[topic]} and {number} of {topic} at once"
                    assert begun.get(topic, -1) < number, "in the order they came"
                    inside[topic] = begun[topic] = number
                await asyncio.sleep(chance.random())
                for topic in topics:
                    del inside[topic]

        tasks = []
        for number in range(60):
            topics = chance.sample("abcde", chance.randrange(1, 4))
            tasks.append(asyncio.create_task(change(number, topics)))
            await asyncio.sleep(chance.choice((0, 0.1, 0.5)))
            if chance.random() < 0.3:
                given_up = chance.choice(tasks)
                if tasks.index(given_up) not in inside.values():  # those that wait
                    given_up.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(one is None or isinstance(one, asyncio.CancelledError) for one in done), done
        assert not changes.topics_in_line

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(asyncio.wait_for(story(), 600))
