"""The module that Spark's Python processes run first: pyspark as it is installed, in place of the zip that each would
compile."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark

from mainstem.pipeline.spark.session import WORKER_START

ZIP = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"


def worker(code: str, *path: Path) -> list[str]:
    """The words a Python process prints that Spark would start with this path."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_zip_of_the_installed_pyspark_is_passed_over() -> None:
    assert ZIP.exists()
    code = "import pyspark; print(pyspark.__file__)"
    assert worker(code, ZIP) == [str(ZIP / "pyspark" / "__init__.py")]
    assert worker(code, ZIP, WORKER_START) == [pyspark.__file__]


def test_the_zip_of_another_spark_stays(tmp_path: Path) -> None:
    other = tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip"
    other.parent.mkdir(parents=True)
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
    code = "import pyspark; print(pyspark.__file__)"
    assert worker(code, other, WORKER_START) == [str(other / "pyspark" / "__init__.py")]


def test_what_the_site_customizes_is_done_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    code = "import sitecustomize, sys; print(sitecustomize.__file__, *sys.path)"
    done, file, *path = worker(code, ZIP, WORKER_START, tmp_path)
    assert (done, file) == ("customized", str(tmp_path / "sitecustomize.py"))
    assert not {str(WORKER_START), str(ZIP)} & set(path)
