"""Apache Kafka's jars from Maven Central, fetched once by `mvn dependency` and kept outside the tree."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.errors import BenchError

VERSION = "4.3.1"
"""The newest release of which Maven Central has every part, the performance tools included."""

FETCH_SECONDS_MAX = 600.0
BROKER = ("kafka_2.13", "kafka-tools")
"""A node, and the tools that come with it."""
_PROJECT = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>bench</artifactId><version>1</version>
  <dependencies>{}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>org.apache.kafka</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)


def fetch(cache: Path, name: str = "kafka", modules: Sequence[str] = BROKER) -> Path:
    """The directory with the jars of these modules, filled first if need be. Raises BenchError without Maven or
    network."""
    jars = cache / f"{name}-{VERSION}"
    if jars.exists():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise BenchError("Kafka's jars come by Maven, and there is no mvn on the PATH (Debian: apt install maven)")
    project = cache / "pom"
    project.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(_DEPENDENCY.format(module, VERSION) for module in modules)
    (project / "pom.xml").write_text(_PROJECT.format(dependencies))
    unfinished = cache / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={unfinished}"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX)
    if done.returncode != 0:
        raise BenchError(f"Maven could not fetch Kafka {VERSION}: {done.stdout.strip()[-800:]}")
    unfinished.rename(jars)
    return jars
