"""The contract of import-linter that reads who may import whom from the tables of docs/ARCHITECTURE.md.

A table counts when its columns end with `may import`. The first cell of a row names rooms, or single modules, in
backticks: `storage/` is src/mainstem/storage with all that lies below it, `model.py` one module. The last cell names
what they may import in the same way; `everything` allows all. A room within a room (`storage/journal/`) may import what
the room around it may, and of its siblings those that its own row names. Every module belongs to a row: the innermost
that names it, or the room around it. No two modules import each other, also not through others, for types or within
functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from importlinter import Contract, ContractCheck, fields, output

ROOT = "mainstem"
EVERYTHING = "everything"
_NAME = re.compile(r"`([\w/]+?)(?:/|\.py)?`")


class Room(NamedTuple):
    """`allowed`: rooms by their dotted names below `mainstem`; None where everything is."""

    name: str
    allowed: frozenset[str] | None


def read_tables(page: str) -> dict[str, Room]:
    """The rooms of all tables of the page, by name. Raises ValueError naming the row that is not understood."""
    rooms: dict[str, Room] = {}
    counts = False
    for line in page.splitlines():
        if not line.startswith("|"):
            counts = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[-1] == "may import":
            counts = True
            continue
        if not counts or set(line) <= set("|- :"):
            continue
        allowed = _names(cells[-1])
        names = _names(cells[0])
        if not names:
            raise ValueError(f"a row of a table of rooms names none: {line}")
        for name in names:
            if name in rooms:
                raise ValueError(f"two rows of the tables of rooms are of {name}")
            rooms[name] = Room(name, None if EVERYTHING in cells[-1] else frozenset(allowed))
    for room in rooms.values():
        for name in room.allowed or ():
            if name not in rooms:
                raise ValueError(f"the row of {room.name} allows {name}, which has no row")
    return rooms


def _names(cell: str) -> list[str]:
    return [name.replace("/", ".") for name in _NAME.findall(cell)]


def room_of(module: str, rooms: dict[str, Room]) -> str | None:
    """The innermost room that a module (a dotted name below `mainstem`) belongs to."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in rooms:
            return name
    return None


def may_import(importer: str, imported: str, rooms: dict[str, Room]) -> bool:
    """Whether a room may import from another one."""
    if f"{imported}.".startswith(f"{importer}."):  # itself, or a room within: whoever is outside puts those together
        return True
    siblings = importer.split(".")[0] == imported.split(".")[0]  # among them, a room's own row alone counts
    for row in [importer] if siblings else _around(importer, rooms):
        allowed = rooms[row].allowed
        if allowed is None or any(there in allowed for there in _around(imported, rooms)):
            return True
    return False


def _around(room: str, rooms: dict[str, Room]) -> Iterator[str]:
    """The room itself, then the rooms around it."""
    parts = room.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in rooms:
            yield name


def circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The modules that import each other, directly or through others, in sorted groups. `imports`: module → those that
    it imports."""
    reached = {module: _reached(module, imports) for module in imports}
    together = {
        tuple(sorted(other for other in reached[module] if module in reached.get(other, ())))
        for module in imports
        if module in reached[module]
    }
    return [list(group) for group in sorted(together)]


def _reached(module: str, imports: Mapping[str, Iterable[str]]) -> set[str]:
    found: set[str] = set()
    left = list(imports.get(module, ()))
    while left:
        if (other := left.pop()) not in found:
            found.add(other)
            left.extend(imports.get(other, ()))
    return found


class RoomsContract(Contract):
    """`tables`: the page, relative to the project."""

    type_name = "rooms"
    tables = fields.StringField()

    def check(self, graph, verbose):  # type: ignore[no-untyped-def]
        rooms = read_tables(Path(str(self.tables)).read_text(encoding="utf-8"))
        problems: list[str] = []
        imports = {
            module: [other for other in graph.find_modules_directly_imported_by(module) if other.startswith(ROOT)]
            for module in graph.modules
            if module.startswith(ROOT)
        }
        problems += [f"modules import each other: {', '.join(group)}" for group in circles(imports)]
        for module in sorted(graph.modules):
            if module == ROOT or not module.startswith(f"{ROOT}."):
                continue
            here = room_of(module.removeprefix(f"{ROOT}."), rooms)
            if here is None:
                problems.append(f"{module} belongs to no row")
                continue
            for target in sorted(graph.find_modules_directly_imported_by(module)):
                if not target.startswith(f"{ROOT}."):
                    continue
                there = room_of(target.removeprefix(f"{ROOT}."), rooms)
                if there is not None and not may_import(here, there, rooms):
                    problems.append(f"{module} imports {target}: {here} may not import {there}")
        return ContractCheck(kept=not problems, metadata={"problems": problems})

    def render_broken_contract(self, check):  # type: ignore[no-untyped-def]
        for problem in check.metadata["problems"]:
            output.print_error(problem)
