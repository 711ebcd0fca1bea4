"""`mainstem acl list`"""

from __future__ import annotations

import click

from mainstem.cli.acl import rules
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table
from mainstem.security.acls.acl import AclFilter, PatternType, ResourceKind


@click.command("list")
@click.argument("resource", type=rules.ResourceParameter(), required=False)
@click.option("--principal", type=rules.PrincipalParameter(), help="Only rules for this principal.")
@options.kafka_only
@options.as_json
def command(resource: rules.Resource | None, principal: str | None, bootstrap: str, as_json: bool) -> None:
    """List the access rules, or those that are about RESOURCE, patterns that it fits included."""
    from mainstem.cli.acl.acl_requests import asked

    kind, name = resource or (ResourceKind.ANY, None)
    wanted = AclFilter(kind, name, PatternType.MATCH if name else PatternType.ANY, principal)
    with asked(bootstrap, kind) as requests:
        acls = requests.found(wanted)
    if as_json:
        print_json({"rules": [rules.data_of(acl) for acl in acls]})
        return
    print_table(
        ["~RESOURCE", "~PRINCIPAL", "PERMISSION", "OPERATION", "~HOST"],
        [
            (
                rules.resource_text(acl),
                acl.principal,
                acl.permission.name.lower(),
                rules.operation_text(acl.operation),
                acl.host,
            )
            for acl in acls
        ],
        empty="no access rules",
    )
