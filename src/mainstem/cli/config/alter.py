"""`mainstem config alter`"""

from __future__ import annotations

from typing import Any

import click

from mainstem.cli.config import resources
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json


@click.command("alter")
@resources.resource_options
@options.configs
@click.option("--unset", metavar="KEY", multiple=True, help="Return a config to its default; repeatable.")
@options.kafka_only
@options.as_json
def command(configs: tuple[str, ...], unset: tuple[str, ...], bootstrap: str, as_json: bool, **given: Any) -> None:
    """Set configs of one thing, or return them to their defaults; those that are not named stay."""
    resource = resources.resource_given(given)
    assigned = options.topic_configs(configs)
    if not assigned and not unset:
        raise click.UsageError("nothing to change: give --set or --unset")
    resources.alter(bootstrap, resource, {**assigned, **dict.fromkeys(unset)})
    if as_json:
        print_json({"kind": resource.kind.name.lower(), "name": resource.name, "set": assigned, "unset": list(unset)})
    else:
        click.echo(f"altered {resource}")
