"""`mainstem cert show`"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import structs

from mainstem.cli.cert import parameters
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_fields, print_json, print_text
from mainstem.security.certificates.library import require_cryptography

if TYPE_CHECKING:
    from mainstem.security.certificates.description import Description


@click.command("show")
@click.argument("files", metavar="CERTIFICATE…", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.neither
@options.as_json
def command(files: tuple[Path, ...], as_json: bool) -> int:
    """Show what certificates say: whose they are, where they are valid, who issued them, when they expire.

    The exit code is 1 when one of them has expired or is not valid yet.
    """
    require_cryptography()
    from mainstem.security.certificates.description import described

    now = parameters.now()
    found = [one for path in files for one in described(path)]
    if as_json:
        rows = [structs.asdict(one) | {"expires_in_seconds": int(one.left(now).total_seconds())} for one in found]
        print_json({"certificates": rows})
    else:
        for number, one in enumerate(found):
            if number:
                print_text()
            print_fields(_fields(one, now))
    return 0 if all(one.not_before <= now < one.not_after for one in found) else 1


def _fields(one: Description, now: datetime) -> list[tuple[str, str]]:
    fields = [("file", one.file), ("subject", one.subject)]
    fields += [("valid for", name) for name in one.names]
    fields += [
        ("issuer", one.issuer if one.issuer != one.subject else "itself"),
        ("use", ", ".join([*(["authority"] if one.authority else []), *one.usages]) or "any"),
        ("key", one.key),
        ("serial", one.serial),
        ("SHA-256", one.fingerprint),
        ("valid from", f"{one.not_before:%Y-%m-%d %H:%M:%S} UTC"),
        ("expires", f"{one.not_after:%Y-%m-%d %H:%M:%S} UTC, {_when(one.left(now))}"),
    ]
    return fields


def _when(left: timedelta) -> str:
    if left <= timedelta():
        return f"{-left.days} days ago: it has expired"
    return f"in {left.days} days"
