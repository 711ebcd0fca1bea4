"""The work of executors in an upload: they check files of the queue store and write them to the object store.

Work and results are JSON, as those of merges are. That the store is out is a result, not a failure: to try again at
once would not bring it back, and the task is in the way of the split.
"""

from __future__ import annotations

import asyncio

import msgspec

from mainstem.errors import MainstemError
from mainstem.pipeline.link.node_allowance import NodeAllowance
from mainstem.pipeline.link.node_link import NodeLink
from mainstem.pipeline.merge.merge_task import Damage, MergeSettings
from mainstem.storage.merging.merge_inputs import InputDamaged, InputFile
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.urls import open_object_store
from mainstem.storage.shared_store.blocking_store import PARTS_IN_FLIGHT_MAX, RETRY_SECONDS_MAX
from mainstem.storage.store_files.allowance import Allowance
from mainstem.storage.tiering.uploading import upload


class UploadFile(msgspec.Struct, frozen=True):
    """A file and where it is to go."""

    source: InputFile
    name: str
    objects: tuple[str, ...]


class UploadWork(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one task."""

    settings: MergeSettings
    store: str
    """The URL of the object store."""
    config: ObjectStoreConfig
    files: tuple[UploadFile, ...]


class UploadDone(msgspec.Struct, frozen=True, kw_only=True):
    """Their outcomes. The first that could not be uploaded ends the task."""

    names: tuple[str, ...]
    """In the remote tier, of those that lie there."""
    damage: Damage | None = None
    failure: str = ""


def run_upload(work: bytes) -> bytes:
    """An `UploadWork` in, an `UploadDone` out."""
    asked = msgspec.json.decode(work, type=UploadWork)
    node = NodeLink(asked.settings.rpc, "upload task", asked.settings.tls)
    try:
        return msgspec.json.encode(asyncio.run(upload_all(asked, NodeAllowance(node, upkeep=True))))
    finally:
        node.close()


async def upload_all(work: UploadWork, allow: Allowance) -> UploadDone:
    """Upload the files of a task, one after the other."""
    config = msgspec.structs.replace(
        work.config,
        retry_seconds=min(work.config.retry_seconds, RETRY_SECONDS_MAX),
        parts_in_flight=min(work.config.parts_in_flight, PARTS_IN_FLIGHT_MAX),
    )
    names: list[str] = []
    damage, failure = None, ""
    try:
        store = open_object_store(work.store, config)
        for file in work.files:
            await upload(store, file.source, file.name, file.objects, allow)
            names.append(file.name)
    except InputDamaged as error:
        damage = Damage(error.name, str(error))
    except (MainstemError, OSError) as error:
        failure = str(error)
    return UploadDone(names=tuple(names), damage=damage, failure=failure)
