"""Spark's shuffle has as many partitions as the bytes of a pass are worth."""

from __future__ import annotations

from mainstem.pipeline.merge.compactor import PARTITIONS_MAX, SHUFFLED_BYTES, shuffle_partitions


def test_a_small_pass_is_one_task_and_a_large_one_has_no_more_than_sparks_own() -> None:
    assert shuffle_partitions(0) == 1
    assert shuffle_partitions(SHUFFLED_BYTES) == 1
    assert shuffle_partitions(SHUFFLED_BYTES + 1) == 2
    assert shuffle_partitions(4 << 30) == 64
    assert shuffle_partitions(1 << 60) == PARTITIONS_MAX
