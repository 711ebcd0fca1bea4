"""`mainstem cert authority`"""

from __future__ import annotations

from pathlib import Path

import click

from mainstem.cli.cert import parameters
from mainstem.cli.parameters import options
from mainstem.security.certificates.library import require_cryptography


@click.command("authority")
@click.option(
    "--name",
    metavar="NAME",
    default="mainstem",
    show_default=True,
    help="What the authorities are called, before their kind.",
)
@parameters.directory
@parameters.force
@options.neither
@options.as_json
def command(name: str, directory: Path, force: bool, as_json: bool) -> None:
    """Make the two authorities of a cluster.

    That of the nodes (nodes-ca.pem) issues certificates of nodes and splitters, that of the users (users-ca.pem) those
    that clients show. They are valid for ten years. A holder of the key of the first may act as a node: keep both keys
    away from nodes and clients."""
    require_cryptography()
    from mainstem.security.certificates.certificate_directory import CertificateDirectory

    written = CertificateDirectory(directory).make_authorities(name, parameters.now(), replace=force)
    parameters.tell(written, as_json=as_json)
