"""`mainstem store probe`: what it finds in a directory, in S3, and in stores that do not keep their word."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest
from tests.cli.documented import documented_keys, keys_of
from tests.fakes.clock import LoopClock
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore
from tests.storage.object_stores.servers import s3_server

from mainstem.cli.main import run
from mainstem.model import Buffer
from mainstem.ports import ObjectInfo
from mainstem.storage.object_stores.probing import Ability, StoreProbe, Tried

STEPS = [
    "create", "read", "create only if absent", "replace if unchanged", "upload in parts", "list", "delete",
]  # fmt: skip


def test_a_directory_does_all_and_nothing_is_left_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "probe", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(tried["name"], tried["ability"]) for tried in found["tried"]] == [(step, "ok") for step in STEPS]
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"] == []
    keys = documented_keys()["store probe"]
    assert keys_of(found, keys) == keys


def test_s3_is_probed_as_the_configuration_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with s3_server() as server:
        file = tmp_path / "mainstem.toml"
        options = "\n".join(f'{name} = "{value}"' for name, value in server.options.items())
        file.write_text(f'[object_store]\nendpoint = "{server.endpoint}"\n[object_store.options]\n{options}\n')
        assert run(["store", "probe", f"s3://{server.bucket}/a", "--config", str(file)]) == 0
        assert capsys.readouterr().out.count(" ok ") == len(STEPS)
        assert run(["store", "probe", "s3://no-such-bucket/a", "--config", str(file)]) == 1
        told = " ".join(capsys.readouterr().out.split())
        assert "create failed" in told
        assert "NoSuchBucket: there is no such bucket" in told


def test_a_url_that_is_none_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "probe", "ftp://host/a"]) != 0
    assert "there is no object store ftp://" in capsys.readouterr().err


class Careless(SimulatedObjectStore):
    """Says yes to every write."""

    def __init__(self, bucket: SimulatedBucket, *, minds_tags: bool) -> None:
        super().__init__(bucket)
        self._held = bucket
        self._minds_tags = minds_tags

    async def write(self, name: str, content: Buffer, *, replaces: str | None = None) -> ObjectInfo:
        if replaces is None and self._minds_tags:
            return await super().write(name, content)
        return self._held.put(name, bytes(content))


def probed(*, careless: bool = False, minds_tags: bool = False, replaces: bool = True) -> tuple[list[Tried], list[str]]:
    """The steps tried, and the objects in the bucket afterwards."""

    async def story() -> tuple[list[Tried], list[str]]:
        bucket = SimulatedBucket(LoopClock(), random.Random(1))
        bucket.weather.replaces = replaces
        store = Careless(bucket, minds_tags=minds_tags) if careless else SimulatedObjectStore(bucket)
        return [tried async for tried in StoreProbe(store, 1000).run()], list(bucket.objects)

    return asyncio.run(story())


def test_a_store_that_overwrites_where_it_must_not_is_found_out() -> None:
    tried, left = probed(careless=True)
    assert [one.name for one in tried] == STEPS[:3]
    assert tried[-1].ability is Ability.FAILED
    assert "created only if absent" in tried[-1].found
    assert left == []


def test_a_store_that_replaces_what_has_changed_is_found_out() -> None:
    tried, left = probed(careless=True, minds_tags=True)
    assert [one.name for one in tried] == STEPS[:4]
    assert "replaced an object that had changed" in tried[-1].found
    assert left == []


def test_a_store_that_cannot_replace_may_be_used() -> None:
    tried, left = probed(replaces=False)
    assert [one.name for one in tried] == STEPS
    assert {one.name: one.ability for one in tried if one.ability is not Ability.OK} == {
        "replace if unchanged": Ability.UNSUPPORTED
    }
    assert left == []
