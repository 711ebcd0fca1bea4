"""The latest record of each key, and the markers that are empty: found in Python as Spark finds them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from pyspark.sql import SparkSession
from tests.fakes.splitting.latest_records import empty_markers, latest_records

from mainstem.pipeline.merge import compactor
from mainstem.pipeline.merge.compact_task import KEYS_SCHEMA, TRANSACTIONS_SCHEMA
from mainstem.pipeline.spark.java import find_java
from mainstem.pipeline.spark.session import start_session
from mainstem.storage.compacting.ended_markers import MARKER_BIT, TransactionColumns
from mainstem.storage.compacting.pass_places import GOES_BIT, OFFSET_SHIFT, KeyColumns, nothing_of

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
    others = spark.createDataFrame(nothing, KEYS_SCHEMA).select("queue", "place")
    found = compactor.latest(spark.createDataFrame(rows, KEYS_SCHEMA), others).collect()
    assert sum(len(of_input.place) for of_input in expected) > INPUTS, "some stay"
    assert len(found) < RECORDS, "some go"
    for number, of_input in enumerate(expected):
        mine = sorted((row["queue"], row["place"]) for row in found if row["input"] == number)
        assert mine == list(zip(of_input.queue.tolist(), of_input.place.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_markers_are_empty_that_do_not_follow_data_of_their_producer(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    rows = [
        (
            rng.randrange(3),
            rng.choice([0, 7, (1 << 63) - 1]),
            offset << OFFSET_SHIFT | (MARKER_BIT if rng.random() < 0.5 else 0) | rng.randrange(INPUTS),
        )
        for offset in rng.sample(range(10 * RECORDS), RECORDS)
    ]
    columns = TransactionColumns(*(numpy.array(column, numpy.int64) for column in zip(*rows, strict=True)))
    found = compactor.empty_markers(spark.createDataFrame(rows, TRANSACTIONS_SCHEMA)).collect()
    expected = empty_markers([columns])
    assert 0 < len(expected) < sum(place & MARKER_BIT != 0 for *_, place in rows)
    assert sorted((row["queue"], row["place"]) for row in found) == sorted(expected)
