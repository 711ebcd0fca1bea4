"""Work that a driver gives to Spark's executors: packed messages in, packed messages out, each by a task of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import SparkSession

from mainstem.pipeline.spark.kept_modules import keeping_modules


def on_executors(spark: SparkSession, function: Callable[[bytes], bytes], work: Sequence[bytes]) -> list[bytes]:
    """The results of `function` for each, in their order. Raises Spark's errors."""
    context: Any = spark.sparkContext
    found: list[bytes] = context.parallelize(work, len(work)).map(keeping_modules(function)).collect()
    return found
