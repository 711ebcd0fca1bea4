"""`mainstem token renew`"""

from __future__ import annotations

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_text
from mainstem.cli.token.create import LIFETIME_SECONDS_MAX
from mainstem.cli.token.token_requests import USUAL_MS, asked, moment


@click.command("renew")
@click.argument("token")
@click.option(
    "--for", "period", type=options.SecondsType(1, LIFETIME_SECONDS_MAX),
    help="It expires so long from now. Default, and at most: what the nodes have.",
)  # fmt: skip
@options.kafka_only
@options.as_json
def command(token: str, period: float | None, bootstrap: str, as_json: bool) -> None:
    """Have the delegation token of this id expire later, though never after its end."""
    with asked(bootstrap) as requests:
        expires_ms = requests.renew(token, USUAL_MS if period is None else int(period * 1000))
    if as_json:
        print_json({"token": token, "expires_ms": expires_ms})
    else:
        print_text(f"token {token} expires at {moment(expires_ms)}")
