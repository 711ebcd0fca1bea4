"""The Spark session of the split: settings, and the project's code for executors elsewhere.

Every setting has its reason beside it; all others are Spark's defaults.
"""

from __future__ import annotations

import logging
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

import mainstem

log = logging.getLogger(__name__)

CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",  # no second web server on the node
    "spark.ui.showConsoleProgress": "false",  # a bar that rewrites its line, in a log
    "spark.log.level": "WARN",
    "spark.task.maxFailures": "8",
    "spark.python.worker.reuse": "true",  # a worker costs a second to start
    # Beside a node the JVM may get nothing of the processor for half a minute (`embedded/spare_time.py`); with Spark's
    # 15 s, each trigger whose rows the driver asks for meanwhile would fail, and the splitter with it.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",  # there is no state to time out
    "spark.sql.streaming.minBatchesToRetain": "10",
    # Renames without FileContext: a trigger's own cost falls from 176 to 105 ms.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    "spark.sql.streaming.stopTimeout": "20s",
    # It plans each stage anew once the one before is done: a fifth of the JVM's time of a small compaction, whose
    # partitions are counted out before.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}

COMPACTION_POOL = "compaction"
POOLS = f"""<?xml version="1.0"?>
<allocations>
  <pool name="default">
    <schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>1000000</minShare>
  </pool>
  <pool name="{COMPACTION_POOL}">
    <schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>0</minShare>
  </pool>
</allocations>
"""
"""A pool below its share goes first: no task of a compaction begins while a task of the split or of a merge waits."""

FEW_THREADS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:CICompilerCount=1 -XX:ActiveProcessorCount=1"
"""No threads that collect or compile on every core at once, no optimising compiler for code that runs twice a
trigger, and no pools that count processors."""

LOCAL_JVM = f"{FEW_THREADS} -Xss512k -XX:ReservedCodeCacheSize=64m"
"""Beside a node the JVM only plans. Code that one compiler makes takes 30 MB at the most, of the 240
allowed."""


WORKER_START = Path(mainstem.__file__).parent / "pipeline" / "worker_start"
"""The directory whose module the local Python processes of Spark run first."""


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def start_session(
    master: str,
    *,
    local_dir: Path,
    driver_memory: str,
    name: str,
    extra: Mapping[str, str],
    jvm: str = "",
) -> SparkSession:
    """A session with the project's code at hand wherever tasks run. `local_dir` is Spark's scratch space,
    `jvm` holds more options of a local JVM."""
    root = str(Path(mainstem.__file__).parent.parent)
    # The planner's and the local tasks' Python processes are children of the JVM, which is a child of ours.
    path = [str(WORKER_START), root, os.environ.get("PYTHONPATH", "")]
    settings = dict(SETTINGS)
    if is_local(master):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LAUNCHER_OPTS"] = FEW_THREADS  # of a JVM that only finds out how to start the other
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.driver.extraJavaOptions"] = f"{LOCAL_JVM} {jvm}".rstrip()
    else:
        settings["spark.submit.pyFiles"] = str(package_code(local_dir / "mainstem.zip"))
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, path)))
    settings["spark.local.dir"] = str(local_dir)
    pools = local_dir / "pools.xml"
    pools.write_text(POOLS)
    settings["spark.scheduler.mode"] = "FAIR"
    settings["spark.scheduler.allocation.file"] = pools.absolute().as_uri()
    settings["spark.driver.memory"] = driver_memory
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**settings, **extra}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def stop_session(spark: SparkSession) -> None:
    """End Spark. If its JVM was killed there is nothing left to end, and the reason is known already."""
    try:
        spark.stop()
    except Exception as error:
        log.warning("Spark did not stop in order: %s", error)


def package_code(target: Path) -> Path:
    """The project's Python files as a zip that executors can import from."""
    root = Path(mainstem.__file__).parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, Path("mainstem") / path.relative_to(root))
    return target
