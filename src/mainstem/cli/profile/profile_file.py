"""Changes of the file of profiles that leave alone what else is written there, comments included.

A profile is added as a section at the end, and removed with the lines from its header to the next one. The new file is
read before it is written: it must say what it said, but for that profile, or nothing is written."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mainstem.cli.errors import CommandFailed, SettingsUnusable
from mainstem.cli.parameters import profiles
from mainstem.whole_file import write_whole

FILE_MODE = 0o600
"""There are tokens and passwords in it."""

_HEADER = re.compile(r"^\s*\[+\s*(?P<name>[^\]]*?)\s*\]+\s*(#.*)?$")
_DEFAULT = re.compile(r"^\s*default\s*=.*\n?", re.MULTILINE)


def known(path: Path) -> tuple[str | None, dict[str, dict[str, str]]]:
    """The default's name and the profiles; none where there is no file. Raises click.BadParameter."""
    return profiles.read(path) if path.exists() else (None, {})


def add(path: Path, name: str, profile: Mapping[str, str], *, default: bool, replace: bool) -> None:
    """Write a profile, as the default if asked. Raises SettingsUnusable, CommandFailed, OSError."""
    _, there = known(path)
    if name in there and not replace:
        raise SettingsUnusable(f"there is a profile {name!r} in {path} already; --force replaces it")
    text = path.read_text("utf-8") if path.exists() else ""
    wanted = tomllib.loads(text)
    if name in there:
        text = _without(text, name)
    text = text.rstrip("\n") + "\n\n" if text.strip() else ""
    lines = [f"{_key(key)} = {json.dumps(value, ensure_ascii=False)}" for key, value in profile.items()]
    text += "\n".join([f"[profiles.{_key(name)}]", *lines, ""])
    wanted.setdefault("profiles", {})[name] = dict(profile)
    if default:
        wanted["default"] = name
        text = _with_default(text, name)
    _write(path, text, wanted)


def remove(path: Path, name: str) -> None:
    """Raises SettingsUnusable if there is no such profile, CommandFailed, OSError."""
    default, there = known(path)
    if name not in there:
        raise SettingsUnusable(
            f"there is no profile {name!r} in {path}; known are {', '.join(sorted(there)) or 'none'}"
        )
    text = path.read_text("utf-8")
    wanted = tomllib.loads(text)
    del wanted["profiles"][name]
    text = _without(text, name)
    if default == name:
        del wanted["default"]
        preamble, rest = _split(text)
        text = _DEFAULT.sub("", preamble, count=1) + rest
    _write(path, text, wanted)


def _write(path: Path, text: str, wanted: dict[str, Any]) -> None:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        found = None
    if found is None or _plain(found) != _plain(wanted):
        raise CommandFailed(f"{path} is written in a way that this command cannot change; change it by hand")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path.resolve(), text.encode(), FILE_MODE)


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    """Without an empty `profiles`, which says what none says."""
    return {key: value for key, value in content.items() if key != "profiles" or value}


def _with_default(text: str, name: str) -> str:
    preamble, rest = _split(text)
    return f"default = {json.dumps(name, ensure_ascii=False)}\n" + (_DEFAULT.sub("", preamble, count=1) or "\n") + rest


def _split(text: str) -> tuple[str, str]:
    """The text before the first section, and the rest."""
    lines = text.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if _HEADER.match(line)), len(lines))
    return "".join(lines[:first]), "".join(lines[first:])


def _without(text: str, name: str) -> str:
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        if header := _HEADER.match(line):
            inside = _is_of(header["name"], name)
        if not inside:
            kept.append(line)
    return "".join(kept)


def _is_of(header: str, name: str) -> bool:
    """Whether a section is a profile's, or one below it. Raises nothing: what is no header is none of ours."""
    try:
        parsed = tomllib.loads(f"[{header}]")
    except tomllib.TOMLDecodeError:
        return False
    sections = parsed.get("profiles")
    return isinstance(sections, dict) and list(sections) == [name]


def _key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else json.dumps(text, ensure_ascii=False)
