"""`mainstem acl why`"""

from __future__ import annotations

import click

from mainstem.cli.acl import rules
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.security.acls.acl import AclFilter, Operation, PatternType
from mainstem.security.acls.acl_table import AclTable
from mainstem.security.acls.authorizer import Authorizer
from mainstem.security.acls.config import AuthorizerConfig

ELSEWHERE = "a host that no rule names"


@click.command("why")
@click.argument("principal", type=rules.PrincipalParameter())
@click.argument("operation", type=rules.OperationParameter())
@click.argument("resource", type=rules.ResourceParameter())
@click.option("--host", default=ELSEWHERE, show_default=True, help="The IP address that the client comes from.")
@options.kafka_only
@options.as_json
def command(
    principal: str, operation: Operation, resource: rules.Resource, host: str, bootstrap: str, as_json: bool
) -> None:
    """Tell whether PRINCIPAL may do OPERATION on RESOURCE, and which rule decides."""
    from mainstem.cli.acl.acl_requests import asked
    from mainstem.cli.clients import kafka_node

    table = AclTable()
    with asked(bootstrap, resource[0]) as requests:
        for acl in requests.found(AclFilter(*resource, PatternType.MATCH)):
            table.add(acl)
    admin = kafka_node.admin(bootstrap)
    super_users = rules.node_config(admin, "super.users")
    everyone = rules.node_config(admin, "allow.everyone.if.no.acl.found")
    config = AuthorizerConfig(super_users=super_users or "", allow_everyone_if_no_acl_found=everyone == "true")
    decision = Authorizer(config, lambda: table, lambda: 0.0).decide(principal, host, operation, *resource)
    if as_json:
        rule = None if decision.rule is None else rules.data_of(decision.rule)
        print_json({"allowed": decision.allowed, "reason": decision.reason, "rule": rule})
        return
    click.echo(f"{'allowed' if decision.allowed else 'denied'}: {decision.reason}")
    if decision.rule is not None:
        click.echo(rules.text_of(decision.rule))
    if super_users is None:
        click.echo("(the nodes' super users are not told: DESCRIBE_CONFIGS on the cluster is missing)", err=True)
