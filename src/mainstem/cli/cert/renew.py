"""`mainstem cert renew`"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from mainstem.cli.cert import parameters
from mainstem.cli.parameters import options
from mainstem.security.certificates.library import require_cryptography


@click.command("renew")
@click.argument("files", metavar="CERTIFICATE…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--new-key", is_flag=True, help="Make a new key as well.")
@click.option(
    "--within",
    type=click.IntRange(0, parameters.DAYS_MAX),
    metavar="DAYS",
    help="Leave those that are valid for longer.",
)
@parameters.days
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the authority is. Default: beside the certificate.",
)
@options.neither
@options.as_json
def command(
    files: tuple[Path, ...],
    new_key: bool,
    within: int | None,
    days: int | None,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Make certificates anew, in their place.

    They say what they said and are valid from now on, for as long as new ones are. A certificate changes in one step,
    so that who loads it sees the old or the new one. An authority is renewed like any other and keeps its key.
    """
    require_cryptography()
    from mainstem.security.certificates.certificate_directory import CertificateDirectory
    from mainstem.security.certificates.description import described

    now = parameters.now()
    due = [path for path in files if within is None or described(path)[0].left(now) <= timedelta(days=within)]
    written = [
        CertificateDirectory(directory or path.parent).renew(path, now, parameters.lifetime(days), new_key=new_key)
        for path in due
    ]
    parameters.tell(written, as_json=as_json)
