"""A Spark standalone cluster on loopback: a master and workers, from the pyspark wheel."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
from tests.end_to_end.processes import Commands
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
LOOPBACK = "127.0.0.1"

CORES = 2
"""Of all workers together."""


class SparkCluster:
    """`start` it; it ends with the `Commands` that own its processes."""

    def __init__(self, commands: Commands, directory: Path, workers: int = 1) -> None:
        """`directory`: of what the workers write, and their executors."""
        self._commands = commands
        self._directory = directory
        self._workers = workers
        self.master = ""
        """spark://…"""
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        master = self._run("master", "org.apache.spark.deploy.master.Master")
        self.master = self._logged("master", master, r"Starting Spark master at (spark://\S+)")
        for number in range(self._workers):
            name = self._name(number)
            worker = self._run(
                name,
                "org.apache.spark.deploy.worker.Worker",
                "--cores",
                str(max(1, CORES // self._workers)),
                "--memory",
                "1g",
                "--work-dir",
                str(self._directory / name),
                self.master,
            )
            self.workers.append(worker)
            self._logged(name, worker, r"(Successfully registered with master)")

    def executors(self) -> list[int]:
        """How many executors each worker has run so far."""
        return [len(list((self._directory / self._name(one)).glob("app-*/*"))) for one in range(self._workers)]

    def _name(self, number: int) -> str:
        return f"worker {number}"

    def _run(self, name: str, entry: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self._commands.start(
            name,
            [str(SPARK_CLASS), entry, "--host", LOOPBACK, "--port", "0", "--webui-port", "0", *arguments],
            {
                "SPARK_LOCAL_IP": LOOPBACK,
                "SPARK_PUBLIC_DNS": LOOPBACK,
                "SPARK_NO_DAEMONIZE": "1",
                "SPARK_DAEMON_MEMORY": "256m",
                "PYSPARK_PYTHON": sys.executable,
            },
        )

    def _logged(self, name: str, process: subprocess.Popen[bytes], pattern: str) -> str:
        """The line of the log, once it is there."""

        def found() -> re.Match[str] | None:
            assert process.poll() is None, self._commands.log(name)
            return re.search(pattern, self._commands.log(name))

        match: re.Match[str] = eventually(found, seconds=PATIENCE_SECONDS, what=f"{name}: {pattern}")
        return match[1]


def split_options(executor_memory: str = "512m") -> Sequence[str]:
    """The settings that `mainstem split run` needs so that driver and executors meet on loopback."""
    return ("--conf", f"spark.driver.host={LOOPBACK}", "--conf", f"spark.executor.memory={executor_memory}")
