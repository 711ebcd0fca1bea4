"""The keys that `docs/cli.md` promises for `--json`, and those that an output has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

_ROW = re.compile(r"^\| `([a-z -]+)` \| (`.*`) \|$", re.MULTILINE)


def documented_keys() -> dict[str, frozenset[str]]:
    """Command -> keys as the page writes them: `a.b`, `a[].b` in lists, `a{}` with keys of its own."""
    section = PAGE.read_text().split("## Data", 1)[1]
    return {command: frozenset(re.findall(r"`([^`]+)`", keys)) for command, keys in _ROW.findall(section)}


def keys_of(value: object, documented: frozenset[str]) -> frozenset[str]:
    """The keys of an output in the page's notation. Null and empty lists show nothing of what could be in them:
    then the documented keys below are taken for granted."""
    return frozenset(_walk(value, "", documented))


def _walk(value: object, path: str, documented: frozenset[str]) -> Iterator[str]:
    if path + "[]" in documented or path + "{}" in documented:
        yield path + ("[]" if path + "[]" in documented else "{}")
        return
    below = [key for key in documented if key.startswith((path + ".", path + "[].", path + "{}."))]
    if path and below and not value:
        yield from below
    elif isinstance(value, list):
        for item in value:
            yield from _walk(item, path + "[]", documented)
    elif isinstance(value, dict):
        own = any(key.startswith(path + "{}.") for key in documented)
        for key, inner in value.items():
            yield from _walk(inner, path + "{}" if own else f"{path}.{key}".lstrip("."), documented)
    else:
        yield path
