"""The documentation is true: its commands parse, its links lead somewhere, its keys are the keys."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from mainstem.cli.main import root
from mainstem.node.config import NODE_WIDE, NodeConfig
from mainstem.node.config_sources import sections

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", PROJECT / "CHANGELOG.md", *sorted((PROJECT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in _BLOCK.findall(page.read_text()):
            for line in block.splitlines():
                for part in re.split(r"\s(?:\||&&|>)\s", line):
                    words = part.strip()
                    if words.startswith("mainstem "):
                        found.append((page.name, words))
    return found


def test_there_are_commands_to_check() -> None:
    assert len(commands()) > 20


@pytest.mark.parametrize(("page", "line"), commands())
def test_command_parses(page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lines.txt", "picture.png", "orders.jsonl"):
        (tmp_path / name).touch()
    (profiles,) = re.findall(r"```toml\n(.*?)```", (PROJECT / "docs/cli.md").read_text(), re.DOTALL)
    (tmp_path / "profiles.toml").write_text(profiles)
    monkeypatch.setenv("MAINSTEM_PROFILES", str(tmp_path / "profiles.toml"))
    arguments = shlex.split(line)[1:]
    if arguments[0] == "--profile":
        arguments = arguments[2:]
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


ARCHITECTURE = PROJECT / "docs/ARCHITECTURE.md"
SOURCE = PROJECT / "src/mainstem"
_FILE = re.compile(r"`([\w/.]+\.(?:py|pyx))(?::([\w.]+))?`")


def named_files() -> list[tuple[str, str]]:
    return sorted(set(_FILE.findall(ARCHITECTURE.read_text())))


def defined(path: Path, symbol: str) -> bool:
    """Whether a module defines a function, a class, or a class a method, of this dotted name."""
    text, indent = path.read_text(), ""
    for name in symbol.split("."):
        found = re.search(rf"^{indent}(?:async |cdef |cpdef )*(?:def|class)(?: \w+)?? {name}\b", text, re.MULTILINE)
        if found is None:
            return False
        text = text[text.index("\n", found.end()) + 1 :]
        following = re.search(rf"^{indent}\S", text, re.MULTILINE)
        text, indent = text[: following.start()] if following else text, indent + "    "
    return True


def test_there_are_files_and_symbols_to_check() -> None:
    assert len(named_files()) > 80
    assert sum(bool(symbol) for _, symbol in named_files()) > 40


@pytest.mark.parametrize(("name", "symbol"), named_files())
def test_named_file_and_symbol_exist(name: str, symbol: str) -> None:
    """A path below src/mainstem, or from the project; a bare name stands for the one module that has it."""
    places = [path for path in (SOURCE / name, PROJECT / name) if path.is_file()]
    if not places and "/" not in name:
        places = list(SOURCE.rglob(name))
    assert places, f"docs/ARCHITECTURE.md names {name}, which does not exist"
    assert not symbol or any(defined(path, symbol) for path in places), f"{name} does not define {symbol}"


def test_a_symbol_that_is_gone_is_noticed() -> None:
    here = Path(__file__)
    assert defined(here, "defined")
    assert not defined(here, "defined.no_such")
    assert not defined(here, "no_such")
    assert defined(SOURCE / "ports/store_ports.py", "MessageStore.append")
    assert not defined(SOURCE / "ports/disk_ports.py", "Clock.append")
