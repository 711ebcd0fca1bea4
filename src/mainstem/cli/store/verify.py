"""`mainstem store verify`"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mainstem.cli.errors import CommandFailed
from mainstem.cli.parameters import options
from mainstem.cli.store import directories
from mainstem.cli.terminal.output import counted, duration, print_fields, print_json, print_table, print_text, size
from mainstem.cli.terminal.progress_line import ProgressLine, progress_option

if TYPE_CHECKING:
    from mainstem.storage.verifying.findings import Finding, UnnamedFile
    from mainstem.storage.verifying.store_check import CheckProgress, StoreReport

JOBS_MAX = 64

OBJECT_JOBS = 4
"""Each waits for the store most of the time, and holds 8 MiB."""

UNNAMED_SHOWN_MAX = 20
"""Files told to people; `--json` has them all."""


@click.command("verify")
@directories.options
@click.option(
    "--without-manifest",
    is_flag=True,
    help="Check every file there is, by what it says of itself: no manifest is read.",
)
@click.option(
    "--objects",
    "of_objects",
    is_flag=True,
    help="Check an object store: --store-dir, which may then be a directory, else the shared store or the remote tier "
    "that `serve` would have.",
)
@click.option("--cluster", metavar="ID", help="Of an object store, check this cluster only. Default: all in it.")
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(1, JOBS_MAX),
    metavar="N",
    help="Check so many files at a time. Default: 2; 4 of an object store.",
)
@click.option(
    "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set any key of the configuration; repeatable."
)
@progress_option
@options.neither
@options.as_json
def command(
    file: Path | None,
    write_dir: str | None,
    store_dir: str | None,
    without_manifest: bool,
    of_objects: bool,
    cluster: str | None,
    jobs: int | None,
    assignments: tuple[str, ...],
    progress: bool | None,
    as_json: bool,
) -> int:
    """Read every byte of a queue store and compare it with all that describes it.

    No node is needed, and one may run: nothing is written, and what it replaces meanwhile is left out. Checked are the
    manifest and the store's mark, and of every file that counts its size, its index, the checksums of its extents and
    batches, their headers, and Kafka's indexes beside queue segments. The exit code is 1 when something is not what it
    should be. Files that the manifest does not name are listed, and are no damage.

    If --store-dir is an object store, or `serve` would have a shared store, the objects are read of all that the store
    says by itself that counts. No disk is looked at, and each finding says which offsets of which partitions it may
    take from readers."""
    from mainstem.node.config_sources import load

    given = store_dir if of_objects else None
    flags = {"write_dir": write_dir, "store_dir": None if of_objects else store_dir}
    config = load(file=file, environment=os.environ, flags=flags, assignments=assignments)
    if of_objects or config.shares_store:
        from mainstem.cli.store.verified_objects import verify

        if without_manifest:
            raise click.UsageError("--without-manifest is for disk 2: in an object store the chains say what counts")
        return verify(given or config.objects_url, config, cluster, jobs or OBJECT_JOBS, progress, as_json)
    if cluster is not None:
        raise click.UsageError("--cluster goes with an object store")
    where = directories.of_config(config, is_named=write_dir is not None)
    if not without_manifest and not where.manifest.exists():
        raise CommandFailed(
            f"{where.write_dir} has no {directories.MANIFEST_NAME}: name the node's disk 1 with --write-dir, or check "
            "the files alone with --without-manifest"
        )
    started = time.monotonic()
    with ProgressLine(progress) as line:
        manifest = None if without_manifest else str(where.manifest)
        report = asyncio.run(checked(where.store_dir, manifest, jobs or 2, line))
    seconds = time.monotonic() - started
    if as_json:
        print_json(_data(report, seconds))
    else:
        _print(report, seconds)
    return 1 if report.findings else 0


async def checked(store_dir: Path, manifest: str | None, jobs: int, line: ProgressLine) -> StoreReport:
    """Check a store, so many files at a time, and tell on the line how far it is."""
    from mainstem.storage.disks.disk_files import DiskFiles
    from mainstem.storage.verifying.store_check import check_store

    def tell(at: CheckProgress) -> None:
        total = f" of {size(at.bytes_total)}" if at.bytes_total else ""
        line.offer(at.bytes, lambda: f"{size(at.bytes)}{total}, {at.files:,} of {counted(at.files_total, 'file')}")

    files = [DiskFiles(os.fspath(store_dir)) for _ in range(jobs)]
    try:
        return await check_store(files, manifest, tell)
    finally:
        for one in files:
            await one.close()


def _data(report: StoreReport, seconds: float) -> dict[str, object]:
    return {
        "ok": not report.findings,
        "files": report.files,
        "bytes": report.bytes,
        "seconds": round(seconds, 3),
        "gone": report.gone,
        "findings": [finding_data(finding) for finding in report.findings],
        "findings_left_out": report.findings_left_out,
        "unnamed": [{"path": it.path, "bytes": it.bytes, "kind": it.kind} for it in report.unnamed],
        "unnamed_left_out": report.unnamed_left_out,
    }


def finding_data(finding: Finding) -> dict[str, object]:
    return {
        "path": finding.path,
        "position": finding.position,
        "what": finding.what,
        "advice": finding.advice,
    }


def print_findings(report: StoreReport) -> None:
    """The findings as a table on stdout, and an empty line behind it."""
    print_table(
        ["~FILE", ">POSITION", "~WHAT, AND WHAT TO DO"],
        [(it.path, "-" if it.position is None else it.position, f"{it.what}\n→ {it.advice}") for it in report.findings],
        empty="",
    )
    if report.findings_left_out:
        print_text(f"and {report.findings_left_out:,} more")
    print_text()


def _print(report: StoreReport, seconds: float) -> None:
    if report.findings:
        print_findings(report)
    if report.unnamed:
        _print_unnamed(report.unnamed, report.unnamed_left_out)
    speed = size(int(report.bytes / seconds)) if seconds else "-"
    rows = [("read", f"{counted(report.files, 'file')}, {size(report.bytes)} in {duration(seconds)}, {speed}/s")]
    if report.gone:
        rows.append(("left out", f"{counted(report.gone, 'file')}, replaced or removed meanwhile"))
    count = len(report.findings) + report.findings_left_out
    rows.append(("found", counted(count, "fault") if count else "all is as it should be"))
    print_fields(rows)


def _print_unnamed(unnamed: Sequence[UnnamedFile], left_out: int) -> None:
    from mainstem.storage.verifying.findings import ORPHAN_ADVICE

    print_text(f"Not named by the manifest, so they do not count; {ORPHAN_ADVICE}:")
    for it in unnamed[:UNNAMED_SHOWN_MAX]:
        print_text(f"  {it.path} ({it.kind}, {size(it.bytes)})")
    more = len(unnamed) - UNNAMED_SHOWN_MAX + left_out
    if more > 0:
        print_text(f"  and {more:,} more")
    print_text()
