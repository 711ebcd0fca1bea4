"""Options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

import click

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_HTTP = "127.0.0.1:9080"

bootstrap = click.option(
    "--bootstrap", metavar="HOST:PORT", default=DEFAULT_BOOTSTRAP, show_default=True, envvar="MAINSTEM_BOOTSTRAP",
    help="Kafka address of any node.",
)
http = click.option(
    "--http", metavar="HOST:PORT", default=DEFAULT_HTTP, show_default=True, envvar="MAINSTEM_HTTP",
    help="HTTP address of a node.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print data instead of text.")


def pairs(assignments: tuple[str, ...], option: str) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping. Raises click.BadParameter naming the option."""
    found = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{assignment!r} is not KEY=VALUE", param_hint=option)
        found[key] = value
    return found
