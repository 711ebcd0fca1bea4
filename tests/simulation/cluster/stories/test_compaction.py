"""Clusters some of whose topics are compacted, under random faults: passes are killed and lose their leases, come too
late and again, and replicas that are compacted differently take leaderships and snapshots from each other (L)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.simulation.cluster.compacted import CompactedQueue
from tests.simulation.cluster.faults import MERGE_CRASH
from tests.simulation.cluster.planted import planted
from tests.simulation.cluster.run import COMPACTION, LEFT_BEHIND, Run, play
from tests.simulation.find import more_at_length
from tests.simulation.oracle import Violation

from mainstem.model import TopicSettings
from mainstem.protocol.records import NewRecord, build_batch

SEEDS = 60
CHUNK = 2
MESSAGES = {
    "tombstone-gone-early": "a tombstone stays",
    "tombstone-leaves-its-value": "an older one; it was written last at",
    "batch-lost-in-a-rewrite": "it is the latest of its key",
    "batch-left-out-of-a-log": "no batch has offset",
}
"""The messages for bugs in compactions."""


@pytest.mark.parametrize("first", more_at_length(range(1000, 1000 + SEEDS, CHUNK)))
def test_the_latest_record_of_each_key_stays_under_random_faults(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + CHUNK):
        play(seed, tmp_path / str(seed), faults=[COMPACTION])


@pytest.mark.parametrize("first", more_at_length(range(2000, 2000 + SEEDS, CHUNK), 0))  # the next test plays some
def test_no_older_value_comes_back_with_a_replica_that_was_away(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + CHUNK):
        play(seed, tmp_path / str(seed), faults=[COMPACTION, LEFT_BEHIND, "crash"])


def test_replicas_that_were_away_take_snapshots_of_what_was_compacted(tmp_path: Path) -> None:
    snapshots = 0
    for seed in range(2011, 2041):  # the first of these have most of them
        snapshots += play(seed, tmp_path / str(seed), faults=[COMPACTION, LEFT_BEHIND, "crash"]).snapshots
        if snapshots > 3:
            break
    assert snapshots > 3


def test_passes_are_recorded_and_killed_and_come_too_late(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    gone = removed_bytes = 0

    def is_enough() -> bool:
        often = all(seen[what] > 3 for what in ("killed", "lost its lease", "refused"))
        return often and seen["compacted"] > 20 and gone > 500 and removed_bytes > 100_000

    for seed in range(17, 33):
        (directory := tmp_path / str(seed)).mkdir()
        run = Run(seed, directory, seconds=8.0, faults=[COMPACTION, MERGE_CRASH, "transfer"])
        seen.update(run.play().compactions)
        gone += sum(len(queue.gone) for queue in run.cluster.history.compacted.values())
        removed_bytes += sum(compactors.removed_bytes for compactors in run.compactors.values())
        if is_enough():
            break
    assert is_enough(), (seen, gone, removed_bytes)


@pytest.mark.long
@pytest.mark.parametrize("name", MESSAGES)
def test_planted_bugs_of_compactions_are_found_by_their_own_messages(name: str, tmp_path: Path) -> None:
    said = []
    with planted(name):
        for seed in range(1, 9):
            try:
                play(seed, tmp_path / str(seed), faults=[COMPACTION, "transfer"])
            except Violation as violation:
                said.append(str(violation))
                if violation.breaks == "L" and MESSAGES[name] in said[-1]:
                    return
    raise AssertionError(f"nobody says {MESSAGES[name]!r}: {said}")


# --- the check itself -------------------------------------------------------------------------------------------------

VALUE, TOMBSTONE = b"value", None


def queue_of(*records: tuple[bytes | None, bytes | None]) -> CompactedQueue:
    """Has these keys and values, each in a batch of its own, and was compacted at 1,000 ms, up to the last but one."""
    queue = CompactedQueue(7, TopicSettings(delete_retention_ms=500, min_compaction_lag_ms=100))
    for offset, (key, value) in enumerate(records):
        queue.committed(offset, build_batch([NewRecord(10 + offset, key, value)]).data)
    queue.handed_in("node 1", 1000, len(records) - 1, len(records) - 2)
    return queue


def test_what_has_a_later_record_below_the_clean_end_may_be_gone() -> None:
    queue = queue_of((b"a", VALUE), (b"b", VALUE), (b"a", VALUE), (None, VALUE), (b"b", VALUE))
    queue.check_gone("node 1", 0, 1)
    for offset, why in ((1, "the latest of its key"), (2, "the latest of its key"), (3, "no key"), (4, "no pass")):
        with pytest.raises(Violation, match=why):
            queue.check_gone("node 1", offset, offset + 1)


def test_a_later_record_in_another_write_group_takes_nothing_away() -> None:
    queue = queue_of((b"a", VALUE), (b"b", VALUE))
    for offset, group in ((2, 1), (3, 0)):
        queue.committed(offset, build_batch([NewRecord(12, b"a" if group else b"b", VALUE)]).data, group)
    queue.handed_in("node 1", 1000, 5, 3)
    queue.check_gone("node 1", 1, 2)
    with pytest.raises(Violation, match="the latest of its key in write group 0"):
        queue.check_gone("node 1", 0, 1)


def test_a_tombstone_may_be_gone_when_its_time_is_over_and_no_older_value_is_there_then() -> None:
    queue = queue_of((b"a", VALUE), (b"a", TOMBSTONE), (b"b", VALUE), (b"b", VALUE))
    with pytest.raises(Violation, match="a tombstone stays 500 ms"):
        queue.check_gone("node 1", 1, 2)
    queue.handed_in("node 2", 1499, 4, 3)
    with pytest.raises(Violation, match="a tombstone stays 500 ms"):
        queue.check_gone("node 1", 1, 2)
    queue.handed_in("node 2", 1500, 4, 3)
    queue.check_gone("node 1", 1, 2)
    queue.check_values("node 1", [3], 0, 4)
    queue.check_values("node 1", [0, 1, 2, 3], 0, 4)
    with pytest.raises(Violation, match="an older one; it was written last at 1, a tombstone"):
        queue.check_values("node 1", [0, 2, 3], 0, 4)
    with pytest.raises(Violation, match="an older one; it was written last at 3, a value"):
        queue.check_values("node 1", [2], 0, 4)


def test_a_pass_that_takes_what_is_too_young_is_found() -> None:
    queue = queue_of((b"a", VALUE), (b"a", VALUE), (b"a", VALUE))
    queue.committed(3, build_batch([NewRecord(1950, b"a", VALUE)]).data)
    with pytest.raises(Violation, match=r"min\.compaction\.lag\.ms is 100"):
        queue.handed_in("node 1", 2000, 4, 3)
    queue.handed_in("node 1", 2050, 4, 3)
