"""`mainstem user add`"""

from __future__ import annotations

from typing import BinaryIO

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.cli.user import scram_users
from mainstem.security.sasl.credentials import ITERATIONS_MAX, ITERATIONS_MIN, ITERATIONS_USUAL


@click.command("add")
@click.argument("name")
@click.option("--password-file", type=click.File("rb"), help="Its first line is the password; - reads standard input.")
@click.option(
    "--mechanism", "mechanisms", type=click.Choice(scram_users.MECHANISMS), multiple=True,
    default=scram_users.MECHANISMS, show_default=True, help="What the password is for. May be given twice.",
)  # fmt: skip
@click.option(
    "--iterations", type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX), default=ITERATIONS_USUAL, show_default=True,
    help="How often the password is hashed.",
)  # fmt: skip
@options.kafka_only
@options.as_json
def command(
    name: str,
    password_file: BinaryIO | None,
    mechanisms: tuple[str, ...],
    iterations: int,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Give the user NAME a password, or another one. It is asked for, unless a file has it, and leaves this machine
    salted and hashed only."""
    from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    from mainstem.cli.clients import kafka_node

    password = scram_users.password_of(password_file)
    admin = kafka_node.admin(bootstrap)
    for mechanism in mechanisms:
        info = ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], iterations)
        changes = [UserScramCredentialUpsertion(name, info, password)]
        future = admin.alter_user_scram_credentials(changes, request_timeout=kafka_node.REQUEST_SECONDS)[name]
        kafka_node.outcome(future, f"user {name} was not given a password for {mechanism}")
    if as_json:
        print_json({"user": name, "mechanisms": dict.fromkeys(mechanisms, iterations)})
    else:
        click.echo(f"user {name} has a password for {' and '.join(mechanisms)}")
