"""Topics that are made because somebody asks for them: together, boundedly, without waiting for others' leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest
from tests.broker.harness import Fakes, call, make_broker, serving
from tests.broker.test_metadata import ask
from tests.fakes.clock import LoopClock
from tests.fakes.memory_store import MemoryStore
from tests.fakes.metadata import FakeMetadata
from tests.fakes.simulated_loop import SimulatedLoop
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.broker.admin.topic_admin import RESERVED_NAMES
from mainstem.broker.handlers import create_topics, metadata
from mainstem.broker.topics import auto_creation
from mainstem.broker.topics.auto_creation import AutoCreation
from mainstem.errors import LeaderMissing, MainstemError
from mainstem.model import NewTopic, QueueRange, Topic
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.protocol import codec
from mainstem.protocol.encoded_array import elements
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

OK = ErrorCode.NONE
ASK_AGAIN = ErrorCode.LEADER_NOT_AVAILABLE
ELECTION_SECONDS = 10.0
"""How long the storage waits for a leader before it says that there is none."""


class Cluster:
    """Metadata whose changes take a while, and queues in two write groups: those of topics called `stuck…` are in one
    that has no leader."""

    def __init__(self) -> None:
        self.metadata = FakeMetadata()
        self.store = MemoryStore(LoopClock())
        self.changes: list[list[str]] = []
        self.change_seconds = 0.01
        self.queue_calls = self.queue_calls_open = 0
        self.creation = AutoCreation(self, self, self.has_leaders, 1, 1)  # type: ignore[arg-type]

    def has_leaders(self, topic: Topic) -> bool:
        return not topic.name.startswith("stuck")

    async def create_topics(self, wanted: Sequence[NewTopic]) -> list[Topic | MainstemError]:
        self.changes.append([topic.name for topic in wanted])
        await asyncio.sleep(self.change_seconds)
        return await self.metadata.create_topics(wanted)

    async def create(self, ranges: Sequence[QueueRange]) -> None:
        self.queue_calls += 1
        self.queue_calls_open += 1
        try:
            await self._create(ranges)
        finally:
            self.queue_calls_open -= 1

    async def _create(self, ranges: Sequence[QueueRange]) -> None:
        names = {topic.number: topic.name for topic in self.metadata.topics()}
        if any(names[one.topic_number].startswith("stuck") for one in ranges):
            await asyncio.sleep(ELECTION_SECONDS)
            raise LeaderMissing("nobody leads")
        await self.store.create(ranges)

    @property
    def names(self) -> set[str]:
        return {topic.name for topic in self.metadata.topics()}


def simulated(story: Callable[[Cluster], Awaitable[None]]) -> None:
    async def told() -> None:
        cluster = Cluster()
        await story(cluster)
        await cluster.creation.close()

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(told())


def seconds() -> float:
    return asyncio.get_running_loop().time()


def test_what_many_ask_for_is_made_once_and_together() -> None:
    async def story(cluster: Cluster) -> None:
        names = [f"t{number}" for number in range(50)]
        answers = await asyncio.gather(*(cluster.creation.topics(names) for _ in range(40)))
        assert all(isinstance(topic, Topic) for made in answers for topic in made.values())
        assert sorted(name for change in cluster.changes for name in change) == sorted(names)
        late = [asyncio.create_task(cluster.creation.topics([f"late-{number}"])) for number in range(30)]
        await asyncio.gather(*late)
        assert len(cluster.changes) <= 3, "those that came during a change are made together in the next"

    simulated(story)


def test_a_write_group_without_a_leader_delays_nobody_else() -> None:
    async def story(cluster: Cluster) -> None:
        made = await cluster.creation.topics(["well", "stuck", "fine"])
        assert isinstance(made["stuck"], LeaderMissing)
        assert isinstance(made["well"], Topic)
        assert isinstance(made["fine"], Topic)
        for number in range(20):
            answers = await cluster.creation.topics([f"stuck-{number}", f"well-{number}"])
            assert isinstance(answers[f"well-{number}"], Topic)
        assert seconds() < 1
        assert cluster.queue_calls_open == 1, "nothing but the one call that makes what is late"
        await asyncio.sleep(2.5 * ELECTION_SECONDS)
        assert cluster.queue_calls == 21 + 2, "one for all that waits"

    simulated(story)


def test_who_waits_for_slow_metadata_hears_to_ask_again_and_finds_it_made() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.change_seconds = 8.0
        made = await cluster.creation.topics(["t"])
        assert isinstance(made["t"], MetadataUnavailable)
        assert seconds() == pytest.approx(auto_creation.WAIT_SECONDS_MAX)
        await asyncio.sleep(6)
        assert cluster.names == {"t"}

    simulated(story)


def test_a_name_that_nobody_waits_for_any_more_is_not_made() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.change_seconds = 1.0
        first = asyncio.create_task(cluster.creation.topics(["begun"]))
        await asyncio.sleep(0.1)
        gone = asyncio.create_task(cluster.creation.topics(["left", "shared"]))
        stays = asyncio.create_task(cluster.creation.topics(["shared"]))
        await asyncio.sleep(0.1)
        first.cancel()
        gone.cancel()
        assert isinstance((await stays)["shared"], Topic)
        assert cluster.names == {"begun", "shared"}
        assert not cluster.creation.awaited
        assert isinstance((await cluster.creation.topics(["left"]))["left"], Topic)

    simulated(story)


def test_what_waits_is_bounded() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.change_seconds = 2.0
        tasks = []
        for number in range(200):
            names = [f"t{number}-{index}" for index in range(100)]
            tasks.append(asyncio.create_task(cluster.creation.topics(names)))
            await asyncio.sleep(0)
        assert len(cluster.creation.awaited) <= auto_creation.NAMES_MAX + auto_creation.NAMES_TOGETHER_MAX
        answers = [outcome for made in await asyncio.gather(*tasks) for outcome in made.values()]
        refused = [it for it in answers if isinstance(it, MetadataUnavailable) and "too many" in str(it)]
        assert len(refused) >= 20_000 - auto_creation.NAMES_MAX - auto_creation.NAMES_TOGETHER_MAX
        await asyncio.sleep(100)
        assert not cluster.creation.awaited
        assert max(map(len, cluster.changes)) == auto_creation.NAMES_TOGETHER_MAX

    simulated(story)


def test_whatever_fails_everybody_is_answered() -> None:
    async def story(cluster: Cluster) -> None:
        async def broken(wanted: Sequence[NewTopic], **_options: Any) -> list[Topic | MainstemError]:
            raise RuntimeError("a fault of our own")

        cluster.create_topics = broken  # type: ignore[method-assign]
        made = await cluster.creation.topics(["a", "b"])
        assert all(isinstance(it, MetadataUnavailable) for it in made.values())
        assert not cluster.creation.awaited

    simulated(story)


# as clients meet it


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_reserved_names_are_never_made_by_asking(name: str) -> None:
    async def scenario() -> None:
        fakes = make_broker()
        found, other = elements((await ask(fakes, name, "mine")).topics)
        assert (found.error_code, other.error_code) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, OK)
        assert {topic.name for topic in fakes.metadata.topics()} == {"mine"}

    asyncio.run(scenario())


def test_one_request_is_one_change_however_many_topics_it_asks_for() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        changes: list[int] = []
        create = fakes.metadata.create_topics

        async def counted(wanted: Sequence[NewTopic], **options: Any) -> list[Topic | MainstemError]:
            changes.append(len(wanted))
            return await create(wanted, **options)

        fakes.metadata.create_topics = counted  # type: ignore[method-assign]
        names = [f"t{number}" for number in range(metadata.TOPICS_CREATED_MAX)]
        response = await ask(fakes, *names)
        assert [topic.error_code for topic in elements(response.topics)] == [OK] * len(names)
        assert [topic.name for topic in elements(response.topics)] == names
        assert changes == [metadata.TOPICS_CREATED_MAX]

    asyncio.run(scenario())


def test_a_request_for_topics_without_a_leader_is_bounded_like_any_other() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        fakes.store.create = missing(fakes)  # type: ignore[method-assign]
        names = [f"t{number}" for number in range(3 * metadata.TOPICS_CREATED_MAX)]
        response = await ask(fakes, *names)
        assert sum(topic.error_code == ASK_AGAIN for topic in elements(response.topics)) == metadata.TOPICS_CREATED_MAX
        assert len(list(fakes.metadata.topics())) == metadata.TOPICS_CREATED_MAX
        await fakes.broker.auto_creation.close()

    asyncio.run(scenario())


def missing(fakes: Fakes) -> Callable[..., Coroutine[Any, Any, None]]:
    async def create(ranges: Sequence[QueueRange]) -> None:
        raise LeaderMissing("nobody leads")

    return create


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # states of others
        await asyncio.sleep(0.01)


def test_the_wait_ends_when_the_client_is_gone() -> None:
    async def scenario() -> None:
        async with serving() as node:
            begun, go_on = asyncio.Event(), asyncio.Event()
            create = node.metadata.create_topics

            async def held(wanted: Sequence[NewTopic], **options: Any) -> list[Topic | MainstemError]:
                begun.set()
                await go_on.wait()
                return await create(wanted, **options)

            node.metadata.create_topics = held  # type: ignore[method-assign]
            other = asyncio.create_task(ask(node, "first"))
            await begun.wait()
            client = await node.connect()
            request = MetadataRequest(topics=(MetadataRequestTopic(name="left"),), allow_auto_topic_creation=True)
            await client.request(request, 9)
            creation = node.broker.auto_creation
            await until(lambda: creation.awaited.get("left") == 1)
            await client.close()
            await until(lambda: creation.awaited["left"] == 0)
            go_on.set()
            await other
            await until(lambda: not creation.awaited)
            assert {topic.name for topic in node.metadata.topics()} == {"first"}

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


# CreateTopics


def test_topics_of_one_request_are_answered_each_for_itself_where_a_leader_is_missing() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        stuck = {"b"}
        create = fakes.store.create

        async def partly(ranges: Sequence[QueueRange]) -> None:
            names = {topic.number: topic.name for topic in fakes.metadata.topics()}
            if stuck & {names[one.topic_number] for one in ranges}:
                raise LeaderMissing("nobody leads")
            await create(ranges)

        fakes.store.create = partly  # type: ignore[method-assign]
        fakes.metadata.leaders = LeaderOf(fakes, stuck)
        wanted = tuple(
            CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
            for name in "abc"
        )
        request = CreateTopicsRequest(topics=wanted, timeout_ms=1000)
        response = await create_topics.handle(fakes.broker, request, call(5))
        answered = codec.read(CreateTopicsResponse, 5, codec.write(response, 5))
        codes = {topic.name: topic.error_code for topic in elements(answered.topics)}
        assert codes == {"a": OK, "b": ErrorCode.REQUEST_TIMED_OUT, "c": OK}

    asyncio.run(scenario())


class LeaderOf(dict[int, int]):
    """Nobody leads the topics of these names."""

    def __init__(self, fakes: Fakes, stuck: set[str]) -> None:
        super().__init__()
        self._fakes = fakes
        self._stuck = stuck

    def get(self, queue_id: int, default: Any = None) -> Any:
        names = {topic.queue_id(0): topic.name for topic in self._fakes.metadata.topics()}
        return -1 if names.get(queue_id) in self._stuck else default


def test_a_change_that_hangs_holds_up_changes_of_its_own_topics_alone() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        hangs = asyncio.Event()
        create = fakes.store.create

        async def slow(ranges: Sequence[QueueRange]) -> None:
            names = {topic.number: topic.name for topic in fakes.metadata.topics()}
            if "slow" in {names[one.topic_number] for one in ranges}:
                await hangs.wait()
            await create(ranges)

        fakes.store.create = slow  # type: ignore[method-assign]

        async def made(name: str) -> int:
            topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
            request = CreateTopicsRequest(topics=(topic,), timeout_ms=1000)
            response = await create_topics.handle(fakes.broker, request, call(5))
            return elements(codec.read(CreateTopicsResponse, 5, codec.write(response, 5)).topics)[0].error_code

        hanging = asyncio.create_task(made("slow"))
        await asyncio.sleep(0)
        same = asyncio.create_task(made("slow"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await made("quick") == OK
            assert elements((await ask(fakes, "asked-for")).topics)[0].error_code == OK
        assert not hanging.done()
        assert not same.done()
        hangs.set()
        assert await hanging == OK
        assert await same == ErrorCode.TOPIC_ALREADY_EXISTS

    asyncio.run(scenario())
