"""The requests by which administrators describe, list and delete groups of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mainstem.broker.consumer_groups.modern.described import not_described
from mainstem.broker.consumer_groups.requests.submission import Submission
from mainstem.broker.consumer_groups.shared.share_described import share_not_described
from mainstem.broker.consumer_groups.shared.share_group import FoundedShareGroup
from mainstem.broker.consumer_groups.streams.streams_described import streams_not_described
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import DescribedConsumerGroup
from mainstem.protocol.messages.group_administration import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from mainstem.protocol.messages.share_groups import DescribedShareGroup
from mainstem.protocol.messages.streams_groups import DescribedStreamsGroup


class AdministrationRequests:
    """To the coordinator of one node."""

    def __init__(self, submission: Submission) -> None:
        self._submission = submission
        self._served = submission.served

    async def describe_groups(self, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        found = await self._submission.answer_of_each(
            request.groups,
            lambda names, machine, ticket, now: machine.administration.describe(ticket, names, now),
            _refused_description,
        )
        return DescribeGroupsResponse(groups=tuple(found[group_id] for group_id in request.groups))

    async def describe_consumer_groups(self, group_ids: Sequence[str]) -> list[DescribedConsumerGroup]:
        """The groups whose partitions the coordinator assigns, in the order asked for."""
        found = await self._submission.answer_of_each(
            group_ids,
            lambda names, machine, ticket, now: machine.administration.describe_modern(ticket, names, now),
            not_described,
        )
        return [found[group_id] for group_id in group_ids]

    async def describe_share_groups(self, group_ids: Sequence[str]) -> list[DescribedShareGroup]:
        """The share groups, in the order asked for."""
        found = await self._submission.answer_of_each(
            group_ids,
            lambda names, machine, ticket, now: machine.administration.describe_shared(ticket, names, now),
            share_not_described,
        )
        return [found[group_id] for group_id in group_ids]

    async def found_share_group(self, group_id: str, *, looks: bool = False) -> FoundedShareGroup:
        """See to it that there is a share group without members; `looks`: only say whether there could be."""
        return await self._submission.answer(
            group_id,
            lambda machine, ticket, now: machine.administration.found_share_group(ticket, group_id, now, looks=looks),
            lambda code: FoundedShareGroup(code, 0),
        )

    async def describe_streams_groups(self, group_ids: Sequence[str]) -> list[DescribedStreamsGroup]:
        """The streams groups, in the order asked for."""
        found = await self._submission.answer_of_each(
            group_ids,
            lambda names, machine, ticket, now: machine.administration.describe_streams(ticket, names, now),
            streams_not_described,
        )
        return [found[group_id] for group_id in group_ids]

    async def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """The consumer groups of the partitions that this node serves, filtered as the request says."""
        self._served.look()
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        groups: list[ListedGroup] = []
        for partition in list(self._served.partitions.values()):
            try:
                found: list[ListedGroup] = await partition.submit(
                    lambda machine, ticket, now: machine.administration.list_groups(ticket, now)
                )
            except CoordinatorRefusal as refusal:
                if refusal.code is not ErrorCode.NOT_COORDINATOR:  # other nodes answer for those
                    return ListGroupsResponse(error_code=refusal.code, groups=())
                continue
            groups += [
                group
                for group in found
                if (not states or group.group_state.lower() in states)
                and (not types or group.group_type.lower() in types)
            ]
            await asyncio.sleep(0)  # each partition may have thousands
        return ListGroupsResponse(error_code=ErrorCode.NONE, groups=tuple(groups))

    async def delete_groups(self, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        results = await self._submission.answer_of_each(
            request.groups_names,
            lambda names, machine, ticket, now: machine.administration.delete_groups(ticket, names, now),
            lambda name, code: DeletableGroupResult(group_id=name, error_code=code),
        )
        return DeleteGroupsResponse(results=tuple(results.values()))


def _refused_description(group_id: str, code: ErrorCode) -> DescribedGroup:
    return DescribedGroup(
        error_code=code, group_id=group_id, group_state="", protocol_type="", protocol_data="", members=()
    )
