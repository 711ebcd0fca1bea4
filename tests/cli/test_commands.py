"""Commands against a fake node: what they print, how they fail, what they import."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from tests.cli.documented import documented_keys, keys_of
from tests.cli.fake_node import serving
from tests.console.views import FakeViews

from mainstem.address import PORT_MAX, parsed
from mainstem.cli.cluster.drain import left_of, moving, told_of_drain
from mainstem.cli.cluster.rebalance import on_the_way
from mainstem.cli.lazy_group import LazyGroup
from mainstem.cli.main import root, run
from mainstem.cli.terminal.progress_line import bar
from mainstem.console.views.of_cluster import (
    BalanceView,
    ClusterView,
    DiskView,
    DrainView,
    MoveView,
    ReplicaView,
    WriteGroupView,
)
from mainstem.console.views.of_split import SharedStoreView, SplitEndpoint
from mainstem.node.config_sources import load


def all_commands() -> list[list[str]]:
    def walk(command: click.Command, path: list[str]) -> Iterator[list[str]]:
        yield path
        if isinstance(command, LazyGroup):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from walk(inner, [*path, name])

    return list(walk(root, []))


@pytest.fixture
def node() -> Iterator[str]:
    views = FakeViews()
    encode = msgspec.json.encode
    answers = {
        "/v1/cluster": (200, encode(asyncio.run(views.cluster()))),
        "/v1/split": (200, encode(asyncio.run(views.split()))),
        "/v1/store": (200, encode(asyncio.run(views.store()))),
        "/v1/store/usage": (200, encode(asyncio.run(views.store_usage(None)))),
        "/v1/store/usage/flights": (200, encode(asyncio.run(views.store_usage("flights")))),
        "/readyz": (200, b"ready\n"),
    }
    with serving(answers) as address:
        yield address


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address where nothing listens and nothing else can start to."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


@pytest.mark.parametrize("path", all_commands(), ids=" ".join)
def test_every_command_has_help(path: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--help"]) == 0
    assert capsys.readouterr().out.startswith(" ".join(["Usage: mainstem", *path]))


@pytest.mark.parametrize("path", all_commands(), ids=" ".join)
def test_every_option_says_what_it_does(path: list[str]) -> None:
    command: click.Command = root
    for name in path:
        assert isinstance(command, LazyGroup)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            # A sentence, not a fragment such as "Repeatable."
            assert parameter.help, parameter.name
            assert len(re.sub(r"Default:.*", "", parameter.help).split()) >= 3, (
                parameter.name,
                parameter.help,
            )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--version"], 0),
        (["cluster", "status"], 0),
        (["cluster", "status", "--http", "127.0.0.1:1"], 1),
        (["cluster", "status", "--http", "nowhere"], 2),
        (["cluster", "statsu"], 2),
        (["cluster", "status", "--jsno"], 2),
        (["group", "list", "--bootstrap", "127.0.0.1:1"], 1),
        (["serve", "--set", "nothing"], 2),
    ],
)
def test_exit_codes(arguments: list[str], code: int, node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSTEM_HTTP", node)
    assert run(arguments) == code


def test_a_wrong_address_in_a_variable_is_wrong_usage_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAINSTEM_BOOTSTRAP", "localhost")
    assert run(["group", "list"]) == 2
    assert "'localhost' is not an address: the port is missing" in capsys.readouterr().err


def test_mistyped_options_are_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "create", "t", "--partitons", "3"]) == 2
    assert "--partitions" in capsys.readouterr().err


def test_help_imports_no_heavy_module() -> None:
    code = (
        "import sys; from mainstem.cli.main import run; run(['--help'])\n"
        "heavy = {'rich', 'msgspec', 'confluent_kafka', 'starlette', 'numpy', 'pyspark'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, env={"PYTHONPATH": "src"})


def test_split_status_as_json_has_stable_keys(node: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["split", "status", "--http", node, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["groups"]["0"] == {
        "committed": 41,
        "split": 30,
        "pruned": 20,
        "lag_bytes": 4096,
        "lag_seconds": 1.5,
        "files": 2,
        "waits_for": "runs/7.run: 3 bytes have no room for header and footer",
    }
    assert [run["name"] for run in status["damaged_files"]] == ["3.run"]
    assert status["lease"]["holder"] == "embedded"
    assert status["last_progress"] == {"batch_id": 4, "bytes": 1 << 20}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["cluster", "status"], "J5p4kC1mQ0uYk3n2bqzX9A"),
        (["doctor"], "J5p4kC1mQ0uYk3n2bqzX9A: ready"),
        (["split", "status"], "running"),
        (["split", "status"], "write group 0: runs/7.run: 3 bytes have no room"),
        (["split", "status"], "3.run: runs/3.run: it is not there"),
        (["store", "status"], "  all      1  packed file      1  1.0 GiB  1.0 GiB"),
        (["store", "status"], "write group 1: 7 files, 9.0 GiB, to level 2, for 1 min 1 s"),
        (["store", "status"], "write group 0: 128 files into 3, 1.0 GiB, to level 1, 1 h 1 min ago"),
        (["store", "status"], "8.0 GiB are worth merging"),
        (["store", "status"], "3.run: runs/3.run: it is not there"),
        (["store", "usage"], "flights                           1.0 GiB  ####################"),
        (["store", "usage"], "├ journal                         2.5 KiB  #"),
        (["store", "usage"], "└ level 1, packed files        1  1.0 GiB  ####################"),
        (["store", "usage"], "(deleted topic, number 7)         2.0 MiB  #"),
        (["store", "usage"], "1,234 other topics"),
        (["store", "usage"], "└ remote, packed files         2  4.0 KiB  #"),
        (["store", "usage"], "remote tier  9 files, 2.0 TiB, of which 2.0 TiB are batches"),
        (["store", "status"], "remote      1  packed file      1  1.0 GiB  1.0 GiB"),
        (["store", "status"], "s3://bucket/mainstem"),
        (["store", "status"], "2 files, 3.0 GiB"),
        (["store", "status"], "12 files moved since the node started, the last 1 min 2 s ago"),
        (["store", "status"], "3 since the node started, the last: write group 1: the store is out"),
        (["store", "usage"], "queue store  4 files, 1.0 GiB, of which 1.0 GiB are batches"),
        (
            ["store", "usage"],
            "12 files with 3.0 GiB that topics share were not looked at yet, or cannot be read; ask again",
        ),
        (["store", "usage", "--topic", "flights"], "└ level 1, packed files"),
    ],
)
def test_text_for_people(
    arguments: list[str], part: str, node: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # no field is wrapped
    assert run([*arguments, "--http", node]) == 0
    assert part in capsys.readouterr().out


def test_every_command_takes_both_addresses() -> None:
    for path in all_commands():
        command: click.Command = root
        for name in path:
            assert isinstance(command, LazyGroup)
            found = command.get_command(click.Context(command), name)
            assert found is not None
            command = found
        if isinstance(command, LazyGroup) or path in (["serve"], ["dev", "cluster"], ["completion"], ["man"]):
            continue
        taken = {option for parameter in command.params for option in parameter.opts}
        assert {"--bootstrap", "--http"} <= taken, path


def test_a_refusal_is_one_line_with_the_nodes_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/v1/split": (503, b'{"error": "too many requests at once"}')}) as address:
        assert run(["split", "status", "--http", address]) == 1
    assert capsys.readouterr().err == f"mainstem: {address}: too many requests at once\n"


def test_doctor_fails_for_a_node_that_is_not_well(capsys: pytest.CaptureFixture[str], node: str) -> None:
    assert run(["doctor", "--http", node, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    with serving({"/readyz": (503, b"not ready: disk 1 failed\n")}) as address:
        assert run(["doctor", "--http", address, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert [check["name"] for check in found["checks"] if check["state"] == "failed"] == ["node"]


def test_a_shared_store_takes_the_place_of_disk_2(capsys: pytest.CaptureFixture[str]) -> None:
    views = asyncio.run(FakeViews().shared())
    paths = ("/v1/cluster", "/v1/store", "/v1/store/usage")
    shown: list[str] = []
    with serving({path: (200, msgspec.json.encode(view)) for path, view in zip(paths, views, strict=True)}) as node:
        for words in (["cluster", "status"], ["store", "status"], ["store", "usage"]):
            assert run([*words, "--http", node]) == 0
            shown.append(capsys.readouterr().out)
            assert "disk 2" not in shown[-1]
            assert "shared store" in shown[-1]
            assert run([*words, "--http", node, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert (found["store_disk"], found["shared_store"]) == (None, "s3://bucket/shared")
    _, status, usage = shown
    assert "s3://bucket/shared" in status
    assert re.search(r"^ +1 +1  packed file +1  1\.0 GiB", status, re.MULTILINE), "of write group 1"
    assert re.search(r"^ +all +1  packed file +1  1\.0 GiB", status, re.MULTILINE)
    assert "remote" not in status + usage
    assert "moved since" not in status, "nothing moves"
    assert "to be deleted" in status
    assert re.search(r"level 1, packed files +2", usage)


def test_commands_about_files_of_disk_2_say_what_to_do_with_a_shared_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mainstem.toml"
    file.write_text(f'write_dir = "{tmp_path}/w"\nstore_dir = "s3://bucket/x"\n')
    assert run(["store", "verify", "--without-manifest", "--config", str(file)]) == 2
    assert "--without-manifest is for disk 2" in " ".join(capsys.readouterr().err.split())
    assert run(["store", "repair", "--manifest", "--config", str(file)]) == 1
    assert f"{tmp_path}/w/cache is no directory" in capsys.readouterr().err
    endpoint = SplitEndpoint(
        host="h", port=1, store_dir="/w/cache", shared_store=SharedStoreView(url="s3://bucket/x", folder="f")
    )
    with serving({"/v1/split/endpoint": (200, msgspec.json.encode(endpoint))}) as node:
        assert run(["store", "tier", "--once", "--http", node]) == 1
    assert "s3://bucket/x is a shared store: files are written straight to it" in capsys.readouterr().err


def test_doctor_tries_the_object_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mainstem.toml"
    for setting, name in ((f'store_dir = "{tmp_path}/s"\nshared_store = true', "shared store"),
                          (f'remote_dir = "{tmp_path}/s"', "remote tier")):  # fmt: skip
        file.write_text(
            f'write_dir = "{tmp_path}/w"\nlisten = "127.0.0.1:0"\n{setting}\n[object_store]\nretry_seconds = 0.1\n'
        )
        for is_there in (False, True):
            (tmp_path / "s").mkdir() if is_there else shutil.rmtree(tmp_path / "s", ignore_errors=True)
            assert run(["doctor", "--config", str(file), "--json"]) == (0 if is_there else 1)
            checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
            assert checks[name]["state"] == ("ok" if is_there else "failed")
            assert str(tmp_path / "s") in checks[name]["found"]
            assert ("disk 2" in checks) == (name == "remote tier")


@pytest.mark.parametrize("words", ["split status", "store status", "store usage", "cluster status", "doctor"])
def test_data_has_the_documented_keys(words: str, node: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words.split(), "--http", node, "--json"]) == 0
    documented = documented_keys()[words]
    assert keys_of(json.loads(capsys.readouterr().out), documented) == documented


def test_status_tells_which_step_a_moving_replica_is_at() -> None:
    assert moving(MoveView(group=0, old=3, new=4)) == (
        "write group 0: node 4 copies a replica, which then goes from node 3"
    )
    assert moving(MoveView(group=0, old=3, new=0)) == (
        "write group 0: the replica on node 3 goes, as its successor has a vote"
    )
    assert moving(MoveView(group=0, old=0, new=4)) == "write group 0: node 4 copies a replica"
    learner = ReplicaView(node=4, lag_blocks=730, active=True, voter=False)
    groups = [WriteGroupView(group=it, leader=1, term=1, committed=1, replicas=[learner]) for it in (1, 0)]
    assert moving(MoveView(group=0, old=3, new=4), groups) == (
        "write group 0: node 4 copies a replica (730 blocks to go), which then goes from node 3"
    )


def test_a_drain_tells_the_documented_keys_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    left = DrainView(node=3, groups_left=[0, 2], votes=True, empty=False, waits_for=["write group 0: add a node"])
    assert left_of(left, 4) == "2 of 4 write groups to go, votes on the metadata; waits: write group 0: add a node"
    assert left_of(DrainView(node=3, groups_left=[], votes=False, empty=True), 4) == "empty, and may stop for good"
    with serving({"/v1/cluster/drain": (200, b"{}")}) as address:
        words = ["cluster", "drain", "3", "--http", address, "--token", "t"]
        assert run([*words, "--json"]) == 0
        told = capsys.readouterr().out
        assert keys_of(json.loads(told), documented_keys()["cluster drain"]) == documented_keys()["cluster drain"]
        assert run([*words, "--cancel"]) == 0
        assert capsys.readouterr().out == "node 3 is not drained any more\n"
        assert run([*words, "--cancel", "--wait"]) == 2


def test_a_drain_that_is_waited_for_shows_how_far_it_is_and_what_moves() -> None:
    drain = DrainView(node=3, groups_left=[0], votes=False, empty=False)
    moves = [MoveView(group=0, old=3, new=1), MoveView(group=2, old=5, new=1)]
    disk = DiskView(path="/w", used_bytes=1, free_bytes=2, total_bytes=3)
    groups = [WriteGroupView(group=it, leader=1, term=1, committed=1) for it in range(4)]
    view = ClusterView(
        cluster_id="c", nodes=[], write_groups=groups, write_disk=disk, store_disk=disk, topics=1, partitions=1,
        drains=[drain], moves=moves,
    )  # fmt: skip
    assert told_of_drain(view, drain, 4, 0.0) == (
        "[###############-----] 1 of 4 write groups to go; "
        "write group 0: node 1 copies a replica, which then goes from node 3"
    )
    assert [bar(*it) for it in ((0, 3), (3, 3), (0, 0))] == [f"[{'-' * 20}]", f"[{'#' * 20}]", f"[{'#' * 20}]"]


def test_a_rebalance_shows_its_plan_and_ends_when_nothing_is_left_or_nothing_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["cluster", "rebalance", "--token", "t", "--http"]
    move = {"group": 0, "old": 1, "new": 4, "why": "3 replicas there, 0 here"}
    plan = {"moves": [move], "waits_for": ["write group 0: node 2 is away"], "bytes_per_second": 1 << 26}
    with serving({"/v1/cluster/rebalance": (200, json.dumps(plan).encode())}) as address:
        assert run([*words, address, "--dry-run"]) == 0
        told = capsys.readouterr().out
        assert "3 replicas there, 0 here" in told
        assert "1 replica would move, one at a time to each node, at 64.0 MiB/s at most" in told
        assert run([*words, address, "--dry-run", "--json"]) == 0
        documented = documented_keys()["cluster rebalance --dry-run"]
        assert keys_of(json.loads(capsys.readouterr().out), documented) == documented
        assert run([*words, address]) == 1
        assert "1 move cannot begin now: write group 0: node 2 is away" in capsys.readouterr().err
    assert on_the_way(BalanceView(moves=[], under_way=1, waits_for=["node 4 is not there yet"]), 4, 0.0) == (
        "[###############-----] 1 replica on the way, 0 to go; waits: node 4 is not there yet"
    )
    with serving({"/v1/cluster/rebalance": (200, b'{"moves": []}')}) as address:
        assert run([*words, address]) == 0
        assert capsys.readouterr().out == "nothing is to move\n"
        full = json.dumps({"moves": [], "without_room": [4], "staying": ["write group 0: a slot is on its way"]})
        with serving({"/v1/cluster/rebalance": (200, full.encode())}) as crowded:
            assert run([*words, crowded]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == [
            "node 4 takes nothing: too little of a disk is free (nameserver.room_percent_min)",
            "stays: write group 0: a slot is on its way",
        ]
        assert run([*words, address, "--json"]) == 0
        documented = documented_keys()["cluster rebalance"]
        assert keys_of(json.loads(capsys.readouterr().out), documented) == documented
        assert run([*words, address, "--dry-run"]) == 0
        assert "replicas are spread evenly" in capsys.readouterr().out


def test_a_removal_tells_the_documented_keys_or_why_it_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cluster", "remove", "3", "--token", "t", "--http"]
    with serving({"/v1/cluster/remove": (200, b"{}")}) as address:
        assert run([*words, address, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert keys_of(told, documented_keys()["cluster remove"]) == documented_keys()["cluster remove"]
        assert run([*words, address]) == 0
        assert capsys.readouterr().out == "node 3 is no part of the cluster any more\n"
    with serving({"/v1/cluster/remove": (409, b'{"error": "node 3 is alive: stop it first"}')}) as address:
        assert run([*words, address]) == 1
        assert "node 3 is alive: stop it first" in capsys.readouterr().err


def test_write_groups_are_shown_and_added(capsys: pytest.CaptureFixture[str]) -> None:
    view = json.loads(cluster_of("127.0.0.1"))
    group = {"leader": -1, "term": 1, "committed": 2, "slots": 4096, "replication_factor": 3, "replicas": []}
    view["write_groups"] = [{"group": 0, **group}, {"group": 1, **group, "leader": 3, "slots": 7}]
    words = ["cluster", "write-groups", "--token", "t", "--http"]
    shown = {"/v1/cluster": (200, json.dumps(view).encode())}
    with serving(shown) as address:
        assert run([*words, address, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["added"] == 0
        view["write_groups"][0]["replicas"] = [{"node": 1, "lag_blocks": 0, "active": True}]
    with serving({"/v1/cluster": (200, json.dumps(view).encode())}) as address:
        assert run([*words, address, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        documented = documented_keys()["cluster write-groups"]
        assert keys_of(told, documented) == documented
        assert run([*words, address, "2"]) == 0
        out = capsys.readouterr().out
        assert "the cluster has 2" in out
        assert [line.split() for line in out.splitlines()[-2:]] == [
            ["0", "none", "3", "4096", "1"],
            ["1", "3", "3", "7"],
        ]
    refused = {**shown, "/v1/cluster/write-groups": (409, b'{"error": "every slot has queues"}')}
    with serving(refused) as address:
        assert run([*words, address, "3"]) == 1
        assert "every slot has queues" in capsys.readouterr().err
        assert run([*words, address, "0"]) == 2
        assert run([*words, address, "--replication-factor", "1"]) == 2, "no new ones are asked for"


def test_a_queue_moves_and_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    move = {"slot": 7, "before": 0, "to": 2, "waits_for": "a transaction is open in t:1"}
    view = {**json.loads(cluster_of("127.0.0.1")), "slot_moves": [move]}
    explained = {"subject": "partition 1 of t", "sentences": [], "topic": "t", "partition": 1, "slot": 7, "group": 2}
    answers = {
        "/v1/cluster/move-queue": (202, b"{}"),
        "/v1/cluster/explain/partition/t/1": (200, json.dumps(explained).encode()),
        "/v1/cluster": (200, json.dumps(view).encode()),
    }
    words = ["cluster", "move-queue", "t:1", "--token", "t", "--http"]
    with serving(answers) as address:
        assert run([*words, address, "--to", "2", "--wait", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        documented = documented_keys()["cluster move-queue"]
        assert keys_of(told, documented) == documented
        assert run([*words, address, "--to", "2", "--wait"]) == 0
        assert "t:1 is in write group 2, with its slot 7" in capsys.readouterr().out
        assert run([*words, address, "--to", "3"]) == 0
        assert "t:1 moves to write group 3" in capsys.readouterr().out
        assert run([*words, address, "--cancel"]) == 0
        assert "t:1 stays in write group 2" in capsys.readouterr().out
        assert run([*words, address, "--cancel", "--to", "3"]) == 2
        assert run(["cluster", "status", "--http", address]) == 0
        assert "slot 7 moves from write group 0 to 2: waits, as a transaction is open in t:1" in capsys.readouterr().out
        answers["/v1/cluster"] = (200, json.dumps({**view, "slot_moves": []}).encode())
        assert run([*words, address, "--to", "3", "--wait"]) == 2
        assert "slot 7 is not on its way to write group 3 any more" in capsys.readouterr().err
        assert run([*words, address]) == 2
        assert run(["cluster", "move-queue", "t", "--to", "2", "--http", address]) == 2
        assert "'t' is not TOPIC:PARTITION" in capsys.readouterr().err
    with serving({"/v1/cluster/move-queue": (409, b'{"error": "slot 7 is on its way"}')}) as address:
        assert run([*words, address, "--to", "3"]) == 1
        assert "slot 7 is on its way" in capsys.readouterr().err


def cluster_of(host: str, **more: object) -> bytes:
    disk = {"path": "/w", "used_bytes": 0, "free_bytes": 1, "total_bytes": 1}
    nodes = [
        {
            "node_id": number, "host": host, "port": 9090 + number, "http": f"{host}:{9190 + number}",
            "rpc": f"{host}:{9290 + number}", "roles": ["broker"] if number == 3 else ["storage", "nameserver"],
        }
        for number in (1, 2, 3)
    ]  # fmt: skip
    view = {"cluster_id": "c", "nodes": nodes, "write_groups": [], "write_disk": disk, "store_disk": None, "topics": 0}
    return json.dumps(view | {"partitions": 0, "next_node_id": 5} | more).encode()


def test_a_node_is_prepared_that_serve_would_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / 'a "node"'
    words = ["cluster", "add", str(directory), "--http"]
    with serving({"/v1/cluster": (200, cluster_of("127.0.0.1"))}) as address:
        assert run([*words, address, "--roles", "broker, storage", "--rack", "r", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert keys_of(told, documented_keys()["cluster add"]) == documented_keys()["cluster add"]
        config = load(file=Path(told["file"]), environment={}, flags={})
        assert (config.node_id, config.roles, config.rack) == (5, ("broker", "storage"), "r")
        assert (config.listen, config.http, config.rpc) == (("127.0.0.1:9094",), "127.0.0.1:9194", "127.0.0.1:9294")
        assert config.nameserver.peer_addresses == {1: "127.0.0.1:9291", 2: "127.0.0.1:9292"}
        assert Path(config.write_dir).parent == directory
        assert run([*words, address]) == 1
        assert "is there already" in capsys.readouterr().err
        directory = tmp_path / "other"
        words[2] = str(directory)
        assert run([*words, address, "--node-id", "2"]) == 1
        assert "node 2 is part of the cluster already" in capsys.readouterr().err
        assert run([*words, address, "--roles", "broker,cook"]) == 2
        assert "'cook' is not a role" in capsys.readouterr().err
        assert run([*words, address, "--kafka", "9092"]) == 2
        assert "is not an address" in capsys.readouterr().err
        assert not directory.exists()
    with serving({"/v1/cluster": (200, cluster_of("10.0.0.7", shared_store="s3://bucket/it"))}) as address:
        assert run([*words, address]) == 1
        assert "name the address with --kafka" in capsys.readouterr().err
        named = ["--kafka", "10.0.0.8:9092", "--node-http", "10.0.0.8:9080", "--rpc", "10.0.0.8:9070"]
        assert run([*words, address, *named]) == 0
        assert f"mainstem serve --config {directory}/mainstem.toml" in capsys.readouterr().out
        text = (directory / "mainstem.toml").read_text()
        assert 'store_dir = "s3://bucket/it"' in text
        assert "shared_store = true" in text
    with serving({"/v1/cluster": (200, cluster_of("127.0.0.1", nodes=[]))}) as address:
        words[2] = str(tmp_path / "third")
        assert run([*words, address, *named]) == 1
        assert "nobody could let a new node in" in capsys.readouterr().err


def test_a_new_node_leaves_a_dead_one_its_ports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = json.loads(cluster_of("127.0.0.1"))
    dead = {"node_id": 4, "host": "127.0.0.1", "port": 9094, "rpc": "127.0.0.1:9294", "roles": ["storage"]}
    view["nodes"].append(dead | {"state": "dead"})
    with serving({"/v1/cluster": (200, json.dumps(view).encode())}) as address:
        assert run(["cluster", "add", str(tmp_path / "new"), "--http", address, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [told[name] for name in ("kafka", "http", "rpc")] == ["127.0.0.1:9095", "127.0.0.1:9195", "127.0.0.1:9295"]


def test_a_new_node_leaves_whoever_listens_its_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as a node that is no part of the cluster any more, and was not stopped."""
    view = json.loads(cluster_of("127.0.0.1"))
    with socket.create_server(("127.0.0.1", 0)) as removed:
        port = removed.getsockname()[1]
        view["nodes"][2] |= {"port": port - 1, "rpc": f"127.0.0.1:{PORT_MAX}"}
        with serving({"/v1/cluster": (200, json.dumps(view).encode())}) as address:
            words = ["cluster", "add", str(tmp_path / "new"), "--http", address, "--json"]
            assert run(words) == 1
            assert "no free port above 127.0.0.1:65535: name the address with --rpc" in capsys.readouterr().err
            assert run([*words, "--rpc", "127.0.0.1:9294"]) == 0
    kafka = parsed(json.loads(capsys.readouterr().out)["kafka"])
    assert kafka.port > port  # who else listens above that is not known


