"""`mainstem store verify` of a directory and of a bucket that hold a cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.cli.documented import documented_keys, keys_of
from tests.cli.store.test_store_adopt import filled
from tests.cli.test_narrow_terminals import fitting
from tests.storage.object_stores.servers import s3_server
from tests.storage.remote.stored_cluster import CLUSTER

from mainstem.cli.main import run
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.urls import open_object_store

FIRST = f"{CLUSTER}/groups/0/files/packed/first.pack"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "node").mkdir()
    root = tmp_path / "store"
    for name, content in filled(tmp_path / "node").items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def test_a_sound_store_is_told_in_three_lines(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert run(["store", "verify", "--objects", "--store-dir", str(root)]) == 0
    clusters, read, found = capsys.readouterr().out.splitlines()
    assert clusters == f"clusters  {CLUSTER}"
    assert read.startswith("read      3 files, 2")
    assert found == "found     all is as it should be"
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_the_store_is_that_of_the_configuration(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mainstem.toml"
    where = ["store", "verify", "--config", str(file), "--json"]
    file.write_text(f'write_dir = "{tmp_path}/w"\nstore_dir = "{root}"\nshared_store = true\n')
    assert run(where) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 3
    file.write_text(f'write_dir = "{tmp_path}/w"\nstore_dir = "{tmp_path}/s"\nremote_dir = "{root}"\n')
    assert run([*where, "--objects"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 3
    assert run(where) == 1, "without the option it is disk 2, of which there is nothing"
    assert run([*where, "--cluster", CLUSTER]) == 2
    file.write_text(f'write_dir = "{tmp_path}/w"\n')
    capsys.readouterr()
    assert run([*where, "--objects"]) == 1
    assert "neither a shared store nor a remote_dir" in " ".join(capsys.readouterr().err.split())


def test_a_fault_is_told_with_its_object_and_whose_offsets_it_costs(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray((root / FIRST).read_bytes())
    content[64 + 2 * 700 + 100] ^= 1
    (root / FIRST).write_bytes(content)
    command = ["store", "verify", "--objects", "--store-dir", str(root)]
    assert run([*command, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    documented = documented_keys()["store verify --objects"]
    assert keys_of(told, documented) == documented
    (finding,) = told["findings"]
    assert (finding["path"], finding["position"]) == (FIRST, 64 + 2 * 700)
    assert finding["partitions"] == [
        {"topic_number": 3, "topic": "topic-3", "partition": 0, "first_offset": 0, "last_offset": 59}
    ]
    assert (told["ok"], told["files"], told["clusters"]) == (False, 3, [CLUSTER])
    monkeypatch.setenv("COLUMNS", "80")
    assert run(command) == 1
    assert "1 fault" in fitting(capsys.readouterr().out)
    monkeypatch.setenv("COLUMNS", "160")
    assert run(command) == 1
    shown = capsys.readouterr().out
    assert "topic-3, partition 0: offsets 0 to 59" in shown

    (root / FIRST).unlink()
    assert run([*command, "--cluster", CLUSTER]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "is missing; it had 87 records, of blocks (0, 10] of write group 0" in shown
    assert "topic-3, partition 0: offsets 0 to 59" in shown
    assert run([*command, "--cluster", "another"]) == 1
    assert "has no cluster another" in capsys.readouterr().err


def test_a_store_that_is_out_or_empty_is_not_called_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["store", "verify", "--objects", "--set", "object_store.retry_seconds=0.01", "--store-dir"]
    assert run([*out, str(tmp_path / "not mounted")]) == 1
    assert "is no directory" in capsys.readouterr().err
    assert run([*out, str(tmp_path)]) == 0
    assert "holds nothing of any cluster" in " ".join(capsys.readouterr().out.split())


def test_a_bucket_is_read_as_the_configuration_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("obstore")
    objects = filled(tmp_path)
    with s3_server() as server:
        config = ObjectStoreConfig(endpoint=server.endpoint, options=server.options)
        url = f"s3://{server.bucket}/a/b"
        store = open_object_store(url, config)

        async def write(*names: str) -> None:
            for name in names:
                await store.write(name, objects[name])

        asyncio.run(write(*objects))
        file = tmp_path / "mainstem.toml"
        options = "\n".join(f'{name} = "{value}"' for name, value in server.options.items())
        file.write_text(f'[object_store]\nendpoint = "{server.endpoint}"\n[object_store.options]\n{options}\n')
        command = ["store", "verify", "--store-dir", url, "--config", str(file), "--json"]
        assert run(command) == 0
        assert json.loads(capsys.readouterr().out)["files"] == 3
        asyncio.run(store.delete([FIRST]))
        assert run(command) == 1
        told = json.loads(capsys.readouterr().out)
        assert [(it["path"], it["what"].partition(";")[0]) for it in told["findings"]] == [(FIRST, "is missing")]
        asyncio.run(write(FIRST))
        assert run(command) == 0
