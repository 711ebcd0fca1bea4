"""`mainstem user remove`"""

from __future__ import annotations

import click

from mainstem.cli.errors import RequestRefused
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.cli.user import scram_users


@click.command("remove")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@options.kafka_only
@options.as_json
def command(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Remove users: nobody can authenticate by these names any more. Connections that have done so go on as long as
    their sessions last."""
    from confluent_kafka.admin import ScramMechanism, UserScramCredentialDeletion

    from mainstem.cli.clients import kafka_node

    wanted = list(dict.fromkeys(names))
    admin = kafka_node.admin(bootstrap)
    users = scram_users.described(admin, wanted)
    removed, failures = [], [f"there is no user {name}" for name in wanted if name not in users]
    for name, user in users.items():
        try:
            for mechanism in user:
                changes = [UserScramCredentialDeletion(name, ScramMechanism[mechanism.replace("-", "_")])]
                future = admin.alter_user_scram_credentials(changes, request_timeout=kafka_node.REQUEST_SECONDS)[name]
                kafka_node.outcome(future, f"user {name} was not removed")
        except RequestRefused as failure:
            failures.append(str(failure))
        else:
            removed.append(name)
            if not as_json:
                click.echo(f"removed user {name}")
    if as_json:
        print_json({"removed": removed})
    if failures:
        raise RequestRefused("; ".join(failures))
