"""How commands print: text for people through rich, JSON for programs, sizes and times in units people read."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec
from rich.console import Console
from rich.table import Table

_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def print_json(value: object) -> None:
    """One JSON value on stdout, indented; view structs become objects."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(text.decode() + "\n")


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]], *, empty: str) -> None:
    """A table on stdout; columns whose name starts with `>` are aligned right. Without rows, one line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column[0] == ">" else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    if table.row_count:
        stdout().print(table)
    else:
        stdout().print(empty)


def stdout() -> Console:
    """Text for people. Never folds lines when the output is piped, so that `grep` and `cut` work."""
    return Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


_PIPED_WIDTH = 240
"""Columns when nobody knows them: wider than any table here."""


def stderr() -> Console:
    return Console(stderr=True, markup=False, highlight=False)


def size(count: int | None) -> str:
    """Bytes for people: 1536 is '1.5 KiB', an unknown size is '-'."""
    if count is None:
        return "-"
    value = float(count)
    for unit in _SIZE_UNITS:
        if value < 1024 or unit == _SIZE_UNITS[-1]:
            return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def duration(seconds: float) -> str:
    """Seconds for people: 0.034 is '34 ms', 3661 is '1 h 1 min'."""
    if 0 < seconds < 1:
        return f"{max(round(seconds * 1000), 1)} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
