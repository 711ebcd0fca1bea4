"""`mainstem token expire`"""

from __future__ import annotations

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_text
from mainstem.cli.token.create import LIFETIME_SECONDS_MAX
from mainstem.cli.token.token_requests import asked, moment

AT_ONCE_MS = -1


@click.command("expire")
@click.argument("token")
@click.option(
    "--in", "period", type=options.SecondsType(0, LIFETIME_SECONDS_MAX), help="So long from now. Default: at once."
)
@options.kafka_only
@options.as_json
def command(token: str, period: float | None, bootstrap: str, as_json: bool) -> None:
    """Have the delegation token of this id expire. Clients that it let in stay until their session ends."""
    with asked(bootstrap) as requests:
        expires_ms = requests.expire(token, AT_ONCE_MS if period is None else int(period * 1000))
    if as_json:
        print_json({"token": token, "expires_ms": None if period is None else expires_ms})
    elif period is None:
        print_text(f"token {token} is gone")
    else:
        print_text(f"token {token} expires at {moment(expires_ms)}")
