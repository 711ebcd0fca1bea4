"""Bounds how many offsets groups may have committed: clients choose the names of groups, and each may read every
partition there is. Offsets that are there may always be committed anew."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mainstem.bounded_log import BoundedLog
from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.offsets import Offsets
from mainstem.protocol.error_codes import ErrorCode

OF_GROUP_FULL = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
"""Kafka has it for commits that are too large for its log. Clients do not try again, which would help nobody."""
OF_NODE_FULL = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""As for a group that would be one too many: another group's offsets may expire meanwhile."""


class OffsetRoom:
    """Of one node. `held`: the offsets that all of its groups have; without `log` nobody is told."""

    def __init__(self, config: ConsumerGroupsConfig, held: Callable[[], int], log: BoundedLog | None = None) -> None:
        self._config = config
        self._held = held
        self._log = log

    def refusal(self, offsets: Offsets, group_id: str, more: int) -> ErrorCode:
        """Why a group may not have so many additional offsets; NONE: it may."""
        if not more:
            return ErrorCode.NONE
        of_group_max, of_node_max = self._config.group_offsets_max, self._config.offsets_max
        has = offsets.count_of(group_id)
        if has + more > of_group_max:
            self._tell(
                f"group {group_id[:200]!r} has {has} committed offsets and would have {more} more; "
                f"groups.group_offsets_max allows {of_group_max}: these commits are refused. Raise it if the group "
                "reads so many partitions, or delete the group's old offsets (mainstem group delete, OffsetDelete)"
            )
            return OF_GROUP_FULL
        held = self._held()
        if held + more > of_node_max:
            self._tell(
                f"group {group_id[:200]!r} would have {more} committed offsets more, and the node has {held}; "
                f"groups.offsets_max allows {of_node_max}: such commits are refused until others expire. Raise it if "
                "the node has memory (about 0.4 KB each), delete groups that nobody needs (mainstem group list, "
                "delete), or shorten groups.offsets_retention_minutes"
            )
            return OF_NODE_FULL
        return ErrorCode.NONE

    def _tell(self, what: str) -> None:
        if self._log is not None:
            self._log.report(logging.WARNING, f"consumer group coordinator: {what}")
