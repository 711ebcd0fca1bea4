"""`mainstem token create`"""

from __future__ import annotations

import base64

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_fields, print_json
from mainstem.cli.token.token_requests import USUAL_MS, asked, moment, shown

LIFETIME_SECONDS_MAX = 10 * 365 * 86_400.0


@click.command("create")
@click.option("--owner", metavar="NAME", help="Whom it lets in; takes CREATE_TOKENS on that user. Default: you.")
@click.option("--renewer", "renewers", multiple=True, metavar="NAME", help="Who else may renew it; repeatable.")
@click.option(
    "--max-lifetime", type=options.SecondsType(1, LIFETIME_SECONDS_MAX),
    help="It ends then, whoever renews it. Default, and at most: what the nodes have.",
)  # fmt: skip
@options.kafka_only
@options.as_json
def command(
    owner: str | None, renewers: tuple[str, ...], max_lifetime: float | None, bootstrap: str, as_json: bool
) -> None:
    """Make a delegation token, and print its secret, which lets in whoever has it."""
    with asked(bootstrap) as requests:
        made = requests.create(owner, renewers, USUAL_MS if max_lifetime is None else int(max_lifetime * 1000))
    secret = base64.b64encode(made.hmac).decode()
    token_owner = shown(made.principal_type, made.principal_name)
    if as_json:
        print_json(
            {"token": made.token_id, "secret": secret, "owner": token_owner, "expires_ms": made.expiry_timestamp_ms,
             "ends_ms": made.max_timestamp_ms}
        )  # fmt: skip
        return
    print_fields(
        [
            ("token", made.token_id),
            ("secret", secret),
            ("owner", token_owner),
            ("expires", moment(made.expiry_timestamp_ms)),
            ("ends", moment(made.max_timestamp_ms)),
        ]
    )
