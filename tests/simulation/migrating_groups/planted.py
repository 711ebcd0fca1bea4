"""Bugs of members and of groups that change their protocol to plant, by `cluster.planted`, each found by a message of
its own. `whole.planted` has the bug of a classic group that takes offsets by any generation."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

from tests.simulation.cluster.planted import Plant

from mainstem.broker.consumer_groups.epochs.assigned_partitions import Partitions
from mainstem.broker.consumer_groups.epochs.epoch_member import CurrentAssignment
from mainstem.broker.consumer_groups.logged_state import LoggedState
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup
from mainstem.broker.consumer_groups.migration import conversion
from mainstem.broker.consumer_groups.modern import described, heartbeat
from mainstem.broker.consumer_groups.modern.group_changes import GroupStep
from mainstem.broker.consumer_groups.modern.reconciliation import reconcile
from mainstem.broker.consumer_groups.step import OffsetRecord
from mainstem.broker.consumer_groups.timers import TimerKind
from mainstem.broker.machines.result import Ticket
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import GroupMetadataValue


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


def _session_of_the_other_protocol() -> tuple[type, str, Any]:
    """In a group whose partitions the coordinator assigns, members of the classic protocol are missed as soon as those
    of the other one."""

    def restart_session(it: GroupStep, member_id: str) -> None:
        ends_ms = it.step.now.monotonic_ms + it.own.consumer_session_timeout_ms
        it.step.timers.set(it.timer(TimerKind.SESSION, member_id), ends_ms)

    return GroupStep, "restart_session", restart_session


def _epoch_begins_anew() -> tuple[ModuleType, str, Any]:
    """A group that becomes classic again forgets how far its epochs were: its generations begin at one."""
    downgraded = conversion.downgraded

    def anew(it: GroupStep) -> GroupMetadataValue | None:
        value = downgraded(it)
        return None if value is None else replace(value, generation=1)

    return conversion, "downgraded", anew


def _offsets_dropped_at_conversion() -> tuple[ModuleType, str, Any]:
    """A classic group that is upgraded loses its committed offsets with its record."""
    upgrade = conversion.upgrade

    def upgraded(it: GroupStep, group: ConsumerGroup) -> list[tuple[Ticket, str]]:
        waiting = upgrade(it, group)
        for key, _ in list(_state_of(it).offsets.of_group(group.group_id)):
            it.step.write(OffsetRecord(key, None))
        return waiting

    return conversion, "upgrade", upgraded


def _state_of(it: GroupStep) -> LoggedState:
    """That of the machine that makes this step."""
    state = getattr(it.step.replay, "__self__", None)
    assert isinstance(state, LoggedState), "the machine replays by its state"
    return state


def _never_classic_again() -> tuple[ModuleType, str, Any]:
    """A group goes on as it is when the last member of the new protocol has left it."""
    return conversion, "downgraded", lambda _it: None


MIGRATION_PLANTS: dict[str, Plant] = {
    "member-fenced-too-late": _member_fenced_too_late,
    "given-before-it-is-given-up": _given_before_it_is_given_up,
    "upgrade-forgets-owners": _upgrade_forgets_owners,
    "session-of-the-other-protocol": _session_of_the_other_protocol,
    "epoch-begins-anew": _epoch_begins_anew,
    "offsets-dropped-at-conversion": _offsets_dropped_at_conversion,
    "never-classic-again": _never_classic_again,
}

MIGRATION_BREAKS = dict.fromkeys(MIGRATION_PLANTS, "H")
"""As `cluster.planted.BREAKS`."""

MIGRATION_FOUND_BY = {
    "member-fenced-too-late": "a member was fenced too late: ",
    "given-before-it-is-given-up": "a partition is owned by two members at once: ",
    "upgrade-forgets-owners": "a partition changes its owner as the group's protocol: ",
    "session-of-the-other-protocol": "a member is removed while its session runs: ",
    "epoch-begins-anew": " do not go on: ",
    "offsets-dropped-at-conversion": " went back to -1 from ",
    "never-classic-again": " does not end in one protocol: ",
}
"""Per planted bug what the message that finds it says."""

MIGRATION_SHOWN_BY = {
    "session-of-the-other-protocol": ["transfer"],
}
"""Per planted bug the only faults that there are when it is looked for; of the others: `FAULTS` of the tests."""
