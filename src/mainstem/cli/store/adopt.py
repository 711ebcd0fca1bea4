"""`mainstem store adopt`"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from mainstem.cli.errors import CommandFailed
from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import counted, duration, print_json, print_table, print_text, size
from mainstem.cli.terminal.progress_line import ProgressLine, progress_option

if TYPE_CHECKING:
    from mainstem.cli.store.exporting.queue_copy import Written
    from mainstem.node.config import NodeConfig
    from mainstem.storage.remote.chain.owner_record import OwnerRecord
    from mainstem.storage.remote.chain.topic_list_format import ListedTopic
    from mainstem.storage.remote.survey.store_survey import ClusterSurvey, PartitionSurvey, TopicSurvey

SEGMENT_BYTES = 1 << 30
"""Kafka's default for `segment.bytes`."""


@click.command("adopt")
@click.argument("url")
@click.option("--list", "lists", is_flag=True, help="Show what the store holds.")
@click.option(
    "--export",
    "root",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write what the store holds of a cluster as the files in which Kafka keeps it, below this directory.",
)
@click.option("--serve", "serves", is_flag=True, help="Run a node that shows what the store holds of a cluster.")
@click.option(
    "--into",
    "into_dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="WRITE_DIR",
    help="Make the write_dir of a node that goes on with the cluster.",
)
@click.option(
    "--although-alive",
    is_flag=True,
    help="With --into: do it although nodes of the cluster may live, which can be neither reached nor stopped.",
)
@click.option("--listen", metavar="HOST:PORT[,…]", help="With --serve: accept Kafka clients here.")
@click.option(
    "--http", metavar="HOST:PORT", help="With --serve: serve health, metrics and status here; otherwise ignored."
)
@click.option("--rpc", metavar="HOST:PORT", help="With --serve: accept calls here.")
@click.option(
    "--write-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="With --serve: keep the node's files here. Default: a temporary directory.",
)
@click.option("--topic", "-t", "topics", metavar="TOPIC", multiple=True, help="Export this topic only; repeatable.")
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
@progress_option
@options.no_bootstrap
@options.as_json
def command(
    url: str,
    lists: bool,
    root: Path | None,
    serves: bool,
    into_dir: Path | None,
    although_alive: bool,
    listen: str | None,
    http: str | None,
    rpc: str | None,
    write_dir: Path | None,
    topics: tuple[str, ...],
    cluster: str | None,
    by_partition: bool,
    file: Path | None,
    assignments: tuple[str, ...],
    progress: bool | None,
    as_json: bool,
) -> int:
    """Show, export or serve what an object store holds of clusters, by what lies in it alone, or go on with it.

    URL is what `remote_dir` was: a directory, s3://bucket/prefix, gs://bucket/prefix or hdfs://namenode:8020/folder. No
    node is asked, and nothing in the store is changed, but for the note of --into. Of a partition there is what was in
    the remote tier: what was on disks only is not there. The exit code is 1 when something is missing or damaged.

    --export writes a directory TOPIC-N for each partition, as `mainstem store export` does. Nothing is written over. A
    directory has its name when it is whole; one that ends in .partial is not.

    --serve runs a node until a signal ends it. Kafka clients read from it, and consumer groups work; publishing and
    changes of topics are refused (POLICY_VIOLATION), and nothing is written to the store.

    --into makes a node's write_dir, by the node's own configuration (node_id, nameserver.peers): start the node with it
    and the same store, and the cluster goes on; with several nodes, have all of them adopt before one starts. Records
    in no file of the store are lost, and each partition goes on far behind it, so that no offset is given out twice.
    The former nodes must never be started again. The command looks for 10 to 20 seconds whether the cluster still says
    in the store that it lives, and refuses then, without --although-alive; it notes there who goes on."""
    if [lists, root is not None, serves, into_dir is not None].count(True) != 1:
        raise click.UsageError("takes one of --list, --export DIR, --serve and --into WRITE_DIR")
    if topics and root is None:
        raise click.UsageError("--topic goes with --export")
    if although_alive and into_dir is None:
        raise click.UsageError("--although-alive goes with --into")
    flags = {"listen": listen, "http": http, "rpc": rpc}
    if not serves and (write_dir is not None or listen or rpc):
        raise click.UsageError("--listen, --rpc and --write-dir go with --serve")
    if serves:
        from mainstem.cli.store.adopted_node import serve

        serve(url, cluster, file, assignments, flags, write_dir)
        return 0
    from mainstem.node.config_sources import load

    config = load(file=file, environment=os.environ, flags={}, assignments=assignments)
    if into_dir is not None:
        from mainstem.cli.store.adopted_node import into

        into(url, config, cluster, into_dir, although_alive=although_alive, as_json=as_json)
        return 0
    if root is not None:
        return _export(url, config, cluster, topics, root, progress, as_json)
    found = asyncio.run(_surveys(url, config, cluster))
    if cluster is not None and not any(one.groups or one.topics for one in found):
        raise CommandFailed(f"{url} has no cluster {cluster}")
    if as_json:
        print_json({"ok": not any(one.faults for one in found), "clusters": [_data(one) for one in found]})
    else:
        _print(found, url, by_partition)
    return 1 if any(one.faults for one in found) else 0


