"""`mainstem token list`"""

from __future__ import annotations

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json, print_table
from mainstem.cli.token.token_requests import asked, moment, shown


@click.command("list")
@click.option("--owner", "owners", multiple=True, metavar="NAME", help="Only of this user; repeatable.")
@options.kafka_only
@options.as_json
def command(owners: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """List the delegation tokens that you own, made, may renew or are allowed to see; never their secrets."""
    with asked(bootstrap) as requests:
        found = requests.described(owners)
    tokens = [
        {
            "token": it.token_id,
            "owner": shown(it.principal_type, it.principal_name),
            "requester": shown(it.token_requester_principal_type, it.token_requester_principal_name),
            "renewers": [shown(each.principal_type, each.principal_name) for each in it.renewers],
            "issued_ms": it.issue_timestamp,
            "expires_ms": it.expiry_timestamp,
            "ends_ms": it.max_timestamp,
        }
        for it in found
    ]
    if as_json:
        print_json({"tokens": tokens})
        return
    rows = [
        (
            it.token_id, shown(it.principal_type, it.principal_name),
            ", ".join(shown(each.principal_type, each.principal_name) for each in it.renewers) or "-",
            moment(it.expiry_timestamp), moment(it.max_timestamp),
        )
        for it in found
    ]  # fmt: skip
    print_table(["TOKEN", "~OWNER", "~RENEWERS", "EXPIRES", "ENDS"], rows, empty="no delegation tokens")
