"""The documentation is true: its commands parse, its links lead somewhere, its keys are the keys."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from mainstem.cli.main import root
from mainstem.config import NODE_WIDE, NodeConfig
from mainstem.config_sources import sections

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", PROJECT / "CHANGELOG.md", *sorted((PROJECT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text()):
            for line in block.splitlines():
                for part in re.split(r"\s(?:\||&&)\s", line):
                    words = part.strip()
                    if words.startswith("mainstem "):
                        found.append((page.name, words))
    return found


def test_there_are_commands_to_check() -> None:
    assert len(commands()) > 20


@pytest.mark.parametrize(("page", "line"), commands())
def test_command_parses(page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lines.txt", "picture.png"):
        (tmp_path / name).touch()
    arguments = shlex.split(line)[1:]
    command: click.Command = root
    context = click.Context(root)
    while isinstance(command, click.Group):
        found = command.get_command(context, arguments[0])
        assert found is not None, f"{page}: {line}: no command {arguments[0]}"
        command, arguments = found, arguments[1:]
    # Parses and converts every option and argument, and runs nothing.
    command.make_context("mainstem", arguments)


@pytest.mark.parametrize("target", re.findall(r"make (\w+)(?=\s+#|\s+&&)", (PROJECT / "README.md").read_text()))
def test_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (PROJECT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        if "://" in target:
            continue
        there = page.parent / target if target else page
        assert there.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(there), f"{page.name}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_key_is_documented_and_no_other() -> None:
    page = (PROJECT / "docs/configuration.md").read_text()
    documented = set(re.findall(r"^\| `([a-z_.]+)` \|", page, re.MULTILINE))
    known = {key for key in NodeConfig.__struct_fields__ if key not in sections()}
    for section, kind in sections().items():
        known |= {f"{section}.{key}" for key in kind.__struct_fields__ if (section, key) not in NODE_WIDE}
    assert documented == known
