"""`mainstem profile add`"""

from __future__ import annotations

from pathlib import Path

import click

from mainstem.cli.clients import client_settings
from mainstem.cli.parameters import options, profiles
from mainstem.cli.terminal.output import print_json

PASSWORD_KEY = "sasl.password"


@click.command("add")
@click.argument("name")
@click.option("--bootstrap", type=options.AddressType(many=True), metavar="HOST:PORT", help="Its Kafka addresses.")
@click.option("--http", type=options.AddressType(), metavar="HOST:PORT", help="The HTTP address of one of its nodes.")
@click.option("--token", metavar="TOKEN", help="The token of that node.")
@click.option(
    "--client-config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Copy the connection's settings from this file of properties.",
)
@click.option(
    "-c", "--set", "assignments", metavar="KEY=VALUE", multiple=True,
    help="Set a client setting, for example security.protocol=SASL_SSL; repeatable.",
)  # fmt: skip
@click.option("--ask-password", is_flag=True, help=f"Ask for {PASSWORD_KEY}, so that it stands in no command line.")
@click.option("--default", "is_default", is_flag=True, help="Use it where no other one is named.")
@click.option("--force", is_flag=True, help="Replace a profile of this name.")
@options.no_profile
@options.as_json
def command(
    name: str,
    bootstrap: str | None,
    http: str | None,
    token: str | None,
    client_config: Path | None,
    assignments: tuple[str, ...],
    ask_password: bool,
    is_default: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Name a cluster: its addresses, and what clients connect with.

    Settings have librdkafka's names. Paths among them become absolute. The file of profiles can be read by its owner
    alone.
    """
    from mainstem.cli.profile import profile_file

    settings = {} if client_config is None else client_settings.properties(client_config)
    addresses = bootstrap or settings.get(client_settings.BOOTSTRAP_KEY)
    connecting = {key: value for key, value in settings.items() if client_settings.connects(key)}
    for key, value in options.pairs(assignments, "--set").items():
        if not client_settings.connects(key):
            raise click.BadParameter(f"{key} does not say how to connect", param_hint="--set")
        connecting[key] = value
    if ask_password:
        connecting[PASSWORD_KEY] = click.prompt(PASSWORD_KEY, hide_input=True, err=True)
    profile = {
        "bootstrap": addresses,
        "http": http,
        "token": token,
        **{key: _absolute(key, value) for key, value in connecting.items()},
    }
    given = {key: str(value) for key, value in profile.items() if value is not None}
    if not given:
        raise click.UsageError("a profile says something: give --bootstrap, --http or --client-config")
    file = profiles.file()
    profile_file.add(file, name, given, default=is_default, replace=force)
    if as_json:
        print_json({"profile": name, "file": str(file)})
    else:
        click.echo(f"profile {name} is in {file}")


def _absolute(key: str, value: str) -> str:
    """A path as it is from anywhere."""
    return str(Path(value).expanduser().absolute()) if key.endswith(".location") and value else value
