"""`mainstem profile show`"""

from __future__ import annotations

import click

from mainstem.cli.clients.client_settings import masked
from mainstem.cli.errors import SettingsUnusable
from mainstem.cli.parameters import options, profiles
from mainstem.cli.terminal.output import print_fields, print_json


@click.command("show")
@click.argument("name")
@options.neither
@options.as_json
def command(name: str, as_json: bool) -> None:
    """Show what a name stands for. Of tokens, passwords and keys it shows that they are there."""
    from mainstem.cli.profile import profile_file

    file = profiles.file()
    default, found = profile_file.known(file)
    if name not in found:
        raise SettingsUnusable(
            f"there is no profile {name!r} in {file}; known are {', '.join(sorted(found)) or 'none'}"
        )
    shown = masked(found[name])
    if as_json:
        print_json({"profile": name, "default": name == default, "settings": shown})
    else:
        print_fields([("profile", f"{name}{', the default' if name == default else ''}"), *shown.items()])
