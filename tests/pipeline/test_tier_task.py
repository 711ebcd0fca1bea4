"""The share that a task of an upload takes of the machine and of the time, whatever its node is allowed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainstem.pipeline.merge.merge_task import MergeSettings
from mainstem.pipeline.tier import tier_task
from mainstem.pipeline.tier.tier_task import UploadDone, UploadWork, upload_all
from mainstem.ports import ObjectStore
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.urls import open_object_store
from mainstem.storage.shared_store.blocking_store import PARTS_IN_FLIGHT_MAX, RETRY_SECONDS_MAX
from mainstem.storage.store_files.allowance import unlimited


@pytest.mark.parametrize(
    ("allowed", "taken"),
    [((9, 99.0), (PARTS_IN_FLIGHT_MAX, RETRY_SECONDS_MAX)), ((1, 0.5), (1, 0.5))],
    ids=["more than a task takes", "less"],
)
def test_a_task_has_few_parts_under_way_and_does_not_ask_for_long(
    allowed: tuple[int, float], taken: tuple[int, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[ObjectStoreConfig] = []

    def opening(url: str, config: ObjectStoreConfig) -> ObjectStore:
        opened.append(config)
        return open_object_store(url, config)

    monkeypatch.setattr(tier_task, "open_object_store", opening)
    work = UploadWork(
        settings=MergeSettings(rpc="127.0.0.1:1", store_dir=str(tmp_path)),
        store=str(tmp_path),
        config=ObjectStoreConfig(parts_in_flight=allowed[0], retry_seconds=allowed[1]),
        files=(),
    )
    assert asyncio.run(upload_all(work, unlimited)) == UploadDone(names=())
    assert [(config.parts_in_flight, config.retry_seconds) for config in opened] == [taken]
