"""The archive of Spark's classes, and a JVM that starts although its archive does not fit."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pyspark
import pytest

from mainstem.pipeline.errors import ArchiveNotWritten
from mainstem.pipeline.spark.class_archive import archive_of, archive_options, write_archive
from mainstem.pipeline.spark.java import Java, find_java


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "a cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    return directory


def test_each_release_of_java_has_its_own(cache: Path) -> None:
    found = find_java()
    assert found.release.split(".")[0] == str(found.version)
    newer = found._replace(release=f"{found.release}.1")
    assert archive_of(found).parent == archive_of(newer).parent == cache / "mainstem"
    assert archive_of(found) != archive_of(newer)


def test_each_installation_of_spark_has_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM takes no archive whose jars lay elsewhere."""
    java = find_java()
    here = archive_of(java)
    monkeypatch.setattr(pyspark, "__file__", "/elsewhere/pyspark/__init__.py")
    assert archive_of(java) != here


def test_without_an_archive_nothing_is_said_to_the_jvm(cache: Path) -> None:
    assert archive_options(find_java()) == ""


def test_a_jvm_does_without_an_archive_that_does_not_fit(cache: Path) -> None:
    java = find_java()
    archive = archive_of(java)
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"of another Java")
    options = shlex.split(archive_options(java))
    assert any(str(archive) in option for option in options)
    done = subprocess.run([java.path, *options, "-version"], capture_output=True, text=True, check=True)
    plain = subprocess.run([java.path, "-version"], capture_output=True, text=True, check=True)
    assert "openjdk version" in plain.stderr or "java version" in plain.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines()[:1] == plain.stderr.splitlines()[:1]


def test_a_directory_that_cannot_be_made_is_named(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(ArchiveNotWritten, match=r"a cache.*XDG_CACHE_HOME"):
        write_archive(Java("java", 17, release="17.0.1"), "1g")
