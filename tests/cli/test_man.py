"""Manual pages: one for every command, with all that its help says, in roff that is taken for nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.cli.main import root, run
from mainstem.cli.man import page

MACROS = {".TH", ".SH", ".B", ".TP", ".PP", ".nf", ".fi"}


@pytest.fixture
def pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert run(["man", "--dir", str(tmp_path / "man1")]) == 0
    found = {path.stem: path.read_text() for path in (tmp_path / "man1").iterdir()}
    assert capsys.readouterr().out == f"wrote {len(found)} pages to {tmp_path / 'man1'}\n"
    return found


def test_every_command_has_a_page_with_its_options(pages: dict[str, str]) -> None:
    def walk(command: click.Command, path: tuple[str, ...]) -> set[str]:
        text = pages["-".join(path)].replace("\\-", "-")
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                for option in (*parameter.opts, *parameter.secondary_opts):
                    assert option in text, (path, option)
        names = {"-".join(path)}
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                assert f"{'-'.join(path)}-{name}\\fR(1)".replace("-", r"\-") in pages["-".join(path)]
                names |= walk(inner, (*path, name))
        return names

    assert walk(root, ("mainstem",)) == set(pages)


def test_only_macros_begin_with_a_dot(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        for line in text.splitlines():
            assert not line.startswith("'"), (name, line)
            if line.startswith("."):
                assert line.split(" ")[0] in MACROS, (name, line)
        assert ".SH EXIT STATUS" in text
        assert ".SH ENVIRONMENT" in text


def test_text_is_taken_for_text() -> None:
    command = click.Command("x", help="Say.\n\n.not a macro, \\n no escape\n\n\b\n'kept\n lines")
    assert page(("x",), command).split(".SH DESCRIPTION\n")[1].split(".SH")[0] == (
        "Say.\n.PP\n\\&.not a macro, \\en no escape\n.PP\n.nf\n\\&'kept\nlines\n.fi\n"
    )


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_finds_nothing_wrong(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        done = subprocess.run(
            ["groff", "-Kutf8", "-man", "-Tutf8", "-ww"],
            input=text.encode(),
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        )
        assert done.stderr == b"", name
    plain = re.sub(r"\x1b\[[\d;]*m|.\x08", "", done.stdout.decode())
    assert "EXIT STATUS" in plain


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["man", "topic", "creat"], "there is no command 'creat'; did you mean create?"),
        (["man", "serve", "x"], "`mainstem serve` has no commands below it"),
        (["man", "topic", "--dir", "/tmp"], "leave COMMAND out"),
    ],
)
def test_wrong_words(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert part in capsys.readouterr().err


def test_a_page_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["man", "topic", "create"]) == 0
    assert capsys.readouterr().out.startswith('.TH MAINSTEM\\-TOPIC\\-CREATE 1 ""')
