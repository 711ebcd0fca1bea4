"""The first request about a share group's offsets makes the topic of their state, and waits until it is loaded."""

from __future__ import annotations

import asyncio

from tests.broker.harness import call, make_broker
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.handlers import alter_share_group_offsets, describe_share_group_offsets, find_coordinator
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import FindCoordinatorRequest
from mainstem.protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffset,
    AlterShareOffsetsTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
    DescribeShareOffsetsTopic,
)

START = 8


def test_a_group_that_nobody_knows_is_given_a_start_by_the_first_request() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        fakes = make_broker(loop)
        fakes.broker.groups.served.start()
        fakes.broker.shares.served.start()
        await fakes.topic()
        await find_coordinator.handle(fakes.broker, FindCoordinatorRequest(coordinator_keys=("g",)), call(4))
        await asyncio.sleep(1)  # the coordinator has read its own log
        altered = await alter_share_group_offsets.handle(
            fakes.broker,
            AlterShareGroupOffsetsRequest(
                group_id="g",
                topics=(
                    AlterShareOffsetsTopic(
                        topic_name="t", partitions=(AlterShareOffset(partition_index=0, start_offset=START),)
                    ),
                ),
            ),
            call(0),
        )
        assert altered.error_code == ErrorCode.NONE
        [[row]] = [topic.partitions for topic in altered.responses]
        assert row.error_code == ErrorCode.NONE
        described = await describe_share_group_offsets.handle(
            fakes.broker,
            DescribeShareGroupOffsetsRequest(
                groups=(
                    DescribeShareOffsetsGroup(
                        group_id="g", topics=(DescribeShareOffsetsTopic(topic_name="t", partitions=(0,)),)
                    ),
                )
            ),
            call(1),
        )
        [group] = described.groups
        [[told]] = [topic.partitions for topic in group.topics]
        assert (told.error_code, told.start_offset) == (ErrorCode.NONE, START)
        await fakes.broker.shares.served.close()
        await fakes.broker.groups.served.close()

    loop = SimulatedLoop()
    try:
        loop.run_until_complete(story())
    finally:
        loop.close()
