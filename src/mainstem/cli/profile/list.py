"""`mainstem profile list`"""

from __future__ import annotations

import click

from mainstem.cli.parameters import options, profiles
from mainstem.cli.terminal.output import print_json, print_table


@click.command("list")
@options.neither
@options.as_json
def command(as_json: bool) -> None:
    """List the clusters that have names. A star marks the default."""
    from mainstem.cli.profile import profile_file

    default, found = profile_file.known(profiles.file())
    if as_json:
        rows = [
            {"profile": name, "default": name == default, "bootstrap": one.get("bootstrap"), "http": one.get("http")}
            for name, one in found.items()
        ]
        print_json({"profiles": rows})
        return
    print_table(
        ["PROFILE", "~BOOTSTRAP", "HTTP", "PROTOCOL"],
        [
            (
                f"{name}{' *' if name == default else ''}",
                one.get("bootstrap", "-"),
                one.get("http", "-"),
                one.get("security.protocol", "-"),
            )
            for name, one in found.items()
        ],
        empty=f"there are no profiles in {profiles.file()}; `mainstem profile add` makes one",
    )
