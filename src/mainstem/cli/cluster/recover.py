"""`mainstem cluster recover`"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mainstem.cli.errors import CommandFailed
from mainstem.cli.parameters import options

if TYPE_CHECKING:
    from mainstem.storage.repair.lost_blocks import Loss

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

LOST = """\
{write_dir}: {where}
{fault}
"""

LOST_PART = """\
  --give-up {name}    {blocks} of write group {group}
{details}
"""

GIVEN_UP = """\
Whatever of {names} is not in the list above stays. From the node's next start on
- consumers that read the offsets given up get the next ones that exist, and are told nothing else;
- no offset is given out twice: queues whose end is not known go on as much higher as the list says;
- idempotent producers are not told, and what a lost block did other than append (a topic created or deleted, records
  deleted) is done again by the node where the metadata say so, or is not done.
If another node or a copy of the file has what is lost, use that instead: this cannot be taken back.
"""


ASKED = """\
Nodes {nodes} are asked first: start this node while they run. What one of them has is not given up, but taken from
there. If one of them cannot be asked, nothing is changed, and the log of this node says so: start it again then. Where
theirs is damaged, too, they go on with what this node puts there, when they are started again.
"""

WITHOUT = """\
Nodes {nodes} are not asked, and must never be started again with the directories they have: they could have what is
given up here, and their histories would be others.
"""


@click.command("recover")
@options.neither
@click.option(
    "--write-dir",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The node's write_dir, disk 1. The node must be stopped.",
)
@click.option("--alone", is_flag=True, help="Go on without the other nodes, which are lost for good.")
@click.option(
    "--lost", "list_lost", is_flag=True, help="List the blocks of the journal that cannot be read or got elsewhere."
)
@click.option(
    "--give-up",
    "give_up",
    multiple=True,
    metavar="GROUP:FIRST-LAST",
    help="Give up these blocks of a write group, as --lost names them. May be given several times.",
)
@click.option(
    "--without",
    "without",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="NODE_ID",
    help="With --give-up: this node is lost for good and is not asked. May be given several times.",
)
@click.option("--yes", is_flag=True, help="Do it. Without this option the command only says what would be given up.")
def command(
    write_dir: Path, alone: bool, list_lost: bool, give_up: tuple[str, ...], without: tuple[int, ...], yes: bool
) -> None:
    """Have a stopped node believe what its directories hold, whatever the others remember.

    The other nodes notice a node that runs on an older copy of its directories, and give it no vote until they have
    brought it up to date. If they cannot, because all were restored from backups of different moments, this command
    declares that the directories hold all there is. That gives up what only newer directories held.

    --alone is for a cluster that has lost its majority for good: the node goes on by itself.

    --lost lists what a node could not read of its journal, and no other node can give, with the offsets that are lost
    with it; --give-up gives that up, and nothing else, so that the write group is served again.
    """
    if without and not give_up:
        raise CommandFailed("--without goes with --give-up only")
    if list_lost or give_up:
        if alone:
            raise CommandFailed("--alone goes with neither --lost nor --give-up: give them one after the other")
        asyncio.run(_give_up(write_dir, give_up, without, yes=yes))
    else:
        asyncio.run(_recover(write_dir, alone=alone, yes=yes))


def _locked(write_dir: Path) -> int:
    """As `lock`. Raises `CommandFailed` while a node runs there."""
    from mainstem.node.node import DirectoryInUse, lock

    try:
        return lock(write_dir)
    except DirectoryInUse as error:
        raise CommandFailed(f"{error}; recover works on a stopped node") from error


async def _give_up(write_dir: Path, names: tuple[str, ...], without: tuple[int, ...], *, yes: bool) -> None:
    from mainstem.storage.disks.disk_files import DiskFiles
    from mainstem.storage.errors import StorageError
    from mainstem.storage.repair.lost_blocks import LostBlocks

    locked = None
    if yes:
        locked = _locked(write_dir)
    files = DiskFiles(write_dir)
    try:
        lost = await LostBlocks.open(files)
        losses = [loss for loss in lost.losses if not loss.replaced]
        if not losses:
            click.echo(f"{write_dir}: nothing is known to be lost. A start, or a reader, finds out: start the node")
        for loss in losses:
            click.echo(_told(write_dir, loss), nl=False)
        if not names:
            return
        lost.check(names)
        click.echo(GIVEN_UP.format(names=", ".join(names)), nl=False)
        parts = [part for loss in losses for part in loss.parts if part.name in names]
        if asked := sorted({member for part in parts for member in part.members} - set(without)):
            click.echo(ASKED.format(nodes=", ".join(map(str, asked))), nl=False)
        if without:
            click.echo(WITHOUT.format(nodes=", ".join(map(str, without))), nl=False)
        if yes:
            await lost.give_up(names, without)
            click.echo("done: start the node")
        else:
            click.echo("nothing was changed; give --yes to do it")
    except StorageError as error:
        raise CommandFailed(str(error)) from error
    finally:
        await files.close()
        if locked is not None:
            os.close(locked)


def _told(write_dir: Path, loss: Loss) -> str:
    told = LOST.format(write_dir=write_dir, where=loss.where, fault=loss.fault)
    for part in loss.parts:
        details = [f"{it.queue}: {_offsets(it.first, it.last)}" for it in part.offsets]
        if part.others:
            details.append(f"and offsets of {part.others} more queues")
        if not part.known:
            details.append("which other queues had batches there cannot be told; the ends of all queues are known")
        if part.open_queues:
            details.append(
                f"perhaps the newest offsets of any of {part.open_queues} queues that have no later batch: each of "
                f"them goes on {part.raised_by} higher"
            )
        if part.members:
            details.append(f"nodes {', '.join(map(str, part.members))} may have it: start them first")
        if not loss.stand_ins and not loss.missing:
            details.append("cannot be given up: which blocks lay where cannot be told; restore the segment")
        if part.given_up:
            details.append("given up; the next start does it")
        blocks = (
            f"block {part.first}" if part.first == part.last else f"blocks {part.first} to {part.last or 'the end'}"
        )
        told += LOST_PART.format(
            name=part.name, group=part.group, blocks=blocks, details="\n".join(f"      {line}" for line in details)
        )
    return told


def _offsets(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


async def _recover(write_dir: Path, *, alone: bool, yes: bool) -> None:
    from mainstem.nameserver.directory import nodes_named
    from mainstem.nameserver.disk.starts_file import NAME, StartsFile
    from mainstem.nameserver.errors import NameserverError
    from mainstem.storage.disks.disk_files import DiskFiles

    if not (write_dir / NAME).exists():
        raise CommandFailed(f"{write_dir} remembers no starts: it is not the write_dir of a node that was ever started")
    locked = _locked(write_dir)
    files = DiskFiles(write_dir)
    try:
        starts = await StartsFile.open(files, None)
        remembers = starts.remembers
        given_up = sorted(remembers.seen)
        if alone:  # some it may never have met
            given_up = sorted({*given_up, *await nodes_named(files, remembers.node_id)})
        if alone and not given_up:
            raise CommandFailed(f"{write_dir} knows of no other nodes, so there are none to go on without")
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
    except NameserverError as error:
        raise CommandFailed(str(error)) from error
    finally:
        await files.close()
        os.close(locked)
