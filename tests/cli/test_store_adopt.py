"""`mainstem store adopt --list` says what a directory and a bucket hold."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.cli.documented import documented_keys, keys_of
from tests.storage.object_stores.servers import s3_server
from tests.storage.remote.test_store_survey import CLUSTER, Tiered, told

from mainstem.cli.main import run
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.urls import open_object_store


def filled(directory: Path) -> dict[str, bytes]:
    """The objects of a store that holds a cluster."""
    objects: dict[str, bytes] = {}

    async def story(there: Tiered) -> None:
        await there.fill()
        objects.update({name: stored.content for name, stored in there.bucket.objects.items()})

    told(directory, story)
    return objects


def test_a_directory_is_told_as_a_table_and_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node").mkdir()
    root = tmp_path / "store"
    for name, content in filled(tmp_path / "node").items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)

    assert run(["store", "adopt", str(root), "--list"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"cluster {CLUSTER}: 1 write group, 2 topics" in words
    assert "topic-3 3 2 2 927" in words
    assert "topic-5 5 8 0 0" in words
    assert "(deleted) 4 - 1 3" in words
    assert "(not known) 9 - 1 3" in words

    assert run(["store", "adopt", str(root), "--list", "--partitions", "--cluster", CLUSTER]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "topic-3 0 0 903 903" in words
    assert "topic-3 1 6 30 24" in words

    assert run(["store", "adopt", str(root), "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = documented_keys()["store adopt"]
    assert keys_of(found, keys) == keys
    assert found["ok"]
    orders = found["clusters"][0]["topics"][0]
    assert (orders["name"], orders["configs"]) == ("topic-3", {"remote.storage.enable": "true"})

    (root / CLUSTER / "groups/0/files/packed/first.pack").unlink()
    assert run(["store", "adopt", str(root), "--list"]) == 1
    assert "groups/0/files/packed/first.pack" in capsys.readouterr().out


def test_nothing_is_told_of_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "adopt", str(tmp_path), "--list"]) == 0
    assert "holds nothing of any cluster" in " ".join(capsys.readouterr().out.split())
    assert run(["store", "adopt", str(tmp_path), "--list", "--cluster", "other"]) == 1
    assert "has no cluster other" in capsys.readouterr().err
    assert run(["store", "adopt", str(tmp_path), "--list", "--cluster", "../other"]) == 1
    assert "cannot be the name of an object" in capsys.readouterr().err
    assert run(["store", "adopt", str(tmp_path)]) == 2
    out = ["--set", "object_store.retry_seconds=0.01"]
    assert run(["store", "adopt", str(tmp_path / "not mounted"), "--list", *out]) == 1
    assert "is no directory" in capsys.readouterr().err


def test_a_bucket_is_told_as_the_configuration_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("obstore")
    objects = filled(tmp_path)
    with s3_server() as server:
        config = ObjectStoreConfig(endpoint=server.endpoint, options=server.options)

        async def write() -> None:
            store = open_object_store(f"s3://{server.bucket}/a/b", config)
            for name, content in objects.items():
                await store.write(name, content)

        asyncio.run(write())
        file = tmp_path / "mainstem.toml"
        options = "\n".join(f'{name} = "{value}"' for name, value in server.options.items())
        file.write_text(f'[object_store]\nendpoint = "{server.endpoint}"\n[object_store.options]\n{options}\n')
        url = f"s3://{server.bucket}/a/b"
        assert run(["store", "adopt", url, "--list", "--partitions", "--config", str(file)]) == 0
        words = " ".join(capsys.readouterr().out.split())
        assert f"cluster {CLUSTER}: 1 write group, 2 topics" in words
        assert "topic-3 0 0 903 903" in words
