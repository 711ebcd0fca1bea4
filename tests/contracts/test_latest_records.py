"""The latest record of each key: found in Python as Spark finds it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from pyspark.sql import SparkSession
from tests.fakes.splitting.latest_records import latest_records

from mainstem.pipeline.merge.compact_task import KEYS_SCHEMA
from mainstem.pipeline.merge.compactor import latest
from mainstem.pipeline.spark.java import find_java
from mainstem.pipeline.spark.session import start_session
from mainstem.storage.compacting.compact_files import GOES_BIT, OFFSET_SHIFT, KeyColumns, nothing_of

pytestmark = [
    pytest.mark.skipif(bool(find_java().missing), reason="there is no Java for Spark"),
    pytest.mark.long,  # a start of Spark for one question, which the stories of compactions end to end ask as well
]

INPUTS = 5
RECORDS = 2_000


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    scratch: Path = tmp_path_factory.mktemp("spark")
    session = start_session("local[1]", local_dir=scratch, driver_memory="512m", name="latest", extra={})
    yield session
    session.stop()


@pytest.mark.parametrize("seed", range(3))
def test_of_each_key_the_latest_stays_unless_it_may_go(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    offsets = rng.sample(range(10 * RECORDS), RECORDS)
    rows = [
        (
            rng.randrange(3),
            rng.randrange(20),
            rng.choice([-(1 << 63), -1, 0, (1 << 63) - 1]),
            offset << OFFSET_SHIFT | (GOES_BIT if rng.random() < 0.3 else 0) | rng.randrange(INPUTS),
        )
        for offset in offsets
    ]
    columns = KeyColumns(*(numpy.array(column, numpy.int64) for column in zip(*rows, strict=True)))
    expected = latest_records([columns], INPUTS)
    nothing = list(zip(*(column.tolist() for column in nothing_of(INPUTS)), strict=True))
    found = latest(spark.createDataFrame(rows, KEYS_SCHEMA), spark.createDataFrame(nothing, KEYS_SCHEMA)).collect()
    assert sum(len(of_input.place) for of_input in expected) > INPUTS, "some stay"
    assert len(found) < RECORDS, "some go"
    for number, of_input in enumerate(expected):
        mine = sorted((row["queue"], row["place"]) for row in found if row["input"] == number)
        assert mine == list(zip(of_input.queue.tolist(), of_input.place.tolist(), strict=True))
