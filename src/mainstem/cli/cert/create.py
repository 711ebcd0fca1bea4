"""`mainstem cert create`"""

from __future__ import annotations

from pathlib import Path

import click

from mainstem.cli.cert import parameters
from mainstem.cli.parameters import options
from mainstem.security.certificates import holders
from mainstem.security.certificates.library import require_cryptography


@click.command("create")
@click.option("--node", "node_id", type=click.IntRange(1, 2**31 - 1), metavar="ID", help="Make that of a node.")
@click.option(
    "--host",
    "hosts",
    metavar="HOST",
    multiple=True,
    help="A name or an address that clients reach the node at; repeatable.",
)
@click.option("--splitter", is_flag=True, help="Make that of the splitters that run beside no node.")
@click.option("--user", metavar="NAME", help="Make that of a client which nodes know by this name.")
@parameters.days
@parameters.directory
@parameters.force
@options.neither
@options.as_json
def command(
    node_id: int | None,
    hosts: tuple[str, ...],
    splitter: bool,
    user: str | None,
    days: int | None,
    directory: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Make a certificate and its key.

    It is of a node (--node with --host), of splitters (--splitter) or of a user (--user). The authorities of --dir
    issue it.
    """
    if [node_id is not None, splitter, user is not None].count(True) != 1:
        raise click.UsageError("give one of --node, --splitter and --user")
    if hosts and node_id is None:
        raise click.UsageError("--host goes with --node: users and splitters are not told by where they are")
    require_cryptography()
    from mainstem.security.certificates.authority import CERTIFICATE_LIFETIME
    from mainstem.security.certificates.certificate_directory import CertificateDirectory

    if node_id is not None:
        holder = holders.node(node_id, hosts)
    else:
        holder = holders.splitter() if user is None else holders.user(user)
    lifetime = parameters.lifetime(days) or CERTIFICATE_LIFETIME
    written = CertificateDirectory(directory).create(holder, parameters.now(), lifetime, replace=force)
    parameters.tell([written], as_json=as_json)
