"""`mainstem quota set`"""

from __future__ import annotations

from typing import Any

import click

from mainstem.cli.parameters import options
from mainstem.cli.parameters.quotas import changes_of, quota_options
from mainstem.cli.quota import entities
from mainstem.cli.terminal.output import print_json


@click.command("set")
@entities.entity_options
@quota_options
@options.kafka_only
@options.as_json
def command(bootstrap: str, as_json: bool, **given: Any) -> None:
    """Set quotas of a user, a client id, both together, an address or a tenant; those that are not said stay."""
    entity = entities.entity_given(given)
    changes = changes_of(entities.without_entity(given))
    if not changes:
        raise click.UsageError("no quota is said; --produce-rate 10MB is one")
    entities.change(bootstrap, entity, changes)
    if as_json:
        print_json({"of": entities.data_of(entity), "changed": changes})
    else:
        click.echo(f"changed quotas of {entities.text_of(entity)}: {', '.join(changes)}")
