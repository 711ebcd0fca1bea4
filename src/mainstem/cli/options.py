"""Options that several commands share, so that they read and behave the same everywhere.

Every command that talks to a node takes both addresses, so that a script passes the same two everywhere. A command
that needs only one of them takes the other one and says in its help that it does nothing with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_HTTP = "127.0.0.1:9080"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _bootstrap(**more: Any) -> Decorator:
    return click.option("--bootstrap", metavar="HOST:PORT", **more)


def _http(**more: Any) -> Decorator:
    return click.option("--http", metavar="HOST:PORT", **more)


_bootstrap_used = _bootstrap(
    default=DEFAULT_BOOTSTRAP, show_default=True, envvar="MAINSTEM_BOOTSTRAP", help="Kafka address of any node."
)
_http_used = _http(
    default=DEFAULT_HTTP, show_default=True, envvar="MAINSTEM_HTTP", help="HTTP address of a node."
)


def kafka_only(command: Callable[..., Any]) -> Callable[..., Any]:
    """`bootstrap` for the command; `--http` is taken and not used."""
    unused = _http(expose_value=False, help="Taken for the sake of scripts; this command asks over Kafka alone.")
    return _bootstrap_used(unused(command))


def http_only(command: Callable[..., Any]) -> Callable[..., Any]:
    """`http` for the command; `--bootstrap` is taken and not used."""
    unused = _bootstrap(
        expose_value=False, help="Taken for the sake of scripts; this command asks over HTTP alone."
    )
    return _http_used(unused(command))


def neither(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--bootstrap` and `--http` are taken and not used."""
    unused = "Taken for the sake of scripts; this command asks no node."
    return _bootstrap(expose_value=False, help=unused)(_http(expose_value=False, help=unused)(command))


def both(command: Callable[..., Any]) -> Callable[..., Any]:
    """`bootstrap` and `http` for the command."""
    return _bootstrap_used(_http_used(command))


as_json = click.option("--json", "as_json", is_flag=True, help="Print data instead of text.")

token = click.option(
    "--token", metavar="TOKEN", envvar="MAINSTEM_TOKEN",
    help="The node's token; read from its write_dir where that is on this host.",
)

configs = click.option(
    "-c", "--config", "--set", "configs", metavar="KEY=VALUE", multiple=True,
    help="Set a topic config, for example retention.ms=60000; repeatable.",
)


def pairs(assignments: tuple[str, ...], option: str) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping. Raises click.BadParameter naming the option."""
    found = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{assignment!r} is not KEY=VALUE", param_hint=option)
        found[key] = value
    return found
