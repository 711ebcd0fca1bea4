"""A click group that knows its commands' names and one-line helps, and imports a command when it is used.

`mainstem --help` and shell completion stay fast however much the commands import.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class LazyCommand(NamedTuple):
    module: str
    """Has the click command as its attribute `command`."""
    summary: str


class LazyGroup(click.Group):
    """`commands_by_name` in the order that help lists them."""

    def __init__(self, *, commands_by_name: Mapping[str, LazyCommand], **attributes: Any) -> None:
        super().__init__(no_args_is_help=True, **attributes)
        self._lazy = commands_by_name

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self._lazy:
            return None
        command = importlib.import_module(self._lazy[name].module).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises click.UsageError that suggests the command that was probably meant."""
        name = arguments[0]
        if name in self._lazy or name.startswith("-") or context.resilient_parsing:
            return super().resolve_command(context, arguments)
        close = difflib.get_close_matches(name, self._lazy, n=1)
        known = f"did you mean {close[0]}?" if close else f"known are {', '.join(self._lazy)}"
        raise click.UsageError(f"there is no command {name!r}; {known}", context)

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands by what is known of them without importing any, and the group's own options."""
        found = [
            CompletionItem(name, help=lazy.summary) for name, lazy in self._lazy.items() if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, context, incomplete)]

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in self._lazy.items()])
