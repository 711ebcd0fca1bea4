"""`mainstem store verify` of an object store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mainstem.cli.errors import CommandFailed
from mainstem.cli.terminal.output import counted, duration, print_fields, print_json, print_table, print_text, size
from mainstem.cli.terminal.progress_line import ProgressLine
from mainstem.model import partition_of, topic_number_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mainstem.node.config import NodeConfig
    from mainstem.storage.verifying.cluster_check import ClusterProgress, ClusterReport
    from mainstem.storage.verifying.findings import Affected, Finding

PARTITIONS_SHOWN_MAX = 10
"""Of a finding, told to people; `--json` has them all."""


def verify(url: str, config: NodeConfig, cluster: str | None, jobs: int, progress: bool | None, as_json: bool) -> int:
    """Check the clusters of an object store, and tell what was found. Raises `CommandFailed`."""
    if not url:
        raise CommandFailed("the configuration names neither a shared store nor a remote_dir: name one by --store-dir")
    started = time.monotonic()
    with ProgressLine(progress) as line:
        reports = asyncio.run(_checked(url, config, cluster, jobs, line))
    seconds = time.monotonic() - started
    if as_json:
        print_json(_data(reports, seconds))
    else:
        _print(reports, url, seconds)
    return 1 if any(one.report.findings for one in reports) else 0


async def _checked(
    url: str, config: NodeConfig, cluster: str | None, jobs: int, line: ProgressLine
) -> list[ClusterReport]:
    from mainstem.storage.errors import StorageError
    from mainstem.storage.object_stores.names import checked
    from mainstem.storage.object_stores.urls import open_object_store
    from mainstem.storage.remote.survey.store_survey import cluster_ids
    from mainstem.storage.verifying.cluster_check import check_cluster

    def tell(at: ClusterProgress) -> None:
        line.offer(
            at.bytes,
            lambda: (
                f"write group {at.group} of {at.groups}, {size(at.bytes)} of {size(at.bytes_total)}, "
                f"{at.files:,} of {counted(at.files_total, 'file')} so far"
            ),
        )

    store = open_object_store(url, config.object_store)
    try:
        names = await cluster_ids(store)
        if cluster is not None:
            if checked(cluster) not in names:
                raise CommandFailed(f"{url} has no cluster {cluster}")
            names = [cluster]
        return [await check_cluster(store, name, jobs, tell) for name in names]
    except (StorageError, ValueError) as error:
        raise CommandFailed(str(error)) from error


def _data(reports: Sequence[ClusterReport], seconds: float) -> dict[str, object]:
    return {
        "ok": not any(one.report.findings for one in reports),
        "clusters": [one.cluster_id for one in reports],
        "files": sum(one.report.files for one in reports),
        "bytes": sum(one.report.bytes for one in reports),
        "seconds": round(seconds, 3),
        "gone": sum(one.report.gone for one in reports),
        "findings": [_finding_data(finding, one.topics) for one in reports for finding in one.report.findings],
        "findings_left_out": sum(one.report.findings_left_out for one in reports),
        "given_up": [
            {
                "name": lost.name,
                "record_count": lost.record_count,
                "batch_bytes": lost.batch_bytes,
                "at_ms": lost.at_ms,
                "by": lost.by,
                "fault": lost.fault,
            }
            for one in reports
            for lost in one.given_up
        ],
    }


def _finding_data(finding: Finding, topics: Mapping[int, str]) -> dict[str, object]:
    return {
        "path": finding.path,
        "position": finding.position,
        "what": finding.what,
        "advice": finding.advice,
        "partitions": [
            {
                "topic_number": topic_number_of(it.queue_id),
                "topic": topics.get(topic_number_of(it.queue_id)),
                "partition": partition_of(it.queue_id),
                "first_offset": it.first_offset,
                "last_offset": it.last_offset,
            }
            for it in finding.affected
        ],
    }


def _print(reports: Sequence[ClusterReport], url: str, seconds: float) -> None:
    rows = [
        (
            it.path,
            "-" if it.position is None else it.position,
            "\n".join([it.what, *_lines(it.affected, one.topics), f"→ {it.advice}"]),
        )
        for one in reports
        for it in one.report.findings
    ]
    left_out = sum(one.report.findings_left_out for one in reports)
    if rows:
        print_table(["~OBJECT", ">POSITION", "~WHAT, AND WHAT TO DO"], rows, empty="")
        if left_out:
            print_text(f"and {left_out:,} more")
        print_text()
    if not reports:
        print_text(f"{url} holds nothing of any cluster")
        return
    files, read = sum(one.report.files for one in reports), sum(one.report.bytes for one in reports)
    gone, count = sum(one.report.gone for one in reports), len(rows) + left_out
    speed = size(int(read / seconds)) if seconds else "-"
    fields = [
        ("clusters", ", ".join(one.cluster_id for one in reports)),
        ("read", f"{counted(files, 'file')}, {size(read)} in {duration(seconds)}, {speed}/s"),
    ]
    if gone:
        fields.append(("left out", f"{counted(gone, 'file')}, replaced or removed meanwhile"))
    if lost := [it for one in reports for it in one.given_up]:
        records = counted(sum(it.record_count for it in lost), "record")
        fields.append(("given up", f"{counted(len(lost), 'file')} with {records}, which readers pass over"))
    fields.append(("found", counted(count, "fault") if count else "all is as it should be"))
    print_fields(fields)


def _lines(affected: Sequence[Affected], topics: Mapping[int, str]) -> Iterator[str]:
    """The records that readers may miss because of a finding."""
    for it in affected[:PARTITIONS_SHOWN_MAX]:
        number = topic_number_of(it.queue_id)
        topic = topics.get(number, f"topic number {number}")
        upto = "on" if it.last_offset is None else f"to {it.last_offset}"
        yield f"{topic}, partition {partition_of(it.queue_id)}: offsets {it.first_offset} {upto}"
    if len(affected) > PARTITIONS_SHOWN_MAX:
        yield f"and {counted(len(affected) - PARTITIONS_SHOWN_MAX, 'stretch', 'stretches')} more"