def test_a_new_node_gives_no_port_twice_where_those_of_the_nodes_follow_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view = json.loads(cluster_of("127.0.0.1"))
    view["nodes"] = [view["nodes"][0] | {"port": 9091, "http": "127.0.0.1:9092", "rpc": "127.0.0.1:9093"}]
    with serving({"/v1/cluster": (200, json.dumps(view).encode())}) as address:
        assert run(["cluster", "add", str(tmp_path / "new"), "--http", address, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [told[name] for name in ("kafka", "http", "rpc")] == ["127.0.0.1:9094", "127.0.0.1:9095", "127.0.0.1:9096"]


def test_a_new_node_leaves_nodes_without_brokers_the_kafka_ports_that_they_do_not_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They tell port 0; each was prepared with one, and listens there once it has the role."""
    view = json.loads(cluster_of("127.0.0.1"))
    for number in (2, 3):
        view["nodes"][number - 1] |= {"port": 0, "roles": ["storage", "nameserver"]}
    with serving({"/v1/cluster": (200, json.dumps(view).encode())}) as address:
        assert run(["cluster", "add", str(tmp_path / "new"), "--http", address, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [told[name] for name in ("kafka", "http", "rpc")] == ["127.0.0.1:9094", "127.0.0.1:9194", "127.0.0.1:9294"]


@pytest.mark.parametrize("words", ["cluster transfer-leader", "cluster replace"])
def test_changes_tell_the_documented_keys(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving({f"/v1/{words.replace(' ', '/')}": (200, b"{}")}) as address:
        assert run([*words.split(), "3", "4", "--http", address, "--token", "t", "--json"]) == 0
    assert keys_of(json.loads(capsys.readouterr().out), documented_keys()[words]) == documented_keys()[words]


class Replacing(dict[str, tuple[int, bytes]]):
    """Answers of a node whose cluster goes on by a step each time that it is looked at."""

    def __init__(self, steps: Sequence[Sequence[ReplicaView]]) -> None:
        self.steps = list(steps)
        disk = DiskView(path="d", used_bytes=0, free_bytes=1, total_bytes=1)
        self.view = ClusterView(
            cluster_id="c", nodes=[], write_groups=[], write_disk=disk, store_disk=None, topics=0, partitions=0
        )
        super().__init__({"/v1/cluster/replace": (200, b"{}")})

    def get(self, path: str, default: Any = None) -> Any:
        if path != "/v1/cluster":
            return super().get(path, default)
        group = WriteGroupView(group=0, leader=1, term=1, committed=1, replicas=self.steps.pop(0))
        return 200, msgspec.json.encode(msgspec.structs.replace(self.view, write_groups=[group]))


def test_a_replacement_is_done_when_the_new_node_votes_and_the_old_one_is_gone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def replica(node: int, **other: Any) -> ReplicaView:
        return ReplicaView(node=node, **{"lag_blocks": 0, "active": True} | other)

    steps = [
        [replica(1), replica(3, active=False), replica(4, voter=False)],
        [replica(1), replica(3, active=False), replica(4)],
        [replica(1, lag_blocks=-1), replica(4, lag_blocks=-1)],  # where it is to be, as no leader tells where it is
        [replica(1), replica(4)],
    ]
    node = Replacing(steps)
    with serving(node) as address:
        assert run(["cluster", "replace", "3", "4", "--wait", "--http", address, "--token", "t"]) == 0
    assert (node.steps, capsys.readouterr().out) == ([], "node 4 has taken the place of node 3\n")


def test_something_else_on_the_port_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/v1/split": (200, b"<html>")}) as address:
        assert run(["split", "status", "--http", address]) == 1
    assert "is not a Mainstem node" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list", "--bootstrap"],
        ["topic", "describe", "t", "--bootstrap"],
        ["group", "list", "--bootstrap"],
        ["produce", "t", "--bootstrap"],
        ["consume", "t", "--bootstrap"],
        ["bench", "produce", "--bootstrap"],
        ["bench", "consume", "--bootstrap"],
        ["bench", "latency", "--bootstrap"],
        ["split", "run", "--http"],
        ["split", "status", "--http"],
        ["cluster", "status", "--http"],
    ],
)
def test_a_closed_port_says_what_to_do(
    arguments: list[str], closed_port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, closed_port]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert closed_port in error
    assert "mainstem serve" in error


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["tpic"], "there is no command 'tpic'; did you mean topic?"),
        (["consume", "t", "--from", "yesterday"], "'yesterday' is not a valid position; expected beginning"),
        (["consume", "t", "--format", "%z"], "there is no %z"),
        (["consume", "t", "-g", "g", "-p", "1"], "exclude each other"),
        (["produce", "t", "-H", "novalue"], "KEY=VALUE"),
        (["produce", "t", "--idempotent", "--acks", "1"], "--acks all"),
        (["bench", "produce", "--records", "0"], "0 is not in the range"),
        (["bench", "produce", "--rate", "nan"], "'nan' is not a number"),
        (["bench", "produce", "--seconds", "inf"], "inf is not in the range"),
        (["bench", "produce", "--idempotent", "--acks", "1"], "--acks all"),
        (["bench", "latency", "--record-bytes", "10"], "10 is not in the range"),
        (["bench", "latency", "--rate", "0.1", "--seconds", "1"], "makes 0 records"),
        (["topic", "alter", "t"], "nothing to change"),
        (["topic", "create", "t", "-p", "0"], "0 is not in the range"),
        (["consume", "t", "--tail", "3", "--from", "end"], "--tail excludes --from"),
        (["consume", "t", "--until", "end", "--follow"], "exclude each other"),
        (["consume", "t", "-g", "g", "--tail", "3"], "--group excludes --until and --tail"),
        (["consume", "t", "--bootstrap", "nowhere"], "'nowhere' is not an address: the port is missing"),
        (["consume", "t", "--bootstrap", "127.0.0.1:1,::1:9092"], "an IPv6 host stands in brackets"),
        (["cluster", "status", "--http", "ftp://127.0.0.1:9080"], "it takes HOST:PORT or https://HOST:PORT"),
        (["doctor", "--bootstrap", "nowhere"], "the port is missing"),
        (["produce", "t", "--json-lines", "--whole"], "--json-lines excludes --whole"),
        (["produce", "t", "--keep-partitions"], "--keep-partitions needs --json-lines"),
        (["topic", "creat"], "there is no command 'creat'; did you mean create?"),
        (["xyzzy"], "known are serve, topic, produce"),
        (["produce", "t", "--compresion", "lz4"], "--compression"),
        (["bench", "produce", "--record-bytes", "1M"], "write 1MB for powers of 1000, 1MiB for 1024"),
        (["serve", "--write-dir", "/x", "--store-dir", "/x/y"], "store_dir is below /x"),
        (["serve", "--set", "storage.write_cash_bytes=1"], "did you mean storage.write_cache_bytes?"),
        (["serve", "--config", "/nowhere.toml"], "/nowhere.toml: cannot be read"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert part in capsys.readouterr().err
