"""Administrators describe, list and delete groups of all kinds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mainstem.broker.consumer_groups import offsets
from mainstem.broker.consumer_groups.events.event_frame import EventFrame
from mainstem.broker.consumer_groups.long_work import Current, Slices, in_pieces
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroupState
from mainstem.broker.consumer_groups.modern import described
from mainstem.broker.consumer_groups.shared import share_described
from mainstem.broker.consumer_groups.shared.share_group import FoundedShareGroup
from mainstem.broker.consumer_groups.step import PendingRecord, ShareRecord, Step
from mainstem.broker.consumer_groups.streams import streams_described
from mainstem.broker.consumer_groups.streams.streams_step import StreamsStep
from mainstem.broker.machines.result import Moment, Result, Ticket
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_administration import (
    DeletableGroupResult,
    DescribedGroup,
    DescribedGroupMember,
    ListedGroup,
)
from mainstem.protocol.messages.share_group_records import ShareGroupMetadataKey, ShareGroupMetadataValue


class AdministrationEvents:
    """Of one machine."""

    def __init__(self, frame: EventFrame) -> None:
        self._frame = frame
        self._state = frame.state

    def describe(self, ticket: Ticket, group_ids: Iterable[str], now: Moment) -> Result:
        """The answer is a list of `DescribedGroup`, in the order asked for."""
        step = self._frame.begin(now)
        asked = list(group_ids)
        step.begin(lambda current: self._all_described(current, ticket, asked))
        return self._frame.finish(step)

    def _all_described(self, current: Current[Step], ticket: Ticket, group_ids: Sequence[str]) -> Slices[None]:
        found = []
        for group_id in group_ids:
            found.append((yield from self._described(group_id)))
        current.step.answer(ticket, found)

    def describe_modern(self, ticket: Ticket, group_ids: Iterable[str], now: Moment) -> Result:
        """The answer is a list of `DescribedConsumerGroup`, in the order asked for."""
        step = self._frame.begin(now)
        asked = list(group_ids)
        step.begin(lambda current: self._all_modern_described(current, ticket, asked))
        return self._frame.finish(step)

    def _all_modern_described(self, current: Current[Step], ticket: Ticket, group_ids: Sequence[str]) -> Slices[None]:
        found = []
        for group_id in group_ids:
            group = self._state.modern.get(group_id)
            if group is not None:
                found.append((yield from described.described(group, self._frame.topics)))
                continue
            what = "is not a consumer group" if group_id in self._state.classic else "not found"
            why = f"Group {group_id} {what}."
            found.append(described.not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND, why))
        current.step.answer(ticket, found)

    def describe_shared(self, ticket: Ticket, group_ids: Iterable[str], now: Moment) -> Result:
        """The answer is a list of `DescribedShareGroup`, in the order asked for."""
        step = self._frame.begin(now)
        found = []
        for group_id in group_ids:
            group = self._state.shared.get(group_id)
            if group is not None:
                found.append(share_described.described_share(group, self._frame.topics))
                continue
            what = "is not a share group" if self._state.any_group(group_id) is not None else "not found"
            why = f"Group {group_id} {what}."
            found.append(share_described.share_not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND, why))
        step.answer(ticket, found)
        return self._frame.finish(step)

    def describe_streams(self, ticket: Ticket, group_ids: Iterable[str], now: Moment) -> Result:
        """The answer is a list of `DescribedStreamsGroup`, in the order asked for."""
        step = self._frame.begin(now)
        found = []
        for group_id in group_ids:
            group = self._state.streams.get(group_id)
            if group is not None:
                found.append(streams_described.described_streams(StreamsStep(step, group, self._frame.topics)))
                continue
            other = self._state.any_group(group_id) is not None or group_id in self._state.shared
            why = f"Group {group_id} {'is not a streams group' if other else 'not found'}."
            found.append(streams_described.streams_not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND, why))
        step.answer(ticket, found)
        return self._frame.finish(step)

    def list_groups(self, ticket: Ticket, now: Moment) -> Result:
        """The answer is a list of `ListedGroup`."""
        step = self._frame.begin(now)
        listed = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type="classic",
            )
            for group in self._state.classic.values()
        ]
        listed += [described.listed(group) for group in self._state.modern.values()]
        listed += [streams_described.listed_streams(group) for group in self._state.streams.values()]
        listed += [share_described.listed_share(group) for group in self._state.shared.values()]
        step.answer(ticket, listed)
        return self._frame.finish(step)

    def delete_groups(self, ticket: Ticket, group_ids: Iterable[str], now: Moment) -> Result:
        """The answer is a list of `DeletableGroupResult`, in the order asked for."""
        step = self._frame.begin(now)
        results = []
        for group_id in group_ids:
            shared = self._state.shared.get(group_id)
            group = self._state.any_group(group_id)
            code = ErrorCode.NONE
            if shared is not None:
                code = ErrorCode.NONE if shared.empty else ErrorCode.NON_EMPTY_GROUP
                for share_key in shared.tombstones() if shared.empty else ():
                    step.write(ShareRecord(share_key, None))
            elif group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif not group.empty:
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                offsets.delete_group(step, group, self._state.offsets)
                for key, _ in list(self._state.pending.of_group(group_id)):
                    step.write(PendingRecord(key, None))
            results.append(DeletableGroupResult(group_id=group_id, error_code=code))
        step.answer(ticket, results)
        return self._frame.finish(step)

    def found_share_group(self, ticket: Ticket, group_id: str, now: Moment, *, looks: bool = False) -> Result:
        """Somebody is about to say where a share group begins: found it if there is none. `looks`: only say whether
        that could be. The answer is a `FoundedShareGroup`; with an error the group is as it was."""
        step = self._frame.begin(now)
        group, code = self._state.shared.get(group_id), ErrorCode.NONE
        if group is not None:
            code = ErrorCode.NONE if group.empty else ErrorCode.NON_EMPTY_GROUP
        elif self._state.any_group(group_id) is not None:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif not self._frame.has_room:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif not looks:
            value = ShareGroupMetadataValue(epoch=1, metadata_hash=0)
            step.write(ShareRecord(ShareGroupMetadataKey(group=group_id), value))
            group = self._state.shared[group_id]
        step.answer(ticket, FoundedShareGroup(code, 0 if group is None else group.epoch))
        return self._frame.finish(step)

    def _described(self, group_id: str) -> Slices[DescribedGroup]:
        group = self._state.classic.get(group_id)
        other = self._state.any_group(group_id) is not None or group_id in self._state.shared
        if group is None:
            return DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} {'is not a classic group' if other else 'not found'}.",
                group_id=group_id,
                group_state=ConsumerGroupState.DEAD.value,
                protocol_type="",
                protocol_data="",
                members=(),
            )
        protocol = group.protocol if group.state is ConsumerGroupState.STABLE else None
        whole = DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol or "",
            members=(),
        )
        now = [(member, member.assignment) for member in group.members.values()]
        members: list[DescribedGroupMember] = []
        for some in in_pieces(now):
            members += [member.described(protocol, assignment) for member, assignment in some]
            yield len(some)
        return replace(whole, members=tuple(members))
