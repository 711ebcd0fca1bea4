"""The seal of a manifest: by it a start knows that what the database says is what was written.

Sqlite does not notice a flipped bit in a number or a name; but pruning and retention rely on them, and no check would
miss a file that counts for the wrong write group. Each change therefore writes the sum of all rows, and a digest of
positions and ranges for versions that do not know the sum. Triggers count every changed row in and out, so that a
change costs the same however much is there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

import google_crc32c

SUMMED: Mapping[str, tuple[str, ...]] = {
    "store": ("identity", "commits"),
    "files": (
        "name", "retention_class", "bytes", "batch_bytes", "batch_count", "record_count", "queue_count",
        "min_timestamp", "max_timestamp",
    ),
    "ranges": ("sequence", "write_group", "after", "upto", "name"),
    "positions": ("write_group", "position", "applied_index"),
    "dropped": ("name", "dropped_ms"),
    "seen": ("name", "seen_ms"),
    "keys": ("name", "level", "write_group", "first_queue", "last_queue", "first_offset", "clean_ms", "horizon_ms"),
    "pages": ("number", "crc"),
    "page_states": ("number", "alive", "seen"),
    "remote_positions": ("write_group", "number", "epoch"),
    "remote_names": ("name", "write_group", "standing", "epoch", "since_ms"),
}  # fmt: skip
"""All that the manifest says: tables and their columns. The checksum of a page is in its `crc`, which is checked when
it is read. The last two are in the manifest of the remote tier only (`storage/remote/decided/remote_rows.py`)."""

_SUM_OF_RANGES = """
SELECT count(*), coalesce(sum(
    (sequence * 7919 + write_group * 104729 + after * 1299709 + upto * 15485863) % 2147483647), 0) FROM ranges
"""

_SUM_ROW = 2
"""The place in which `seal` has the sum of all rows. A version that does not know it deletes it with its first
change."""
_SUM_MODULUS = 1 << 62


class Seal:
    """Holds the sums of all rows that there are. The connection holds it, and sqlite does not tell the garbage
    collector: it must not lead back to the connection, which would stay open for ever.

    `tables`: those of `SUMMED` that the manifest's version has."""

    def __init__(self) -> None:
        self._rows = 0
        self._ranges = (0, 0)
        """How many there are, and the sum of what the digest has of each."""

    @property
    def sums(self) -> tuple[int, tuple[int, int]]:
        """The position that a change moves; set it back if the change is not made."""
        return self._rows, self._ranges

    @sums.setter
    def sums(self, sums: tuple[int, tuple[int, int]]) -> None:
        self._rows, self._ranges = sums

    def fault(self, database: sqlite3.Connection, changes: int, tables: Iterable[str]) -> str:
        """Add up all rows; returns what is wrong with them, or nothing. `changes`: the number that the manifest has."""
        self._ranges = database.execute(_SUM_OF_RANGES).fetchone()
        if self._is_sealed(database, changes) is False:
            return "what is split where is not what was written"
        self._rows = _sum_of(database, tables)
        if self._to_write(database, tables) != self._written(database, tables):
            return "its rows are not those that were written"
        return ""

    def counted(self, sign: int, table: str, *row: object) -> None:
        self._rows = (self._rows + sign * _row_sum((table, *row))) % _SUM_MODULUS
        if table == "ranges":
            sequence, group, after, upto = (int(value) for value in row[:4])  # type: ignore[call-overload]
            part = (sequence * 7919 + group * 104729 + after * 1299709 + upto * 15485863) % 2147483647
            self._ranges = self._ranges[0] + sign, self._ranges[1] + sign * part

    def _is_sealed(self, database: sqlite3.Connection, changes: int) -> bool | None:
        """Whether positions and ranges are those that the last change left; None: a version without seals made it."""
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'seal'").fetchone():
            return None
        sealed = database.execute("SELECT commits, digest FROM seal").fetchone()
        if sealed is None or sealed[0] != changes:
            return None
        return bool(sealed[1] == self._digest(database))

    def _written(self, database: sqlite3.Connection, tables: Iterable[str]) -> int:
        """The sum that the last change wrote; what it is now, where none was written."""
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'seal'").fetchone():
            return self._to_write(database, tables)
        written = database.execute("SELECT digest FROM seal WHERE rowid = ?", (_SUM_ROW,)).fetchone()
        return int(written[0]) if written is not None else self._to_write(database, tables)

    def _to_write(self, database: sqlite3.Connection, tables: Iterable[str]) -> int:
        """The sum of all rows, and of how the tables were made: a flipped bit there shows when a row is written. So it
        does in the table in which sqlite counts sequences."""
        described = (*tables, "seal", "sqlite_sequence")
        places = ", ".join("?" * len(described))
        made = database.execute(
            f"SELECT type, name, tbl_name, sql FROM sqlite_master WHERE tbl_name IN ({places})", described
        ).fetchall()
        made += database.execute("SELECT name, seq FROM sqlite_sequence").fetchall()
        return (self._rows + sum(map(_row_sum, made))) % _SUM_MODULUS

    def keep(self, database: sqlite3.Connection, table: str) -> None:
        """Have every changed row counted in and out. Only this connection has the triggers: other versions, which lack
        the function, open the database as ever."""
        database.create_function("counted", -1, self.counted)
        columns = SUMMED[table]
        old, new = (", ".join(f"{row}.{column}" for column in columns) for row in ("OLD", "NEW"))
        out, into = f"SELECT counted(-1, '{table}', {old});", f"SELECT counted(1, '{table}', {new});"
        for event, done in (("DELETE", out), ("INSERT", into), ("UPDATE", out + into)):
            database.execute(f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} BEGIN {done} END")

    def _digest(self, database: sqlite3.Connection) -> int:
        """The digest of positions and ranges, for versions that do not know the sum."""
        positions = database.execute(
            "SELECT write_group, position, applied_index FROM positions ORDER BY write_group"
        ).fetchall()
        ranges = "/".join(map(str, self._ranges))
        return int(google_crc32c.value(repr((positions, ranges)).encode()))

    def write(self, database: sqlite3.Connection, tables: Iterable[str]) -> None:
        """Write the digest and the sum, within the transaction of the change."""
        database.execute("CREATE TABLE IF NOT EXISTS seal (commits INTEGER NOT NULL, digest INTEGER NOT NULL)")
        database.execute("DELETE FROM seal")
        database.execute("INSERT INTO seal SELECT commits, ? FROM store", (self._digest(database),))
        database.execute(
            "INSERT INTO seal (rowid, commits, digest) SELECT ?, commits, ? FROM store",
            (_SUM_ROW, self._to_write(database, tables)),
        )


def _sum_of(database: sqlite3.Connection, tables: Iterable[str]) -> int:
    """The sum of all rows there are, whatever their order."""
    return sum(
        _row_sum((table, *row))
        for table in tables
        for row in database.execute(f"SELECT {', '.join(SUMMED[table])} FROM {table}")
    ) % _SUM_MODULUS  # fmt: skip


def _row_sum(row: tuple[object, ...]) -> int:
    """A table's name and the values of a row, as one number."""
    return int(google_crc32c.value(repr(row).encode()))
