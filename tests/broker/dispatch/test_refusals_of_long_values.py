"""A topic with a config whose value is long and unprintable is refused alone: the answer has room for the message."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.broker.harness import call, serving

from mainstem.broker.handlers import create_topics
from mainstem.protocol import codec
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


def test_a_long_unprintable_config_is_an_invalid_one() -> None:
    config = CreatableTopicConfig(name="cleanup.policy", value="\0" * 12_000)
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=(), configs=(config,))
    request = CreateTopicsRequest(topics=(topic,), timeout_ms=1000, validate_only=False)

    async def story() -> None:
        async with serving() as node:
            answer = await create_topics.handle(node.broker, request, call(6))
            told: Any = codec.read(CreateTopicsResponse, 6, codec.write(answer, 6))
            assert told.topics[0].error_code == ErrorCode.INVALID_CONFIG

    asyncio.run(story())
