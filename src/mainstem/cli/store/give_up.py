"""`mainstem store give-up`"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator, Sequence

import click

from mainstem.cli.clients.http_node import HttpNode
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import counted, print_json, print_table, print_text, size
from mainstem.console.views.asked_changes import GiveUpRequest
from mainstem.console.views.of_store import GivenUpFileView, GiveUpView

TIMEOUT_SECONDS = 600.0
"""The node reads every byte of each file first."""

GIVES_UP = """\
With --yes these records are given up, for good:

- consumers pass over their offsets, and are told nothing of it; of a compacted topic an older message of a key may
  be its latest again, and a key that was deleted may be there again;
- what is left of the files is deleted, what of them could still be read included. A file or an object that is restored
  later is read by nobody."""


@click.command("give-up")
@click.argument("names", nargs=-1, required=True, metavar="FILE|OBJECT…")
@click.option("--dry-run", is_flag=True, help="Only look, and say what would be given up. So it is without --yes.")
@click.option("--yes", is_flag=True, help="Give it up.")
@click.option("--by", metavar="NAME", help="Who gives it up, for the list of these. Default: you, on this host.")
@click.option(
    "--without",
    metavar="ID",
    type=click.IntRange(min=1),
    multiple=True,
    help="This node is lost for good and is not asked whether it has the records. May be given several times.",
)
@options.http_only
@options.token
@options.as_json
def command(
    names: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    by: str | None,
    without: tuple[int, ...],
    http: str,
    token: str | None,
    as_json: bool,
) -> None:
    """Give up files of the shared store, of the remote tier or of a node's own disk 2 that are lost for good.

    FILE is named as `store status` has it, or as `store verify` does, which names an OBJECT as well. While a file is
    lost, reads of its offsets fail, and clients try again for ever. Once it is given up they go on behind it. Ask the
    leader of the file's write group; for a file of disk 2 its node, which must have the write group alone. The node
    reads the file first: what is whole, or what another replica has on a disk of its own, is refused, and then nothing
    is given up. `store status` lists what was.
    """
    node = HttpNode(http, token, timeout_seconds=TIMEOUT_SECONDS)
    only_look = dry_run or not yes
    request = GiveUpRequest(
        names=list(names), by=by if by is not None else _operator(), without=list(without), dry_run=only_look
    )
    view = node.ask("/v1/store/give-up", request, GiveUpView)
    if as_json:
        print_json({"given_up": not only_look, "files": view.files})
        return
    print_table([">GROUP", "~FILE", ">RECORDS", ">SIZE", "~FOUND"], list(_rows(view.files)), empty="nothing")
    print_text()
    records = sum(one.record_count for one in view.files)
    told = f"{counted(len(view.files), 'file')} with {counted(records, 'record')}"
    print_text(f"{told} would be given up. {GIVES_UP}" if only_look else f"{told}: given up")


def _rows(files: Sequence[GivenUpFileView]) -> Iterator[tuple[str, str, str, str, str]]:
    for one in files:
        yield str(one.group), one.name, f"{one.record_count:,}", size(one.batch_bytes), one.fault


def _operator() -> str:
    try:
        return f"{getpass.getuser()} on {socket.gethostname()}"
    except (KeyError, OSError):  # a user without a name, as containers have them
        return f"somebody on {socket.gethostname()}"
