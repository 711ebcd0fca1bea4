"""The files on the two disks, read as an outside program would by `docs/formats.md`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tests.end_to_end.load import Record
from tests.fakes.splitting.run_reader import read_runs
from tests.harness.serving import Serving

from mainstem.protocol.records import StoredBatch, read_records


class RecordedRange(NamedTuple):
    group: int
    after: int
    upto: int


class Recorded(NamedTuple):
    """The files that count by the manifest."""

    runs: list[str]
    """In the order in which they were recorded."""
    ranges: list[RecordedRange]
    positions: dict[int, int]
    """Write group -> the last block that is split."""


def recorded(node: Serving) -> Recorded:
    """The manifest as it stands."""
    with closing(sqlite3.connect(f"file:{node.write_dir}/manifest.sqlite?mode=ro", uri=True)) as manifest:
        rows = manifest.execute("SELECT write_group, after, upto, name FROM ranges ORDER BY sequence").fetchall()
        positions = dict(manifest.execute("SELECT write_group, position FROM positions"))
    return Recorded(
        list(dict.fromkeys(name for *_, name in rows)),
        sorted({RecordedRange(group, after, upto) for group, after, upto, _ in rows}),
        positions,
    )


def runs_being_written(node: Serving) -> set[str]:
    """The names that runs will bear once they are finished."""
    return {path.name.split(".tmp-")[0] for path in (node.store_dir / "runs").glob("*.run.tmp-*")}


def runs_of_group(node: Serving, group: int) -> list[str]:
    """The runs that count for a write group, in the order of recording. They may hold records of others, too."""
    with closing(sqlite3.connect(f"file:{node.write_dir}/manifest.sqlite?mode=ro", uri=True)) as manifest:
        rows = manifest.execute("SELECT name FROM ranges WHERE write_group = ? ORDER BY sequence", [group]).fetchall()
    return list(dict.fromkeys(name for (name,) in rows))


def records_in_runs(node: Serving, names: list[str] | None = None) -> dict[int, list[Record]]:
    """The records of these runs, or of all recorded ones, per queue id, in the order of recording."""
    runs = [node.store_dir / "runs" / name for name in (recorded(node).runs if names is None else names)]
    return {
        queue_id: [
            Record(record.offset, record.key, record.value)
            for batch in batches
            for record in read_records(StoredBatch.parse(batch))
        ]
        for queue_id, batches in read_runs(runs).items()
    }


def files_in(directory: Path, suffix: str) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.endswith(suffix)) if directory.exists() else []


def bytes_in(directory: Path) -> int:
    total = 0
    for path in directory.iterdir():
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
