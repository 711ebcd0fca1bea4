"""`mainstem man`: manual pages, made from the commands themselves, so that they say what `--help` says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from mainstem import __version__

EXIT_CODES = (
    ("0", "The command did what it was asked to do."),
    ("1", "The command failed. One line on stderr says what failed and why."),
    ("2", "The usage or the configuration is wrong, and the command did nothing."),
    ("3", "serve: disk 1 of the node cannot be written. split run: another splitter holds the lease."),
)

VARIABLES = (
    (
        "MAINSTEM_BOOTSTRAP, MAINSTEM_HTTP",
        "Addresses of a node; the options of the same names go before them.",
    ),
    ("MAINSTEM_TOKEN", "The token of a node, for commands that change the cluster."),
    ("MAINSTEM_PROFILE, MAINSTEM_PROFILES", "The profile to use, and the file that profiles are read from."),
    ("MAINSTEM_CLIENT_CONFIG", "The file of properties that Kafka clients of commands connect as."),
    ("MAINSTEM_CONFIG", "The configuration file of a node."),
    ("COLUMNS", "How wide tables are where the output is not a terminal."),
)


@click.command("man")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the pages of all commands into this directory.",
)
def command(words: tuple[str, ...], directory: Path | None) -> None:
    """Print the manual page of a command, or write those of all.

    \b
    mainstem man topic create | man -l -
    mainstem man --dir ~/.local/share/man/man1
    """
    from mainstem.cli.main import root

    if directory is None:
        click.echo(page(*_found(root, words)), nl=False)
        return
    if words:
        raise click.UsageError("--dir writes the pages of all commands; leave COMMAND out")
    directory.mkdir(parents=True, exist_ok=True)
    count = 0
    for path, it in _all(root, ("mainstem",)):
        (directory / f"{'-'.join(path)}.1").write_text(page(path, it))
        count += 1
    click.echo(f"wrote {count} pages to {directory}")


def page(path: tuple[str, ...], command: click.Command) -> str:
    """A manual page in roff. `path` are the words that call the command."""
    context = _context(path, command)
    summary, _, rest = (command.help or "").partition("\n")
    lines = [
        f'.TH {_plain("-".join(path)).upper()} 1 "" "mainstem {_plain(__version__)}" "Mainstem"',
        ".SH NAME",
        f"{_plain('-'.join(path))} \\- {_plain(summary.strip().split('. ')[0].rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_plain(' '.join(path))}",
        _plain(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *_paragraphs(f"{summary}\n{rest}"),
    ]
    records = [record for it in command.get_params(context) if (record := it.get_help_record(context)) is not None]
    if records:
        lines += [".SH OPTIONS", *_terms(records)]
    if isinstance(command, click.Group):
        lines += [".SH COMMANDS", *_terms(_summaries(command, context))]
    if command.epilog:
        lines += [".SH NOTES", *_paragraphs(command.epilog)]
    lines += [".SH EXIT STATUS", *_terms(EXIT_CODES), ".SH ENVIRONMENT", *_terms(VARIABLES)]
    related = [path[:-1]] if len(path) > 1 else []
    if isinstance(command, click.Group):
        related += [(*path, name) for name in command.list_commands(context)]
    if related:
        lines += [".SH SEE ALSO", ", ".join(f"\\fB{_plain('-'.join(it))}\\fR(1)" for it in related)]
    return "\n".join(lines) + "\n"


def _context(path: tuple[str, ...], command: click.Command) -> click.Context:
    return click.Context(command, info_name=" ".join(path), help_option_names=["-h", "--help"])


def _found(root: click.Group, words: tuple[str, ...]) -> tuple[tuple[str, ...], click.Command]:
    """The command that words name. Raises click.UsageError."""
    path: tuple[str, ...] = ("mainstem",)
    command: click.Command = root
    for word in words:
        if not isinstance(command, click.Group):
            raise click.UsageError(f"`{' '.join(path)}` has no commands below it")
        _, found, _ = command.resolve_command(_context(path, command), [word])
        assert found is not None
        path, command = (*path, word), found
    return path, command


def _all(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = _context(path, command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _all(inner, (*path, name))


def _summaries(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    for name in group.list_commands(context):
        inner = group.get_command(context, name)
        assert inner is not None
        yield name, inner.get_short_help_str(200)


def _terms(
    records: Iterator[tuple[str, str]] | tuple[tuple[str, str], ...] | list[tuple[str, str]],
) -> Iterator[str]:
    for term, text in records:
        yield ".TP"
        yield f"\\fB{_plain(term)}\\fR"
        yield _plain(text) or "\\&"


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a help text; those that begin with \\b keep their lines."""
    for number, block in enumerate(part for part in text.strip().split("\n\n") if part.strip()):
        lines = [line.strip() for line in block.strip("\n").splitlines()]
        if number:
            yield ".PP"
        if lines[0] == "\b":
            yield from (".nf", *map(_plain, lines[1:]), ".fi")
        else:
            yield _plain(" ".join(line for line in lines if line))


def _plain(text: str) -> str:
    """Text that roff takes for nothing but text."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped
