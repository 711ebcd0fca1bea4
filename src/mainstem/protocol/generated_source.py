"""Builds the text of a function to be compiled, and the names it refers to.

Shared by the generators of readers and writers. Generated code is kept in `linecache` so that a traceback
shows its lines.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mainstem.protocol.schema import Declaration, FixedKind, Kind, WireField


class GeneratedSource:
    """Lines at a current indentation, unique local names, and a namespace of constants."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        self.line(header)
        self._depth += 1
        first = len(self._lines)
        yield
        if len(self._lines) == first:
            self.line("pass")
        self._depth -= 1

    def name(self, prefix: str) -> str:
        """A local name not used before."""
        self._names += 1
        return f"{prefix}_{self._names}"

    def constant(self, prefix: str, value: Any) -> str:
        """A name by which the generated code reaches `value`."""
        name = self.name(prefix)
        self.namespace[name] = value
        return name

    def packing(self, method: str, format: str) -> str:
        """The name of `struct.Struct(format)`'s bound `method`; one per format."""
        name = f"{method}_{format.replace('?', 'T')}"
        if name not in self.namespace:
            self.namespace[name] = getattr(struct.Struct(">" + format), method)
        return name

    def compile(self, function: str, title: str) -> Callable[..., Any]:
        text = "\n".join(self._lines) + "\n"
        filename = f"<{title}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), self.namespace)  # text comes from declarations only
        compiled: Callable[..., Any] = self.namespace[function]
        return compiled


def is_fixed(kind: Kind[Any]) -> bool:
    return isinstance(kind, FixedKind)


def fixed_format(run: list[WireField]) -> str:
    """The `struct` format of adjacent fields of fixed width."""
    return "".join(field.kind.format for field in run if isinstance(field.kind, FixedKind))


def split_fields(
    declaration: Declaration, version: int
) -> tuple[list[list[WireField]], list[WireField], list[WireField]]:
    """The fields of one version: in fixed order with adjacent fixed-width ones grouped, tagged, absent."""
    groups: list[list[WireField]] = []
    tagged: list[WireField] = []
    absent: list[WireField] = []
    previous_fixed = False
    for field in declaration.fields:
        if version not in field.versions:
            where = f"{declaration.name}.{field.name}"
            assert field.has_default, f"{where} needs a default: version {version} lacks the field"
            absent.append(field)
        elif field.tag is not None:
            tagged.append(field)
        elif previous_fixed and is_fixed(field.kind):
            groups[-1].append(field)
        else:
            groups.append([field])
            previous_fixed = is_fixed(field.kind)
    return groups, tagged, absent
