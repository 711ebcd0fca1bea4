"""`mainstem acl add`"""

from __future__ import annotations

import click

from mainstem.cli.acl import rules
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.security.acls.acl import Acl, Operation, PatternType, Permission


@click.command("add")
@click.argument("principal", type=rules.PrincipalParameter())
@click.argument("operations", type=rules.OperationParameter(), metavar="OPERATION...", nargs=-1, required=True)
@click.argument("resource", type=rules.ResourceParameter())
@click.option("--prefix", is_flag=True, help="All resources whose names begin with that of RESOURCE.")
@click.option("--deny", is_flag=True, help="Deny it, whatever other rules allow.")
@click.option("--host", default="*", show_default=True, help="Only from this IP address.")
@options.kafka_only
@options.as_json
def command(
    principal: str,
    operations: tuple[Operation, ...],
    resource: rules.Resource,
    prefix: bool,
    deny: bool,
    host: str,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Allow PRINCIPAL (User:alice, or User:* for everybody) some operations on RESOURCE.

    RESOURCE is topic:NAME, group:NAME, transactional-id:NAME, delegation-token:ID, user:NAME or cluster; * as NAME
    stands for all.
    """
    from mainstem.cli.acl.acl_requests import asked

    pattern = PatternType.PREFIXED if prefix else PatternType.LITERAL
    permission = Permission.DENY if deny else Permission.ALLOW
    acls = [Acl(*resource, pattern, principal, host, operation, permission) for operation in operations]
    with asked(bootstrap, resource[0]) as requests:
        requests.add(acls)
    if as_json:
        print_json({"added": [rules.data_of(acl) for acl in acls]})
        return
    for acl in acls:
        click.echo(f"added {rules.text_of(acl)}")