def _export(
    url: str,
    config: NodeConfig,
    cluster: str | None,
    topics: tuple[str, ...],
    root: Path,
    progress: bool | None,
    as_json: bool,
) -> int:
    from mainstem.cli.store.adopted_node import only_cluster
    from mainstem.cli.store.exporting.queue_copy import directory_of, export_partition, refuse_existing
    from mainstem.cli.store.exporting.stored_topic import StoredTopic
    from mainstem.storage.errors import StorageError
    from mainstem.storage.object_stores.names import checked
    from mainstem.storage.object_stores.store_folder import StoreFolder
    from mainstem.storage.object_stores.urls import open_object_store
    from mainstem.storage.remote.survey.store_survey import cluster_ids, survey
    from mainstem.storage.remote.survey.stored_queues import StoredQueues

    store, queues = open_object_store(url, config.object_store), StoredQueues()
    started = time.monotonic()
    done: list[tuple[str, Written]] = []
    total = 0
    try:
        with asyncio.Runner() as runner, ProgressLine(progress) as line:
            name = checked(cluster) if cluster is not None else only_cluster(url, runner.run(cluster_ids(store)))
            found = runner.run(survey(store, name, queues.add))
            chosen = _chosen(found, topics)
            for topic in chosen:
                for part in topic.partitions:
                    refuse_existing(directory_of(root, topic.listed.name, part.partition))
            root.mkdir(parents=True, exist_ok=True)

            def told(count: int) -> None:
                nonlocal total
                total += count
                line.offer(total, lambda: f"{size(total)}, {counted(len(done), 'partition')} done")

            for topic in chosen:
                parts = {part.partition: part for part in topic.partitions}
                source = StoredTopic(runner, StoreFolder(store, name), topic.listed, parts, queues)
                limit = int(topic.listed.configs.get("segment.bytes", SEGMENT_BYTES))
                for partition in parts:
                    done.append((source.topic, export_partition(source, partition, root, limit, told)))
    except (StorageError, ValueError) as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or root}: {error.strerror or error}") from error
    _print_export(found, done, total, time.monotonic() - started, as_json)
    return 1 if found.faults else 0


class _Chosen(NamedTuple):
    listed: ListedTopic
    partitions: tuple[PartitionSurvey, ...]


def _chosen(found: ClusterSurvey, topics: tuple[str, ...]) -> list[_Chosen]:
    """The topics to export: these, or all that have a name and something in the store."""
    named = {
        topic.listed.name: _Chosen(topic.listed, topic.partitions)
        for topic in found.topics
        if topic.listed is not None and topic.partitions
    }
    for name in topics:
        if name not in named:
            raise CommandFailed(f"the store has nothing of a topic {name} of cluster {found.cluster_id}")
    return [named[name] for name in topics or named]


def _print_export(
    found: ClusterSurvey, done: list[tuple[str, Written]], total: int, seconds: float, as_json: bool
) -> None:
    if as_json:
        print_json(
            {
                "ok": not found.faults,
                "cluster_id": found.cluster_id,
                "seconds": round(seconds, 3),
                "partitions": [{"topic": topic, **written._asdict()} for topic, written in done],
                "faults": [it._asdict() for it in found.faults],
            }
        )
        return
    print_table(
        ["~DIRECTORY", ">START", ">END", ">SEGMENTS", ">BATCHES", ">SIZE"],
        [
            (it.directory, it.first_offset, it.end_offset, it.segments, f"{it.batches:,}", size(it.bytes))
            for _topic, it in done
        ],
        empty="no topic that has a name has anything in the store",
    )
    for fault in found.faults:
        print_text(f"{fault.place}: {fault.what}")
    print_text(f"exported {size(total)} in {duration(seconds)}")


async def _surveys(url: str, config: NodeConfig, cluster: str | None) -> list[ClusterSurvey]:
    from mainstem.storage.errors import StorageError
    from mainstem.storage.object_stores.names import checked
    from mainstem.storage.object_stores.urls import open_object_store
    from mainstem.storage.remote.survey.store_survey import cluster_ids, survey

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
        print_text(_owned(one.owner))
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


def _owned(owner: OwnerRecord | None) -> str:
    """Whether somebody goes on with a cluster, as far as the store says."""
    if owner is None:
        return "the store does not say whether it lives"
    when = f"at {_when(owner.written_ms)} by its own clock, term {owner.term}"
    if owner.beats:
        return f"said to live by node {owner.node_id} {when}; one that lives says so every 15 seconds"
    return f"adopted by node {owner.node_id} {when}, and not started since"


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
        "owner": None if one.owner is None else msgspec.structs.asdict(one.owner),
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
