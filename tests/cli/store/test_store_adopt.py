"""`mainstem store adopt --list` says what a directory and a bucket hold."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.cli.documented import documented_keys, keys_of
from tests.storage.object_stores.servers import s3_server
from tests.storage.remote.stored_cluster import CLUSTER, StoredCluster, batches_of, told

from mainstem.cli.main import run
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.urls import open_object_store
from mainstem.storage.remote.chain.owner_record import OwnerRecord, encode_owner
from mainstem.storage.store_files.object_names import OWNER


def filled(directory: Path, *, overlaps: bool = False) -> dict[str, bytes]:
    """The objects of a store that holds a cluster; `overlaps`: some batches are in two of its files."""
    objects: dict[str, bytes] = {}

    async def story(there: StoredCluster) -> None:
        await there.fill()
        if overlaps:
            await there.upload("again.pack", batches_of(3, 0, range(30, 90, 3)))
            await there.upload("once-more.pack", batches_of(3, 0, range(60, 75, 3)))
            await there.tell()
        objects.update({name: stored.content for name, stored in there.bucket.objects.items()})

    told(directory, story)
    return objects


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # no row is wrapped


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
    assert "the store does not say whether it lives" in words

    assert run(["store", "adopt", str(root), "--list", "--partitions", "--cluster", CLUSTER]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "topic-3 0 0 903 903" in words
    assert "topic-3 1 6 30 24" in words

    assert run(["store", "adopt", str(root), "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = documented_keys()["store adopt"]
    assert keys_of(found, keys) == keys
    assert found["ok"]
    assert found["clusters"][0]["owner"] is None
    orders = found["clusters"][0]["topics"][0]
    assert (orders["name"], orders["configs"]) == ("topic-3", {"remote.storage.enable": "true"})

    for beats, says in ((7, "said to live by node 4 at 2023-11-14 22:13:20Z"), (0, "adopted by node 4 at 2023-11-14")):
        record = OwnerRecord(5, beats, 4, 1_700_000_000_000)
        (root / CLUSTER / OWNER).write_bytes(encode_owner(record))
        assert run(["store", "adopt", str(root), "--list"]) == 0
        assert says in " ".join(capsys.readouterr().out.split())
        assert run(["store", "adopt", str(root), "--list", "--json"]) == 0
        told_owner = json.loads(capsys.readouterr().out)["clusters"][0]["owner"]
        assert told_owner == {"term": 5, "beats": beats, "node_id": 4, "written_ms": 1_700_000_000_000}

    (root / CLUSTER / "groups/0/files/packed/first.pack").unlink()
    assert run(["store", "adopt", str(root), "--list"]) == 1
    assert "groups/0/files/packed/first.pack" in capsys.readouterr().out


def test_what_a_store_has_of_a_topic_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node").mkdir()
    root, to = tmp_path / "store", tmp_path / "exported"
    for name, content in filled(tmp_path / "node", overlaps=True).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    command = ["store", "adopt", str(root), "--export"]
    assert run([*command, str(to), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = documented_keys()["store adopt --export"]
    assert keys_of(found, keys) == keys
    assert [(it["topic"], it["partition"], it["first_offset"], it["end_offset"]) for it in found["partitions"]] == [
        ("topic-3", 0, 0, 903), ("topic-3", 1, 6, 30),
    ]  # fmt: skip
    assert sorted(path.name for path in to.iterdir()) == ["topic-3-0", "topic-3-1"]
    expected = [*batches_of(3, 0, range(0, 903, 3)), *batches_of(3, 1, range(6, 30, 3))]
    written = b"".join(path.read_bytes() for path in sorted(to.glob("*/*.log")))
    assert written == b"".join(batch.data for batch in expected)
    assert (to / "topic-3-1" / f"{6:020}.log").exists()

    assert run([*command, str(to)]) == 1
    assert "nothing is written over" in capsys.readouterr().err
    assert run([*command, str(tmp_path / "other"), "--topic", "topic-5"]) == 1
    assert "has nothing of a topic topic-5" in capsys.readouterr().err

    damaged = root / CLUSTER / "groups/0/files/queues/orders/0/u/00000000000000000060.log"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    assert run([*command, str(tmp_path / "damaged"), "--topic", "topic-3"]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "orders/0/u/00000000000000000060.log: the extent at 0 fails its CRC" in told
    assert not (tmp_path / "damaged" / "topic-3-0").exists()


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
