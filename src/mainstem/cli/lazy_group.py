"""A click group that knows its commands' names and one-line helps, and imports a command when it is used.

`mainstem --help` and shell completion stay fast however much the commands import.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click


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

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in self._lazy.items()])
