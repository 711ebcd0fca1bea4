"""`mainstem profile remove`"""

from __future__ import annotations

import click

from mainstem.cli.parameters import options, profiles
from mainstem.cli.terminal.output import print_json


@click.command("remove")
@click.argument("name")
@options.neither
@options.as_json
def command(name: str, as_json: bool) -> None:
    """Forget a name, and the secrets that are written under it."""
    from mainstem.cli.profile import profile_file

    file = profiles.file()
    profile_file.remove(file, name)
    if as_json:
        print_json({"profile": name, "file": str(file)})
    else:
        click.echo(f"profile {name} is gone from {file}")
