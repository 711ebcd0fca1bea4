"""Named clusters: a file of addresses, so that `--profile NAME` stands for `--bootstrap`, `--http` and `--token`.

An address comes from the first of these that has one: its option, a profile named by `--profile`, its variable, a
profile named by MAINSTEM_PROFILE or by `default` in the file, the built-in default. A profile that is named on the
command line so goes before variables that were exported for another cluster; and where a profile is used that lacks an
address, the command says so instead of asking a node of another cluster.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

_META = "mainstem.profile"
_ROOT = "mainstem.profile.root"
_NAMED = "mainstem.profile.named"
"""Keys of `click.Context.meta`: the profile in use, the name that `mainstem --profile` gave, and whether the one in use
was named on the command line."""

KEYS = ("bootstrap", "http", "token")


def file() -> Path:
    """Where the profiles are."""
    if named := os.environ.get("MAINSTEM_PROFILES"):
        return Path(named)
    directory = os.environ.get("XDG_CONFIG_HOME")
    return (Path(directory) if directory else Path.home() / ".config") / "mainstem" / "profiles.toml"


def root_option(command: click.Command) -> None:
    """Have `mainstem --profile NAME command` mean what `mainstem command --profile NAME` does."""

    def keep(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
        if name is not None:
            context.meta[_ROOT] = name

    command.params.append(
        click.Option(
            ["--profile"],
            metavar="NAME",
            expose_value=False,
            callback=keep,
            help="Use the addresses of a named cluster.",
        )
    )


def profile_option(*, falls_back: bool) -> Any:
    """`--profile` of a command. `falls_back`: whether the file's default is used where none is named."""

    def choose(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
        source = context.get_parameter_source("profile")
        named = source is ParameterSource.COMMANDLINE
        if not named and _ROOT in context.meta:
            name, named = context.meta[_ROOT], True
        # A shell that completes wants no errors.
        quiet = contextlib.suppress(click.UsageError) if context.resilient_parsing else contextlib.nullcontext()
        with quiet:
            _choose(context, name, named=named, falls_back=falls_back)

    return click.option(
        "--profile",
        metavar="NAME",
        envvar="MAINSTEM_PROFILE",
        is_eager=True,
        expose_value=False,
        callback=choose,
        help="Use the addresses of a named cluster, from the file of profiles.",
    )


def _choose(context: click.Context, name: str | None, *, named: bool, falls_back: bool) -> None:
    path = file()
    if name is None and not (falls_back and path.exists()):
        return
    default, profiles = _read(path)
    name = name if name is not None else default
    if name is None:
        return
    if name not in profiles:
        close = difflib.get_close_matches(name, profiles, n=1)
        known = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(profiles)) or 'none'}"
        raise click.BadParameter(f"there is no profile {name!r} in {path}; {known}", context, param_hint="--profile")
    context.default_map = dict(profiles[name])
    context.meta[_META] = name
    context.meta[_NAMED] = named


def _read(path: Path) -> tuple[str | None, dict[str, dict[str, str]]]:
    """The default's name and the profiles. Raises click.BadParameter naming file and key."""
    import tomllib

    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise _wrong(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(f"{path}: not valid TOML: {error}") from None
    if unknown := content.keys() - {"default", "profiles"}:
        raise _wrong(f"{path}: unknown key {min(unknown)}; expected default and [profiles.NAME]")
    default, profiles = content.get("default"), content.get("profiles", {})
    if not isinstance(default, str | None) or not isinstance(profiles, dict):
        raise _wrong(f'{path}: expected default = "NAME" and sections [profiles.NAME]')
    for name, profile in profiles.items():
        if not isinstance(profile, dict):
            raise _wrong(f"{path}: profiles.{name} is not a section; write [profiles.{name}]")
        for key, value in profile.items():
            if key not in KEYS:
                raise _wrong(f"{path}: unknown key profiles.{name}.{key}; expected {', '.join(KEYS)}")
            if not isinstance(value, str):
                raise _wrong(f"{path}: profiles.{name}.{key} = {value!r}: expected text")
    return default, profiles


def _wrong(message: str) -> click.BadParameter:
    return click.BadParameter(message, param_hint="--profile")


class ClusterOption(click.Option):
    """An option that a profile has a value for. `needed`: a profile that is used must have one."""

    def __init__(self, *arguments: Any, needed: bool = False, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self._needed = needed

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """The variable counts unless a profile that was named on the command line goes before it."""
        if ctx.meta.get(_NAMED) and (self._needed or self.name in (ctx.default_map or {})):
            return None
        return super().value_from_envvar(ctx)

    def consume_value(self, ctx: click.Context, opts: Any) -> Any:
        value, source = super().consume_value(ctx, opts)
        if self._needed and _META in ctx.meta and source is ParameterSource.DEFAULT and not ctx.resilient_parsing:
            name = ctx.meta[_META]
            raise click.UsageError(
                f"profile {name} has no {self.name}: add it to [profiles.{name}] in {file()}, or give --{self.name}",
                ctx,
            )
        return value, source
