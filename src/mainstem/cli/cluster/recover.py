"""`mainstem cluster recover`"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from mainstem.cli import options
from mainstem.cli.errors import CommandFailed

ACCOUNT = """\
{write_dir}: node {node_id}, {starts} starts remembered, {others} other nodes known by theirs{loss}

From its next start on this node takes its two directories for all there is:

- It votes and acknowledges at once, as if it had forgotten nothing. Whatever it or others acknowledged, and only newer
  directories hold, is given up: messages, committed offsets, topics. Consumers may find offsets that are not there any
  more, and then meet other messages under the same numbers.
- It believes every other node's directories, too, whatever it has seen of them.

Do this on every node of a cluster whose directories were restored from backups of different moments, while all nodes
are stopped. Do not do it on a node that the others can bring up to date: it does that by itself when it is started.
"""


ALONE = """\
{write_dir}: node {node_id}, {starts} starts remembered

From its next start on this node is the only member of the metadata quorum and of every write group it has a replica of.
Nodes {given_up} are given up for good:

- Whatever a majority had acknowledged and this node's directories lack is lost: messages, committed offsets, topics.
  What they hold behind that counts, whether or not it was ever acknowledged. Write groups without a replica here are
  not served.
- Nodes {given_up} must never be started again with the directories they have: two of them could go on as another
  cluster under the same name.

Do this on one node, the one that has most (`cluster status` of each says how far its write groups are committed), when
the others will not come back. Then have new nodes, of new node ids, take their places: mainstem cluster replace.
"""


@click.command("recover")
@options.neither
@click.option(
    "--write-dir",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Disk 1 of the node, which must be stopped.",
)
@click.option("--alone", is_flag=True, help="The other nodes are lost for good: go on without them.")
@click.option("--yes", is_flag=True, help="Do it; without this, only say what would be given up.")
def command(write_dir: Path, alone: bool, yes: bool) -> None:
    """Have a stopped node believe what its directories hold, whatever the others remember.

    A node on an older copy of its directories is found out by the others, and has no vote until they have brought it up
    to date. Where they cannot, as all were restored from backups of different moments, somebody has to say that what is
    there is all there is. That gives up what only newer directories held.

    With --alone a node goes on whose cluster has lost its majority for good.
    """
    asyncio.run(_recover(write_dir, alone=alone, yes=yes))


async def _recover(write_dir: Path, *, alone: bool, yes: bool) -> None:
    from mainstem.nameserver.starts_file import NAME, StartsFile
    from mainstem.node import DirectoryInUse, lock
    from mainstem.storage.disk_files import DiskFiles

    if not (write_dir / NAME).exists():
        raise CommandFailed(f"{write_dir} remembers no starts: it is no write_dir of a node that was started")
    try:
        locked = lock(write_dir)
    except DirectoryInUse as error:
        raise CommandFailed(f"{error}; recover works on a stopped node") from error
    files = DiskFiles(write_dir)
    try:
        starts = await StartsFile.open(files, None)
        remembers = starts.remembers
        given_up = sorted(remembers.seen)
        if alone and not given_up:
            raise CommandFailed(f"{write_dir} knows of no other nodes: there is nobody to go on without")
        click.echo(
            (ALONE if alone else ACCOUNT).format(
                write_dir=write_dir,
                node_id=remembers.node_id,
                starts=len(remembers.drawn),
                others=len(remembers.seen),
                given_up=", ".join(map(str, given_up)),
                loss=f"; it knows that {remembers.why}" if remembers.why else "",
            )
        )
        if yes:
            if alone:
                await starts.give_up(given_up)
                click.echo("done: start it")
            else:
                await starts.believe()
                click.echo("done: start it together with the others")
        else:
            click.echo("nothing was changed; give --yes to do it")
        await starts.close()
    finally:
        await files.close()
        os.close(locked)
