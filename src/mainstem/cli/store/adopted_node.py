"""The nodes that `mainstem store adopt` makes: one that shows what a store has (`--serve`), and the beginning of one
that goes on with it (`--into`)."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.cli.errors import CommandFailed
from mainstem.cli.terminal.output import counted, print_json, print_table, print_text

if TYPE_CHECKING:
    from mainstem.node.config import NodeConfig
    from mainstem.ports import ObjectStore
    from mainstem.storage.adopting.lost_cluster import LostCluster

LOOK_SECONDS = 10.0
"""A leader writes what was split within two seconds, and topics within five."""

LOOK_AT_OWNER_SECONDS = 20.0
"""A cluster that lives says so in the store every 15 seconds (`owner_beats.BEAT_SECONDS`)."""

READ_ONLY = ("read_only=true", "shared_store=false")


def serve(
    url: str,
    cluster: str | None,
    file: Path | None,
    assignments: tuple[str, ...],
    flags: Mapping[str, str | None],
    write_dir: Path | None,
) -> None:
    """Run a node alone that shows what a store has of a cluster, until a signal ends it. Raises `CommandFailed`, and
    what `serve` does."""
    gc.disable()  # as `serve`
    from mainstem.cli.serve import log_to_stderr, run_node
    from mainstem.node.config_sources import load
    from mainstem.node.storage_role.adoption import refuse_existing, write_node
    from mainstem.process.event_loop import new_event_loop
    from mainstem.process.free_memory import use_few_arenas
    from mainstem.storage.errors import StorageError
    from mainstem.time_slices import SHORT_SECONDS, set_slice

    use_few_arenas()
    set_slice(SHORT_SECONDS)
    log_to_stderr("text", "info")
    with tempfile.TemporaryDirectory(prefix="mainstem-adopted-") as temporary:
        root = write_dir if write_dir is not None else Path(temporary)
        places = {"write_dir": str(root / "write"), "store_dir": str(root / "store"), "remote_dir": url}
        config = load(
            file=file, environment=os.environ, flags={**flags, **places}, assignments=(*assignments, *READ_ONLY)
        )
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            try:
                refuse_existing(root / "write")
                found = runner.run(_read(url, config, cluster))
                runner.run(write_node(root / "write", found, config.node_id, [config.node_id], raises=False))
            except (StorageError, ValueError) as error:
                raise CommandFailed(str(error)) from error
            runner.run(run_node(config))


def into(
    url: str, config: NodeConfig, cluster: str | None, write_dir: Path, *, although_alive: bool, as_json: bool
) -> None:
    """Make the write_dir of a node that goes on with what a store has of a cluster. Raises `CommandFailed`."""
    from mainstem.node.storage_role.adoption import refuse_existing, write_node
    from mainstem.storage.errors import StorageError

    members = sorted(config.nameserver.peer_addresses) or [config.node_id]
    if len(members) > config.nameserver.replication_factor:
        raise CommandFailed(
            f"{len(members)} nodes with {config.nameserver.replication_factor} replicas of each write group: which "
            "node gets which replica is not known before they meet. Adopt the cluster with as many nodes as there are "
            "replicas, and have the others join it"
        )
    try:
        refuse_existing(write_dir)
        found = asyncio.run(_take(url, config, cluster, although_alive))
        asyncio.run(write_node(write_dir, found, config.node_id, members, raises=True))
    except (StorageError, ValueError) as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or write_dir}: {error.strerror or error}") from error
    _tell(found, config.node_id, write_dir, as_json)


async def _read(url: str, config: NodeConfig, cluster: str | None) -> LostCluster:
    from mainstem.storage.adopting.lost_cluster import read_lost_cluster

    return await read_lost_cluster(*await _cluster_at(url, config, cluster))


async def _cluster_at(url: str, config: NodeConfig, cluster: str | None) -> tuple[ObjectStore, str]:
    from mainstem.storage.object_stores.names import checked
    from mainstem.storage.object_stores.urls import open_object_store
    from mainstem.storage.remote.survey.store_survey import cluster_ids

    store = open_object_store(url, config.object_store)
    return store, checked(cluster) if cluster is not None else only_cluster(url, await cluster_ids(store))


async def _take(url: str, config: NodeConfig, cluster: str | None, although_alive: bool) -> LostCluster:
    """Read a cluster that nobody goes on with, and note in the store that this node does."""
    from mainstem.node.storage_role.adoption import become_owner, refuse_if_alive, term_behind
    from mainstem.storage.adopting.lost_cluster import read_lost_cluster
    from mainstem.storage.object_stores.store_folder import StoreFolder
    from mainstem.storage.remote.chain.owner_record import read_owner

    store, name = await _cluster_at(url, config, cluster)
    owner = await read_owner(StoreFolder(store, name))
    found = await read_lost_cluster(store, name)
    if owner.record is not None:
        found = found._replace(term=max(found.term, term_behind(owner.record)))
    if not although_alive:
        beats = owner.record is not None and owner.record.beats
        await refuse_if_alive(store, found, LOOK_AT_OWNER_SECONDS if beats else LOOK_SECONDS)
    await become_owner(store, found, owner, config.node_id, although_alive=although_alive)
    return found


def only_cluster(url: str, clusters: list[str]) -> str:
    """The one cluster that a store has. Raises `CommandFailed`."""
    if len(clusters) != 1:
        raise CommandFailed(f"{url} holds {counted(len(clusters), 'cluster')}; name one by --cluster: {clusters}")
    return clusters[0]


def _tell(found: LostCluster, node_id: int, write_dir: Path, as_json: bool) -> None:
    from mainstem.storage.adopting.disk_one import raised_to

    groups = range(found.write_groups)
    if as_json:
        print_json(
            {
                "ok": True,
                "cluster_id": found.cluster_id,
                "node_id": node_id,
                "write_dir": str(write_dir),
                "term": found.term,
                "goes_on_at": raised_to(found),
                "topics": len(found.topics),
                "unlisted": list(found.unlisted),
                "groups": [
                    {"group": group, "upto": found.upto(group), "changes": found.numbers()[group]} for group in groups
                ],
            }
        )
        return
    print_table(
        [">GROUP", ">CHANGES", ">BLOCKS UP TO"],
        [(group, found.numbers()[group], found.upto(group)) for group in groups],
        empty="no write group",
    )
    for name in found.unlisted:
        print_text(f"topic {name}: no list of topics has it; its name is made up, and nothing of it is deleted by age")
    print_text(
        f"{write_dir}: node {node_id} of cluster {found.cluster_id}, {counted(len(found.topics), 'topic')}; "
        f"it goes on in term {found.term}, at offset {raised_to(found):,} of each partition"
    )
