"""Metrics of share groups: by group, for so many of them; a group that is deleted makes room for another."""

from __future__ import annotations

from uuid import UUID

from mainstem.broker.machines.result import Moment
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.share_groups.records import WindowKey
from mainstem.broker.share_groups.share_partition import BatchSpan
from mainstem.broker.share_groups.share_statistics import GROUPS_TOLD_MAX, OTHERS, ShareCounts, samples_of
from mainstem.broker.share_groups.state_machine import LogBounds, ReadBatches, ShareStateMachine, WantedRecords
from mainstem.protocol.messages.share_fetch import ACCEPT, BATCH_OPTIMIZED, REJECT, AcknowledgementBatch

NOW = Moment(1_000, 1_000)
CONFIG = ShareGroupsConfig(auto_offset_reset="earliest")


def read(machine: ShareStateMachine, group_id: str, records: int, *types: int) -> None:
    """A member of a group gets records, and acknowledges the first of them."""
    key = WindowKey(group_id, UUID(int=1), 0)
    machine.begin(1, key, LogBounds(0, records), NOW)
    batches = ReadBatches(0, [BatchSpan(0, records - 1)], records)
    machine.acquire(1, key, "ada", batches, WantedRecords(records, BATCH_OPTIMIZED), NOW)
    for offset, kind in enumerate(types):
        said = AcknowledgementBatch(first_offset=offset, last_offset=offset, acknowledge_types=(kind,))
        machine.acknowledge(1, key, "ada", [said], NOW)


def values(machine: ShareStateMachine, counts: ShareCounts) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = samples_of(machine.windows.items(), 0, counts)
    return {(sample.name.removeprefix("mainstem_share_group_"), sample.labels): sample.value for sample in found}


def test_each_group_has_its_own_counts() -> None:
    counts = ShareCounts()
    machine = ShareStateMachine(CONFIG, counts, lambda key: None)
    read(machine, "busy", 10, ACCEPT, ACCEPT, REJECT)
    read(machine, "calm", 2)
    told = values(machine, counts)
    busy, calm = ("group", "busy"), ("group", "calm")
    assert told["acquisitions_total", (busy,)] == 10
    assert told["acknowledgements_total", (busy, ("type", "accept"))] == 2
    assert told["acknowledgements_total", (busy, ("type", "reject"))] == 1
    assert told["archived_total", (busy,)] == 1
    assert told["records_acquired", (busy,)] == 7
    assert told["acquisitions_total", (calm,)] == 2
    assert told["acknowledgements_total", (calm, ("type", "accept"))] == 0


def test_groups_beyond_the_bound_stand_together() -> None:
    counts = ShareCounts()
    machine = ShareStateMachine(CONFIG, counts, lambda key: None)
    for number in range(GROUPS_TOLD_MAX + 2):
        read(machine, f"g{number}", 3)
    told = values(machine, counts)
    assert told["acquisitions_total", (("group", OTHERS),)] == 6
    assert told["records_acquired", (("group", OTHERS),)] == 6
    assert sum(name == "acquisitions_total" for name, _ in told) == GROUPS_TOLD_MAX + 1
    for number in range(2):
        machine.forget(1, f"g{number}", NOW)
    read(machine, "new", 4)
    assert values(machine, counts)["acquisitions_total", (("group", "new"),)] == 4
