"""`mainstem acl remove`"""

from __future__ import annotations

import click

from mainstem.cli.acl import rules
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.security.acls.acl import AclFilter, Operation, PatternType, ResourceKind


@click.command("remove")
@click.argument("principal", type=rules.PrincipalParameter())
@click.argument("operation", type=rules.OperationParameter(), required=False)
@click.argument("resource", type=rules.ResourceParameter(), required=False)
@click.option("--prefix", is_flag=True, help="Rules for all resources whose names begin with that of RESOURCE.")
@click.option("-y", "--yes", is_flag=True, help="Remove without asking.")
@options.kafka_only
@options.as_json
def command(
    principal: str,
    operation: Operation | None,
    resource: rules.Resource | None,
    prefix: bool,
    yes: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Remove the rules that allow or deny PRINCIPAL something: OPERATION alone, on RESOURCE alone, where these are
    given."""
    from mainstem.cli.acl.acl_requests import asked

    kind, name = resource or (ResourceKind.ANY, None)
    pattern = PatternType.PREFIXED if prefix else PatternType.LITERAL if name else PatternType.ANY
    wanted = AclFilter(kind, name, pattern, principal, operation=operation or Operation.ANY)
    with asked(bootstrap, kind) as requests:
        acls = requests.found(wanted)
    if acls and not yes:
        for acl in acls:
            click.echo(rules.text_of(acl), err=True)
        click.confirm(f"remove {'this rule' if len(acls) == 1 else f'these {len(acls)} rules'}?", abort=True, err=True)
    if acls:
        with asked(bootstrap, kind) as requests:
            requests.remove(acls)
    if as_json:
        print_json({"removed": [rules.data_of(acl) for acl in acls]})
        return
    for acl in acls:
        click.echo(f"removed {rules.text_of(acl)}")
    if not acls:
        click.echo("no such rule")
