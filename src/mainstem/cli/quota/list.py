"""`mainstem quota list`"""

from __future__ import annotations

from typing import Any

import click

from mainstem.cli.parameters import options
from mainstem.cli.quota import entities
from mainstem.cli.terminal.output import print_json, print_table
from mainstem.cli.terminal.rates import rate_text


@click.command("list")
@entities.entity_options
@options.kafka_only
@options.as_json
def command(bootstrap: str, as_json: bool, **given: Any) -> None:
    """List the quotas, or those that name this user, client id, address or tenant."""
    wanted = entities.parts_given(given).items()
    found = [(entity, values) for entity, values in entities.quotas_of(bootstrap) if wanted <= dict(entity).items()]
    found.sort(key=lambda each: entities.text_of(each[0]))
    if as_json:
        print_json({"quotas": [{"of": entities.data_of(entity), "values": values} for entity, values in found]})
        return
    rows = [
        (entities.text_of(entity), key, rate_text(key, value))
        for entity, values in found
        for key, value in sorted(values.items())
    ]
    print_table(["~OF", "QUOTA", ">AT MOST"], rows, empty="no quotas")
