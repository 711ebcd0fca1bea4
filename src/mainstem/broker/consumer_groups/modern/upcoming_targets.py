"""A target assignment that is being made, in several steps, while the group goes on.

It counts as if it had been made in one go when it was begun: what it goes by is taken then. Members that have left
since have no part in it, although others have joined under their ids, and whoever has taken the place of a static
member has that one's part.
"""

from __future__ import annotations

from collections.abc import Mapping

from mainstem.broker.consumer_groups.epochs.assigned_partitions import Partitions
from mainstem.protocol.messages.consumer_group_records import ConsumerGroupMemberMetadataValue


class UpcomingTargets:
    """Of the group's epoch at the beginning, with what members said by then, and their targets before."""

    def __init__(
        self,
        epoch: int,
        members: Mapping[str, ConsumerGroupMemberMetadataValue],
        targets: Mapping[str, Partitions],
    ) -> None:
        self.epoch = epoch
        self.members = members
        self.targets = targets
        self._holders: dict[str, str | None] = {}
        """Of members that are here no more as they were: who has their part; None: they have left."""
        self._parts: dict[str, str] = {}
        """Whose part it is that a member has in place of its own."""

    def holder(self, member_id: str) -> str | None:
        """The present member that has this one's part."""
        return self._holders.get(member_id, member_id)

    def left(self, member_id: str) -> None:
        part = self._parts.pop(member_id, member_id)
        if self.holder(part) == member_id:
            self._holders[part] = None

    def replaced(self, old_member_id: str, member_id: str) -> None:
        part = self._parts.pop(old_member_id, old_member_id)
        if self.holder(part) == old_member_id:
            self._holders[part] = member_id
            self._parts[member_id] = part
