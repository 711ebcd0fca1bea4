"""`mainstem quota describe`"""

from __future__ import annotations

from typing import Any

import click

from mainstem.cli.parameters import options
from mainstem.cli.quota import entities
from mainstem.cli.terminal.output import print_json, print_table
from mainstem.cli.terminal.rates import rate_text
from mainstem.security.quotas.quota import (
    CLIENT_ID,
    IP,
    OF_ADDRESSES,
    OF_CLIENTS,
    OF_TENANTS,
    TENANT,
    USER,
    Entity,
)
from mainstem.security.quotas.quota_table import InForce, QuotaTable


@click.command("describe")
@entities.entity_options
@options.kafka_only
@options.as_json
def command(bootstrap: str, as_json: bool, **given: Any) -> None:
    """Show which quotas are in force for a user, a client id, both together, an address or a tenant, and with whom it
    shares each. A client of a tenant's user is under the tenant's quotas as well."""
    entity = entities.entity_given(given)
    if None in dict(entity).values():
        raise click.UsageError("it takes a name: mainstem quota list shows the defaults")
    found = _in_force(entities.quotas_of(bootstrap), entity)
    if as_json:
        quotas = {key: {"value": it.per_second, "shared_by": entities.data_of(it.of)} for key, it in found.items()}
        print_json({"of": entities.data_of(entity), "in_force": quotas})
        return
    print_table(
        ["QUOTA", ">AT MOST", "~SHARED BY ALL OF"],
        [(key, rate_text(key, it.per_second), entities.text_of(it.of)) for key, it in found.items()],
        empty=f"no quota is in force for {entities.text_of(entity)}",
    )


def _in_force(table: QuotaTable, entity: Entity) -> dict[str, InForce]:
    """By key the quota that somebody is under."""
    parts = {kind: name or "" for kind, name in entity}
    if IP in parts:
        found = {key: table.of_address(key, parts[IP]) for key in OF_ADDRESSES}
    elif TENANT in parts:
        found = {key: table.of_tenant(key, parts[TENANT]) for key in OF_TENANTS}
    else:
        user, client_id = parts.get(USER, ""), parts.get(CLIENT_ID, "")
        found = {key: table.of_client(key, user, client_id) for key in OF_CLIENTS}
    return {key: quota for key, quota in found.items() if quota is not None}
