"""`mainstem cert revoke`"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from mainstem.cli.cert import parameters
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_text
from mainstem.security.certificates.library import require_cryptography


@click.command("revoke")
@click.argument("files", metavar="[CERTIFICATE…]", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the authorities are. Default: beside each certificate.",
)
@click.option(
    "--days", type=click.IntRange(1, parameters.DAYS_MAX), help="Another list is due within so long. Default: 30."
)
@options.neither
@options.as_json
def command(files: tuple[Path, ...], directory: Path | None, days: int | None, as_json: bool) -> None:
    """Revoke certificates before they expire: write the lists of their authorities anew, with them in it.

    Listeners whose `crl` is such a list let nobody in with these, and end the connections that there are, within
    seconds of its change. Without certificates the lists in --dir are written anew as they are, so that they are young.
    """
    require_cryptography()
    from mainstem.security.certificates.authority import LIST_LIFETIME
    from mainstem.security.certificates.certificate_directory import CertificateDirectory

    if not files and directory is None:
        raise click.UsageError("name the certificates, or with --dir the directory whose lists are to be made anew")
    now, lifetime = parameters.now(), LIST_LIFETIME if days is None else timedelta(days=days)
    if files:
        lists = {
            (written := CertificateDirectory(directory or path.parent).revoke(path, now, lifetime)).file: written
            for path in files
        }
    else:
        assert directory is not None
        lists = {written.file: written for written in CertificateDirectory(directory).renew_lists(now, lifetime)}
    if as_json:
        print_json(
            {
                "lists": [
                    {"file": str(it.file), "revoked": it.revoked, "next_update": it.until.isoformat()}
                    for it in lists.values()
                ]
            }
        )
        return
    for it in lists.values():
        print_text(f"{it.file}: {it.revoked} revoked, to be replaced by {it.until:%Y-%m-%d}")
