"""One node per module, one topic per test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

SETTINGS = ("pipeline.mode=off", "groups.session_timeout_ms_min=1000", "groups.lag_interval_ms=200")
"""No splitter, which these tests do not need, no wait for members that do not come, and less for those that die;
metrics of the lag of groups soon."""


MakeTopic = Callable[..., str]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("node"), *SETTINGS)
    try:
        yield serving.start()
    finally:
        serving.close()


@pytest.fixture(scope="module")
def bootstrap(node: Serving) -> str:
    return node.kafka


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, **KEEP_TRYING})


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name nothing else bears: for a topic or a group."""
    return f"{request.node.originalname.removeprefix('test_')[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_topic(admin: AdminClient, name: str) -> MakeTopic:
    """`make_topic(partitions=1, **configs)`: the name of a new topic; `_` in a config's name stands for `.`."""
    numbers = iter(range(100))

    def make(partitions: int = 1, **configs: object) -> str:
        topic = f"{name}-{next(numbers)}"
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        created = admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])
        created[topic].result(PATIENCE_SECONDS)
        return topic

    return make


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A topic of one partition with Kafka's defaults."""
    return make_topic()
