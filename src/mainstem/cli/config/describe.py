"""`mainstem config describe`"""

from __future__ import annotations

from typing import Any

import click

from mainstem.cli.config import resources
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table


@click.command("describe")
@resources.resource_options
@options.kafka_only
@options.as_json
def command(bootstrap: str, as_json: bool, **given: Any) -> None:
    """Show the configs of one thing, and where their values come from."""
    resource = resources.resource_given(given)
    configs = resources.described(bootstrap, resource)
    if as_json:
        print_json(
            {
                "kind": resource.kind.name.lower(),
                "name": resource.name,
                "configs": [
                    {
                        "name": config.name,
                        "value": config.value,
                        "source": resources.SOURCES.get(config.config_source, str(config.config_source)),
                        "read_only": config.read_only,
                        "documentation": config.documentation,
                    }
                    for config in configs
                ],
            }
        )
        return
    rows = [
        (config.name, config.value or "-", resources.SOURCES.get(config.config_source, str(config.config_source)))
        for config in configs
    ]
    print_table(["CONFIG", "~VALUE", "FROM"], rows, empty=f"{resource} has no configs")
