"""Bugs of members and of groups that change their protocol to plant, by `cluster.planted`, each found by a message of
its own. `whole.planted` has the bug of a classic group that takes offsets by any generation."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tests.simulation.cluster.planted import Plant

from mainstem.broker.consumer_groups.epochs.assigned_partitions import Partitions
from mainstem.broker.consumer_groups.epochs.epoch_member import CurrentAssignment
from mainstem.broker.consumer_groups.migration import conversion
from mainstem.broker.consumer_groups.modern import described, heartbeat
from mainstem.broker.consumer_groups.modern.reconciliation import reconcile
from mainstem.protocol.error_codes import ErrorCode


def _member_fenced_too_late() -> tuple[ModuleType, str, Any]:
    """A group whose partitions the coordinator assigns takes offsets by any epoch, of members that are gone as well."""
    return described, "commit_error", lambda *_arguments: ErrorCode.NONE


def _given_before_it_is_given_up() -> tuple[ModuleType, str, Any]:
    """A member gets its target at once, whoever has its partitions."""

    def at_once(
        current: CurrentAssignment, target_epoch: int, target: Partitions, owned: Partitions | None, _is_free: Any
    ) -> CurrentAssignment:
        return reconcile(current, target_epoch, target, owned, lambda _topic_id, _index: True)

    return heartbeat, "reconcile", at_once


def _upgrade_forgets_owners() -> tuple[ModuleType, str, Any]:
    """When a classic group is upgraded its members have nothing, as far as the coordinator knows."""
    return conversion, "assigned_in", lambda *_arguments: {}


MIGRATION_PLANTS: dict[str, Plant] = {
    "member-fenced-too-late": _member_fenced_too_late,
    "given-before-it-is-given-up": _given_before_it_is_given_up,
    "upgrade-forgets-owners": _upgrade_forgets_owners,
}

MIGRATION_BREAKS = dict.fromkeys(MIGRATION_PLANTS, "H")
"""As `cluster.planted.BREAKS`."""

MIGRATION_FOUND_BY = {
    "member-fenced-too-late": "a member was fenced too late: ",
    "given-before-it-is-given-up": "a partition is owned by two members at once: ",
    "upgrade-forgets-owners": "a partition changes its owner as the group's protocol: ",
}
"""Per planted bug what the message that finds it says."""
