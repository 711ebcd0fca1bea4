"""`mainstem tenant alter`"""

from __future__ import annotations

from typing import Any

import click
from msgspec import UNSET

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.parameters.options import OptionType
from mainstem.cli.parameters.quotas import NONE, Rate, changes_of, quota_options
from mainstem.cli.terminal.output import print_json
from mainstem.console.views.asked_changes import TenantRequest


class _CeilingType(OptionType[int]):
    """A whole number of at least 1, or `none`, which comes out as 0."""

    name = "NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        return 0 if value == NONE else click.IntRange(min=1).convert(value, param, context)


@click.command("alter")
@click.argument("name")
@click.option("--prefix", help="What the names of its topics and groups begin with.")
@click.option("--retention-ms-max", type=_CeilingType(), help="The highest retention.ms of its topics; none: any.")
@click.option("--queues-max", type=_CeilingType(), help="How many partitions it may have in all; none: any number.")
@click.option("--user", "users", multiple=True, help="Its users from now on; may be given again.")
@click.option("--no-users", is_flag=True, help="It has no users any more.")
@quota_options
@options.http_only
@options.token
@options.as_json
def command(
    name: str,
    prefix: str | None,
    retention_ms_max: int | None,
    queues_max: int | None,
    users: tuple[str, ...],
    no_users: bool,
    http: str,
    token: str | None,
    as_json: bool,
    **rates: Rate | None,
) -> None:
    """Change what a tenant is, and what it may have; what is not said stays as it is."""
    if users and no_users:
        raise click.UsageError("--user and --no-users say different things")
    wanted = TenantRequest(
        name=name,
        how="alter",
        prefix=UNSET if prefix is None else prefix,
        retention_ms_max=UNSET if retention_ms_max is None else retention_ms_max or None,
        queues_max=UNSET if queues_max is None else queues_max or None,
        users=list(dict.fromkeys(users)) if users or no_users else UNSET,
        quotas=changes_of(rates),
    )
    HttpNode(http, token).post("/v1/tenants/set", wanted)
    if as_json:
        print_json(wanted)
    else:
        click.echo(f"tenant {name} is changed")
