"""How commands print: text for people through rich, JSON for programs, sizes and times in units people read.

Nothing that a command prints for people is cut. Lines and text columns are folded where a terminal is too narrow for
them; a table whose figures do not fit beside each other is printed as one block of lines per row.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

_GAP = 2
"""Spaces between two columns."""
_FOLDED_MIN = 14
"""A text column is not folded to less than this."""


def print_json(value: object) -> None:
    """One JSON value on stdout, indented; view structs become objects."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(text.decode() + "\n")


def print_json_line(value: object) -> None:
    """One JSON value on a line of its own on stdout, for what goes on."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]], *, empty: str) -> None:
    """A table on stdout. Columns whose name starts with `>` are aligned right; those whose name starts with `~` hold
    text and are folded where the terminal is too narrow. Without rows, one line."""
    console = stdout()
    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        print_text(empty)
        return
    names = list(columns)
    if _fits(names, cells, console.width):
        _write(console, _table(names, cells))
    else:
        _print_blocks(console, [name.lstrip(">~") for name in names], cells)


def _fits(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    needed = 0
    for number, column in enumerate(columns):
        header = cell_len(column.lstrip(">~"))
        widest = max(header, *(cell_len(line) for row in rows for line in row[number].split("\n")))
        needed += min(widest, max(header, _FOLDED_MIN)) if column[0] == "~" else widest
    return needed + _GAP * (len(columns) - 1) <= width


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in columns:
        name, folds = column.lstrip(">~"), column[0] == "~"
        justify = "right" if column[0] == ">" else "left"
        table.add_column(name, justify=justify, no_wrap=not folds, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    return table


def _print_blocks(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    width = max(map(cell_len, columns))
    for number, row in enumerate(rows):
        if number:
            print_text()
        block = Table.grid(padding=(0, _GAP, 0, 0))
        block.add_column(min_width=width, no_wrap=True, style="bold")
        block.add_column(overflow="fold")
        for column, cell in zip(columns, row, strict=True):
            block.add_row(column, cell)
        _write(console, block)


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Names and values on stdout, the values below each other; a name may come again, as for lists."""
    rows = list(fields)
    block = Table.grid(padding=(0, _GAP, 0, 0))
    block.add_column(min_width=max((cell_len(name) for name, _ in rows), default=0), no_wrap=True)
    block.add_column(overflow="fold")
    for row in rows:
        block.add_row(*row)
    _write(stdout(), block)


def print_text(text: str = "") -> None:
    """A line on stdout, folded between words where it is too long for the terminal."""
    _write(stdout(), text)


def _write(console: Console, content: Table | str) -> None:
    """Print without the spaces that fill the lines of tables and end those of folded text."""
    with console.capture() as captured:
        console.print(content)
    sys.stdout.write(_FILLING.sub(r"\1", captured.get()))


class _Terminal(io.StringIO):
    """Text that is printed as for a terminal: as wide as the one there is, and with styles."""

    def isatty(self) -> bool:
        return True


def printed(print_it: Callable[[], None]) -> str:
    """The output that a function would print for people on this terminal, its styles included."""
    with contextlib.redirect_stdout(_Terminal()) as kept:
        print_it()
    return kept.getvalue()


_FILLING = re.compile(r" +((?:\x1b\[[\d;]*m)*)$", re.MULTILINE)
"""Spaces at the end of a line, before the codes that end its style."""


def stdout() -> Console:
    """Text for people. Never folds lines when the output is piped, so that `grep` and `cut` work, unless the variable
    COLUMNS says how wide the reader is."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        console.width = _PIPED_WIDTH
    return console


_PIPED_WIDTH = 240
"""Columns when nobody knows them: wider than any table here."""


def stderr() -> Console:
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def counted(count: int, noun: str, plural: str = "") -> str:
    """'1 partition', '16 partitions', '2,000 replies' where the plural is given."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


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
