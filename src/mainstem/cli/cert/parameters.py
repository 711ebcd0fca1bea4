"""Shared by the commands about certificates."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mainstem.cli.terminal.output import print_json

if TYPE_CHECKING:
    from mainstem.security.certificates.certificate_directory import WrittenCertificate

DAYS_MAX = 36_525
"""A hundred years."""

directory = click.option(
    "--dir", "directory", type=click.Path(path_type=Path, file_okay=False), default=Path("certs"), show_default=True,
    help="Where the authorities and the certificates that they issue lie.",
)  # fmt: skip

force = click.option("--force", is_flag=True, help="Replace files that are there.")

days = click.option(
    "--days", type=click.IntRange(1, DAYS_MAX), metavar="N",
    help="Have the certificate be valid so long. Default: a year.",
)  # fmt: skip


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def lifetime(days: int | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)


def tell(written: Iterable[WrittenCertificate], *, as_json: bool) -> None:
    """Which files there are now."""
    found = list(written)
    if as_json:
        rows = [
            {"certificate": str(one.certificate), "key": str(one.key), "not_after": one.until.isoformat()}
            for one in found
        ]
        print_json({"written": rows})
        return
    for one in found:
        click.echo(f"{one.certificate}, with its key in {one.key}: valid until {one.until:%Y-%m-%d}")
