"""Finds out whether Spark can run here: the installed Java, whether pyspark is installed, and what to install if it
is not."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from typing import NamedTuple

from mainstem.pipeline.errors import JavaMissing

JAVA_VERSION_MIN = 17
VERSION_SECONDS_MAX = 20.0

INSTALL_JAVA = f"Install Java {JAVA_VERSION_MIN} or newer (Debian: apt-get install openjdk-17-jre-headless)"
INSTALL_PYSPARK = "Install Spark for Python: pip install 'mainstem[spark]'"


class Java(NamedTuple):
    """The Java that was found, or why Spark cannot use it."""

    path: str = ""
    version: int = 0
    """The major one."""
    missing: str = ""
    """The missing part and how to install it; empty: nothing is missing."""
    release: str = ""
    """Its version as it reports it, such as 17.0.15."""


def find_java(environment: dict[str, str] | None = None) -> Java:
    """The Java that Spark would take: that of `JAVA_HOME`, else the one on the path. Runs `java -version`:
    call it in a thread from an event loop."""
    variables = dict(os.environ) if environment is None else environment
    home = variables.get("JAVA_HOME", "")
    path = f"{home}/bin/java" if home else shutil.which("java", path=variables.get("PATH")) or ""
    if not path or not os.access(path, os.X_OK):
        where = f"JAVA_HOME is {home}, which holds no bin/java" if home else "there is no java on the path"
        return Java(missing=f"{where}. {INSTALL_JAVA}.")
    try:
        found = subprocess.run(
            [path, "-version"],
            env=variables,  # a copy: the process would read the environment while a thread that starts Spark sets it
            capture_output=True, text=True, check=True, timeout=VERSION_SECONDS_MAX,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return Java(path, missing=f"{path} does not run: {error}. {INSTALL_JAVA}.")
    match = re.search(r'version "(?:1\.)?((\d+)[\w.+-]*)', found.stderr + found.stdout)
    version = int(match[2]) if match else 0
    if version < JAVA_VERSION_MIN:
        return Java(path, version, f"{path} is Java {version or 'of unknown version'}. {INSTALL_JAVA}.")
    return Java(path, version, release=match[1] if match else "")


def spark_missing() -> str:
    """The missing Python packages of Spark and how to install them; empty when none is missing."""
    absent = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} cannot be imported. {INSTALL_PYSPARK}." if absent else ""


def require_java() -> Java:
    """Raises `JavaMissing` unless a split can run here."""
    java = find_java()
    if missing := " ".join(filter(None, (java.missing, spark_missing()))):
        raise JavaMissing(f"Spark cannot run here: {missing}")
    return java
