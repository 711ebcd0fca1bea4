"""Named clusters: a file of addresses, so that `--profile NAME` stands for `--bootstrap`, `--http`, `--token` and
`--client-config`, and for the settings that a client is let in with.

An address comes from the first of these that has one: its option, a profile named by `--profile`, its variable, a
profile named by MAINSTEM_PROFILE or by `default` in the file, the built-in default. A profile that is named on the
command line so goes before variables that were exported for another cluster; and where a profile is used that lacks an
address, the command says so instead of asking a node of another cluster.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from mainstem.cli.clients import client_settings
from mainstem.errors import MainstemError

_META = "mainstem.profile"
_ROOT = "mainstem.profile.root"
_NAMED = "mainstem.profile.named"
_SETTINGS = "mainstem.profile.settings"
_FILE = "mainstem.profile.file"
"""Keys of `click.Context.meta`: the profile in use, the name that `mainstem --profile` gave, whether the one in use was
named on the command line, the client's settings in it, and the `_ClientConfig` of `--client-config`."""

KEYS = ("bootstrap", "http", "token", "client_config")


class _ClientConfig(NamedTuple):
    """A file of client settings; `named`: by an option or a variable, so that it counts instead of a profile's."""

    settings: Mapping[str, str]
    named: bool


def file() -> Path:
    """The file of the profiles."""
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


def client_config_option(*, help: str, used: bool = True) -> Any:
    """`--client-config` of a command, which counts before what the profile says; `used`: else it is accepted and not
    read."""

    def take(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
        if path is None or not used:
            return
        named = context.get_parameter_source("client_config") is not ParameterSource.DEFAULT_MAP
        quiet = contextlib.suppress(MainstemError) if context.resilient_parsing else contextlib.nullcontext()
        with quiet:
            context.meta[_FILE] = _ClientConfig(client_settings.properties(path), named)

    return click.option(
        "--client-config", "client_config", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
        envvar="MAINSTEM_CLIENT_CONFIG", cls=ClusterOption, is_eager=True, expose_value=False, callback=take, help=help,
    )  # fmt: skip


def client_settings_of(context: click.Context | None) -> Mapping[str, str]:
    """The settings that the command's clients connect with."""
    if context is None:
        return {}
    inline: Mapping[str, str] = context.meta.get(_SETTINGS, {})
    file: _ClientConfig | None = context.meta.get(_FILE)
    if file is None:
        return inline
    connecting = {key: value for key, value in file.settings.items() if client_settings.connects(key)}
    return connecting if file.named else {**connecting, **inline}


def _choose(context: click.Context, name: str | None, *, named: bool, falls_back: bool) -> None:
    path = file()
    if name is None and not (falls_back and path.exists()):
        return
    default, profiles = read(path)
    name = name if name is not None else default
    if name is None:
        return
    if name not in profiles:
        close = difflib.get_close_matches(name, profiles, n=1)
        known = f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(profiles)) or 'none'}"
        raise click.BadParameter(f"there is no profile {name!r} in {path}; {known}", context, param_hint="--profile")
    profile = profiles[name]
    context.default_map = {key: value for key, value in profile.items() if key in KEYS}
    context.meta[_SETTINGS] = {key: value for key, value in profile.items() if key not in KEYS}
    context.meta[_META] = name
    context.meta[_NAMED] = named


def read(path: Path) -> tuple[str | None, dict[str, dict[str, str]]]:
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
        profiles[name] = dict(_flat(profile))
        for key, value in profiles[name].items():
            if key not in KEYS and not client_settings.connects(key):
                raise _wrong(
                    f"{path}: unknown key profiles.{name}.{key}; expected {', '.join(KEYS)}, or a setting of "
                    "clients such as security.protocol"
                )
            if not isinstance(value, str):
                shown = client_settings.MASK if client_settings.is_secret(key) else repr(value)
                raise _wrong(f"{path}: profiles.{name}.{key} = {shown}: expected text")
    return default, profiles


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`sasl.username = "a"` means the same with quotes around the key and without."""
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


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
        client_config: _ClientConfig | None = ctx.meta.get(_FILE) if self.name == "bootstrap" else None
        if client_config is not None and source is not ParameterSource.COMMANDLINE:
            addresses = client_config.settings.get(client_settings.BOOTSTRAP_KEY)
            if addresses and (client_config.named or source is ParameterSource.DEFAULT):
                return addresses, ParameterSource.DEFAULT_MAP
        if self._needed and _META in ctx.meta and source is ParameterSource.DEFAULT and not ctx.resilient_parsing:
            name = ctx.meta[_META]
            raise click.UsageError(
                f"profile {name} has no {self.name}: add it to [profiles.{name}] in {file()}, or give --{self.name}",
                ctx,
            )
        return value, source
