"""`mainstem store repair`"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mainstem.cli.errors import CommandFailed
from mainstem.cli.parameters import options
from mainstem.cli.store import directories
from mainstem.cli.store.directories import Directories
from mainstem.cli.store.manifest_repair import repair_manifest
from mainstem.cli.store.verify import checked, finding_data, print_findings
from mainstem.cli.terminal.output import counted, print_json, print_text
from mainstem.cli.terminal.progress_line import ProgressLine, progress_option

if TYPE_CHECKING:
    from mainstem.storage.verifying.remaking import Remade, Remake
    from mainstem.storage.verifying.store_check import StoreReport

ROUNDS = 2
"""Damage behind a damaged index shows when that is made anew."""

NO_MANIFEST = """\
{write_dir} has no {name}. Name the node's disk 1 with --write-dir. If the manifest is lost, it is made anew from its \
copy on disk 2 (--manifest). Otherwise restore both directories from a backup, or have another node take the place of \
this one (mainstem cluster replace)"""


@click.command("repair")
@directories.options
@click.option(
    "--manifest", is_flag=True, help="Make the manifest anew from its copy on disk 2, if it is lost, damaged or old."
)
@click.option(
    "--disk-lost",
    is_flag=True,
    help="All of disk 2 is lost: have the node begin with an empty one, and its files missing.",
)
@click.option("--yes", is_flag=True, help="Do it. Without this option the command only says what it would do.")
@progress_option
@options.neither
@options.as_json
def command(
    file: Path | None,
    write_dir: str | None,
    store_dir: str | None,
    manifest: bool,
    disk_lost: bool,
    yes: bool,
    progress: bool | None,
    as_json: bool,
) -> int:
    """Make anew what the rest of a stopped node's store tells.

    That is the store's mark, and what lies beside queue segments: .index, .timeindex and .extents are made from the
    .log where all its batches are sound. Nothing is deleted: what was there is moved to set-aside, below the store's
    directory. Damaged batches are not made anew here: a running node takes them from another replica. The exit code is
    1 while something is damaged.

    With --manifest it is the manifest that is made anew, and nothing else, from the copy that a node keeps of it on
    disk 2: if it is lost, cannot be read, or is older than the store's mark.

    With --disk-lost the mark is also made for an empty directory, so that the node starts: it names all of its files as
    missing, takes them from other replicas, or has them given up (store give-up).
    """
    if manifest and disk_lost:
        raise click.UsageError("--disk-lost does not go with --manifest: the copy of the manifest was on that disk")
    from mainstem.node.node import DirectoryInUse, lock

    where = directories.found(file, write_dir, store_dir)
    if not manifest and not where.manifest.exists():
        raise CommandFailed(NO_MANIFEST.format(write_dir=where.write_dir, name=directories.MANIFEST_NAME))
    if not where.write_dir.is_dir():
        raise CommandFailed(f"{where.write_dir} is no directory: name the node's disk 1 with --write-dir, or make it")
    try:
        locked = lock(where.write_dir)
    except DirectoryInUse as error:
        raise CommandFailed(f"{error}; repair works on a stopped node") from error
    try:
        if manifest:
            return repair_manifest(where, yes=yes, as_json=as_json)
        with ProgressLine(progress) as line:
            report, wanted, done = _repair(where, line, yes=yes, disk_lost=disk_lost)
    finally:
        os.close(locked)
    if as_json:
        print_json(
            {
                "ok": not report.findings,
                "wanted": [one.path for one in wanted],
                "made": [one.path for one in done if not one.refused],
                "refused": [{"path": one.path, "why": one.refused} for one in done if one.refused],
                "findings": [finding_data(finding) for finding in report.findings],
            }
        )
    else:
        _print(report, wanted, done, yes=yes)
    return 1 if report.findings else 0


def _repair(
    where: Directories, line: ProgressLine, *, yes: bool, disk_lost: bool
) -> tuple[StoreReport, list[Remake], list[Remade]]:
    """The last report, and what could be made anew by it, or was."""
    from mainstem.storage.errors import StorageError
    from mainstem.storage.queue_store.manifest.database.manifest_database import Database
    from mainstem.storage.verifying.remaking import remake, remakes

    manifest = str(where.manifest)
    done: list[Remade] = []
    planned: dict[str, Remake] = {}
    for number in range(ROUNDS + 1):
        report = asyncio.run(checked(where.store_dir, manifest, 1, line))
        if not report.findings:
            break
        try:
            contents = Database(manifest).read()
        except StorageError:  # as the findings say
            break
        refused = {one.path for one in done if one.refused}
        wanted = [one for one in remakes(contents, report, manifest) if one.path not in refused]
        planned.update((one.path, one) for one in wanted)
        if not wanted or not yes or number == ROUNDS:
            break
        done += remake(where.store_dir, contents, report, wanted, disk_lost=disk_lost)
    return report, list(planned.values()), done


def _print(report: StoreReport, wanted: Sequence[Remake], done: Sequence[Remade], *, yes: bool) -> None:
    for one in done:
        print_text(f"{one.path}: left as it is: {one.refused}" if one.refused else f"{one.path}: made anew")
    if wanted and not yes:
        print_text("With --yes these are made anew, and what is there now is moved to set-aside:")
        for remake in wanted:
            print_text(f"  {remake.path}")
        print_text()
    if report.findings:
        print_findings(report)
        print_text(f"{counted(len(report.findings), 'fault')}")
    elif not done:
        print_text("nothing is damaged")
