"""The sources of an older version of Mainstem, out of this repository's history, to run nodes of.

Its kernel is not built: it runs on the one in Python, which reads and writes the same bytes.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

PROJECT = Path(__file__).parents[3]
BEFORE_LEVELS = "02d27bd"
"""The last version that knows of no feature levels: what it writes and reads is level 1."""


def sources_of(commit: str, directory: Path, *folders: str) -> Path:
    """The package's directory, to be put on PYTHONPATH. `folders`: of the project, `src` alone without any. Raises
    LookupError, saying why, where the history does not have the commit."""
    archive = subprocess.run(
        ["git", "-C", str(PROJECT), "archive", "--format=tar", commit, *(folders or ("src",))],
        capture_output=True,
        check=False,
    )
    if archive.returncode != 0:
        reason = archive.stderr.decode(errors="replace").strip()
        raise LookupError(f"commit {commit} cannot be had from {PROJECT}: {reason}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as content:
        content.extractall(directory, filter="data")
    return directory / "src"
