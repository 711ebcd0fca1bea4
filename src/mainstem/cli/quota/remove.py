"""`mainstem quota remove`"""

from __future__ import annotations

from typing import Any

import click

from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import options
from mainstem.cli.quota import entities
from mainstem.cli.terminal.output import print_json


@click.command("remove")
@entities.entity_options
@options.kafka_only
@options.as_json
def command(bootstrap: str, as_json: bool, **given: Any) -> None:
    """Remove all quotas of a user, a client id, both together, an address or a tenant."""
    entity = entities.entity_given(given)
    keys = sorted(entities.quotas_of(bootstrap).of(entity))
    if not keys:
        raise RequestRefused(f"there are no quotas of {entities.text_of(entity)}")
    entities.change(bootstrap, entity, dict.fromkeys(keys))
    if as_json:
        print_json({"of": entities.data_of(entity), "removed": keys})
    else:
        click.echo(f"removed quotas of {entities.text_of(entity)}: {', '.join(keys)}")
