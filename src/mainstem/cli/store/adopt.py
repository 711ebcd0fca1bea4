"""`mainstem store adopt`"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mainstem.cli.errors import CommandFailed
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import counted, print_json, print_table, print_text, size

if TYPE_CHECKING:
    from mainstem.node.config import NodeConfig
    from mainstem.storage.remote.store_survey import ClusterSurvey, TopicSurvey


@click.command("adopt")
@click.argument("url")
@click.option("--list", "lists", is_flag=True, required=True, help="Show what the store holds, and change nothing.")
@click.option("--cluster", metavar="ID", help="Look at this cluster only. Default: at all that the store has.")
@click.option("--partitions", "by_partition", is_flag=True, help="Show each partition.")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="Take the section object_store from this file. Default: mainstem.toml, if there is one.",
)
@click.option(
    "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set any key of the configuration; repeatable."
)
@options.neither
@options.as_json
def command(
    url: str,
    lists: bool,
    cluster: str | None,
    by_partition: bool,
    file: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show what an object store holds of the remote tiers of clusters, by what lies in it alone.

    URL is what `remote_dir` was: a directory, s3://bucket/prefix, gs://bucket/prefix or hdfs://namenode:8020/folder. No
    node is asked. What is shown of a partition is what was in the remote tier: what was on disks only is not there. The
    exit code is 1 when something is missing or damaged.
    """
    from mainstem.node.config_sources import load

    config = load(file=file, environment=os.environ, flags={}, assignments=assignments)
    found = asyncio.run(_surveys(url, config, cluster))
    if cluster is not None and not any(one.groups or one.topics for one in found):
        raise CommandFailed(f"{url} has no cluster {cluster}")
    if as_json:
        print_json({"ok": not any(one.faults for one in found), "clusters": [_data(one) for one in found]})
    else:
        _print(found, url, by_partition)
    return 1 if any(one.faults for one in found) else 0


async def _surveys(url: str, config: NodeConfig, cluster: str | None) -> list[ClusterSurvey]:
    from mainstem.storage.errors import StorageError
    from mainstem.storage.object_stores.names import checked
    from mainstem.storage.object_stores.urls import open_object_store
    from mainstem.storage.remote.store_survey import cluster_ids, survey

    store = open_object_store(url, config.object_store)
    try:
        names = [checked(cluster)] if cluster is not None else await cluster_ids(store)
        return [await survey(store, name) for name in names]
    except (StorageError, ValueError) as error:
        raise CommandFailed(str(error)) from error


def _print(found: list[ClusterSurvey], url: str, by_partition: bool) -> None:
    if not found:
        print_text(f"{url} holds nothing of any cluster")
    for number, one in enumerate(found):
        if number:
            print_text()
        named = sum(topic.listed is not None for topic in one.topics)
        print_text(f"cluster {one.cluster_id}: {counted(len(one.groups), 'write group')}, {counted(named, 'topic')}")
        print_table(
            [">GROUP", ">FILES", ">SIZE", ">RECORDS", "OLDEST", "NEWEST", ">CHANGES", ">BLOCKS UP TO"],
            [
                (
                    it.group, f"{it.files:,}", size(it.file_bytes), f"{it.record_count:,}", _when(it.min_timestamp),
                    _when(it.max_timestamp), it.changes, it.upto,
                )
                for it in one.groups
            ],
            empty="no write group",
        )  # fmt: skip
        print_text()
        if by_partition:
            print_table(
                ["~TOPIC", ">PARTITION", ">FIRST", ">END", ">RECORDS", ">SIZE", "NEWEST"],
                [row for topic in one.topics for row in _partition_rows(topic)],
                empty="no partition has anything in the store",
            )
        else:
            print_table(
                ["~TOPIC", ">NUMBER", ">PARTITIONS", ">IN THE STORE", ">RECORDS", ">SIZE", "NEWEST"],
                [_topic_row(topic) for topic in one.topics],
                empty="no topic is known, and none has anything in the store",
            )
        for fault in one.faults:
            print_text(f"{fault.place}: {fault.what}")


def _name(topic: TopicSurvey) -> str:
    if topic.listed is not None:
        return topic.listed.name
    return "(deleted)" if topic.deleted else "(not known)"


def _topic_row(topic: TopicSurvey) -> tuple[object, ...]:
    parts = topic.partitions
    return (
        _name(topic), topic.number, topic.listed.partitions if topic.listed is not None else "-", len(parts),
        f"{sum(it.record_count for it in parts):,}", size(sum(it.batch_bytes for it in parts)),
        _when(max((it.max_timestamp for it in parts), default=-1)),
    )  # fmt: skip


def _partition_rows(topic: TopicSurvey) -> Iterator[tuple[object, ...]]:
    for it in topic.partitions:
        yield (
            _name(topic), it.partition, it.first_offset, it.end_offset, f"{it.record_count:,}", size(it.batch_bytes),
            _when(it.max_timestamp),
        )  # fmt: skip


def _when(timestamp: int) -> str:
    """A timestamp of a record, ms, as far as it is one."""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if timestamp >= 0 else "-"
    except (ValueError, OverflowError, OSError):
        return str(timestamp)


def _data(one: ClusterSurvey) -> dict[str, Any]:
    return {
        "cluster_id": one.cluster_id,
        "topics_version": one.topics_version,
        "groups": [it._asdict() for it in one.groups],
        "topics": [_topic_data(it) for it in one.topics],
        "faults": [it._asdict() for it in one.faults],
    }


def _topic_data(topic: TopicSurvey) -> dict[str, Any]:
    known = topic.listed
    return {
        "number": topic.number,
        "name": known.name if known is not None else None,
        "topic_id": str(known.topic_id) if known is not None else None,
        "partition_count": known.partitions if known is not None else None,
        "replication_factor": known.replication_factor if known is not None else None,
        "configs": known.configs if known is not None else {},
        "internal": known is not None and known.internal,
        "deleted": topic.deleted,
        "partitions": [it._asdict() for it in topic.partitions],
    }
