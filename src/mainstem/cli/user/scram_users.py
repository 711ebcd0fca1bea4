"""Users as a node describes them: what they have passwords for, never the passwords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

import click

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


Passwords = dict[str, int]
"""Iterations by mechanism."""


def described(admin: AdminClient, names: list[str] | None = None) -> dict[str, Passwords]:
    """All users, or those of these names that exist. Raises RequestRefused."""
    from confluent_kafka import KafkaError, KafkaException

    from mainstem.cli.clients import kafka_node

    if not names:
        future = admin.describe_user_scram_credentials(request_timeout=kafka_node.REQUEST_SECONDS)
        found = kafka_node.outcome(future, "the users were not listed")
        return {name: _user(description) for name, description in sorted(found.items())}
    users = {}
    futures = admin.describe_user_scram_credentials(names, request_timeout=kafka_node.REQUEST_SECONDS)
    for name, each in futures.items():
        try:
            users[name] = _user(each.result(timeout=kafka_node.REQUEST_SECONDS + 5))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.RESOURCE_NOT_FOUND:
                kafka_node.outcome(each, f"user {name} was not looked up")
    return users


def _user(description: Any) -> Passwords:
    """From what the client library describes, which has no types."""
    infos = description.scram_credential_infos
    return dict(sorted((info.mechanism.name.replace("_", "-"), info.iterations) for info in infos))


def password_of(file: BinaryIO | None) -> bytes:
    """The first line of the file, or what somebody types, twice. Raises click.UsageError for none at all."""
    if file is None:
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)).encode()
    password = file.readline().rstrip(b"\r\n")
    if not password:
        raise click.UsageError("the first line of the file is empty; it takes a password")
    return password
