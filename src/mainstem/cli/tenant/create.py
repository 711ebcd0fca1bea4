"""`mainstem tenant create`"""

from __future__ import annotations

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.parameters.quotas import Rate, changes_of, quota_options
from mainstem.cli.terminal.output import print_json
from mainstem.console.views.asked_changes import TenantRequest


@click.command("create")
@click.argument("name")
@click.option("--prefix", help="What the names of its topics and groups begin with.  [default: NAME.]")
@click.option("--retention-ms-max", type=click.IntRange(min=1), help="The highest retention.ms of its topics.")
@click.option("--queues-max", type=click.IntRange(min=1), help="How many partitions it may have in all.")
@click.option("--user", "users", multiple=True, help="A user who may do everything there; may be given again.")
@quota_options
@click.option("--replace", is_flag=True, help="Have this take the place of a tenant of that name, if there is one.")
@options.http_only
@options.token
@options.as_json
def command(
    name: str,
    prefix: str | None,
    retention_ms_max: int | None,
    queues_max: int | None,
    users: tuple[str, ...],
    replace: bool,
    http: str,
    token: str | None,
    as_json: bool,
    **rates: Rate | None,
) -> None:
    """Make a tenant: all topics, consumer groups and transactional ids that begin with its prefix.

    Quotas are for all its users together. A tenant that exists stays as it is, unless it is to be replaced: it loses
    what is not said then. Topics that are above a ceiling already stay as they are.
    """
    wanted = TenantRequest(
        name=name,
        how="replace" if replace else "create",
        prefix=f"{name}." if prefix is None else prefix,
        retention_ms_max=retention_ms_max,
        queues_max=queues_max,
        users=list(dict.fromkeys(users)),
        quotas=changes_of(rates),
    )
    HttpNode(http, token).post("/v1/tenants/set", wanted)
    if as_json:
        print_json(wanted)
    else:
        click.echo(f"tenant {name} has all that begins with {wanted.prefix}")
