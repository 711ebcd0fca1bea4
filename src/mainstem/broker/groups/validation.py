"""Checks that several requests share; each gives Kafka's error code, NONE when all is well."""

from __future__ import annotations

from mainstem.broker.groups.group import ConsumerGroup
from mainstem.protocol.error_codes import ErrorCode


def member_error(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """Checks that a request comes from a present member, and from the newest holder of its instance id."""
    if instance_id is not None:
        holder = group.static_members.get(instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def generation_error(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    """`member_error`, and a check that the member knows the present generation."""
    code = member_error(group, member_id, instance_id)
    if code is ErrorCode.NONE and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return code
