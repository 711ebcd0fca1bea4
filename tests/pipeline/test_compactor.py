"""Spark's shuffle has as many partitions as the bytes of a pass are worth."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mainstem.pipeline.merge.compact_task import FileWork
from mainstem.pipeline.merge.compactor import PARTITIONS_MAX, SHUFFLED_BYTES, Compactor, shuffle_partitions
from mainstem.pipeline.merge.merge_task import MergeSettings
from mainstem.storage.merging.merge_inputs import InputFile
from mainstem.storage.store_files.store_file import StoreFile

SETTINGS = MergeSettings(rpc="127.0.0.1:1", store_dir="/nowhere")


def test_a_small_pass_is_one_task_and_a_large_one_has_no_more_than_sparks_own() -> None:
    assert shuffle_partitions(0) == 1
    assert shuffle_partitions(SHUFFLED_BYTES) == 1
    assert shuffle_partitions(SHUFFLED_BYTES + 1) == 2
    assert shuffle_partitions(4 << 30) == 64
    assert shuffle_partitions(1 << 60) == PARTITIONS_MAX


class Begun(Exception):
    """Spark was given work."""


def test_a_pass_asks_spark_for_partitions_by_the_bytes_of_all_its_files() -> None:
    asked: dict[str, str] = {}

    def begun(*_work: object) -> None:
        raise Begun

    context = SimpleNamespace(
        setLocalProperty=lambda _name, _value: None,
        broadcast=lambda _value: SimpleNamespace(destroy=lambda: None),
        parallelize=begun,
    )
    spark: Any = SimpleNamespace(sparkContext=context, conf=SimpleNamespace(set=asked.__setitem__))
    node: Any = None
    works = [work(number, 3 * SHUFFLED_BYTES) for number in range(2)]
    with pytest.raises(Begun):
        Compactor(spark, node, SETTINGS)._run(works, has_transactions=False)  # noqa: SLF001
    assert asked["spark.sql.shuffle.partitions"] == "6"


def work(number: int, batch_bytes: int) -> bytes:
    name = f"{number}.pack"
    file = StoreFile(
        name=name, retention_class="forever", bytes=batch_bytes, batch_bytes=batch_bytes, batch_count=1,
        record_count=1, queue_count=1, min_timestamp=0, max_timestamp=0,
    )  # fmt: skip
    asked = FileWork(
        settings=SETTINGS, pass_id="pass", number=number, file=file, paths=InputFile(name, name, name), queues=b"",
        key=bytes(16), now_ms=0, covered=(),
    )  # fmt: skip
    return msgspec.msgpack.encode(asked)
