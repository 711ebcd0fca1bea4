"""`mainstem top`: how looks are put together, and how the command ends."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.cli.fake_node import serving
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

from mainstem.cli.clients.every_node import reached_at
from mainstem.cli.errors import NodeUnreachable
from mainstem.cli.main import run
from mainstem.cli.top.lags import ConsumerGroupLag
from mainstem.cli.top.look import Figures, Looks, figures_of
from mainstem.cli.top.screen import print_look
from mainstem.console.views.of_cluster import ClusterView, DiskView, NodeView, WriteGroupView


def metrics(received: int, *, requests: int = 0) -> tuple[int, bytes]:
    text = (
        "# HELP mainstem_server_received_bytes_total bytes from clients\n"
        f"mainstem_server_received_bytes_total {received}\n"
        f"mainstem_server_request_frames_total {requests}\n"
        "mainstem_server_connections 3\n"
        'mainstem_split_lag_bytes{group="0"} 1000\n'
        'mainstem_split_lag_bytes{group="1"} 24\n'
        "mainstem_journal_bytes 6.7108864e+07\n"
    )
    return 200, text.encode()


def test_figures_are_summed_over_labels() -> None:
    figures = figures_of(metrics(5, requests=7)[1].decode())
    assert figures == Figures(received_bytes=5, requests=7, connections=3, unsplit_bytes=1024, journal_bytes=1 << 26)


def view(*nodes: NodeView) -> tuple[int, bytes]:
    cluster = ClusterView(
        cluster_id="J5p4kC1mQ0uYk3n2bqzX9A",
        nodes=nodes,
        write_groups=[WriteGroupView(group=0, leader=2, term=3, committed=41),
                      WriteGroupView(group=1, leader=-1, term=3, committed=41)],
        write_disk=DiskView(path="/w", used_bytes=1, free_bytes=2, total_bytes=3),
        store_disk=None,
        topics=1,
        partitions=2,
    )  # fmt: skip
    return 200, msgspec.json.encode(cluster)


@pytest.mark.parametrize(
    ("told", "reached"),
    [("0.0.0.0:9080", "node-2.example:9080"), ("[::]:9080", "node-2.example:9080"), ("10.0.0.2:9080", "10.0.0.2:9080")],
)
def test_a_node_that_listens_everywhere_is_asked_where_its_clients_go(told: str, reached: str) -> None:
    assert reached_at(NodeView(node_id=2, host="node-2.example", port=9092), told) == reached


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def answers() -> dict[str, tuple[int, bytes]]:
    return {"/metrics": metrics(1000, requests=10)}


@pytest.fixture
def address(answers: dict[str, tuple[int, bytes]]) -> Iterator[str]:
    with serving(answers) as found:
        dead = NodeView(node_id=1, host="127.0.0.1", port=1, http="127.0.0.1:1", state="dead", reason="silent")
        deaf = NodeView(node_id=3, host="127.0.0.1", port=3, http=None)
        answers["/v1/cluster"] = view(deaf, NodeView(node_id=2, host="127.0.0.1", port=2, http=found), dead)
        yield found


def lags(bootstrap: str, groups: Sequence[str]) -> tuple[list[ConsumerGroupLag], int]:
    return [
        ConsumerGroupLag("a", "empty", 3),
        ConsumerGroupLag("b", "stable", None),
        ConsumerGroupLag("c", "stable", 70),
    ], 2


def test_rates_are_differences_of_two_looks(answers: dict[str, tuple[int, bytes]], address: str) -> None:
    clock = Clock()
    looks = Looks(address, "unused:1", (), monotonic=clock, lags=lags)
    looks.begin()
    clock.now += 4
    answers["/metrics"] = metrics(5000, requests=30)
    look = looks.next()
    first, second, third = look.nodes
    assert (second.received_bytes_per_second, second.requests_per_second, second.connections) == (
        1000.0,
        5.0,
        3,
    )
    assert (second.unsplit_bytes, second.journal_bytes, second.store_bytes, second.leads) == (
        1024,
        1 << 26,
        None,
        1,
    )
    assert (first.state, first.received_bytes_per_second) == ("dead", None)
    assert (third.state, third.connections) == ("silent", None)
    assert (look.write_groups, look.write_groups_led) == (2, 1)
    assert [(group.group, group.lag) for group in look.groups] == [("c", 70), ("a", 3), ("b", None)]
    clock.now += 1
    answers["/metrics"] = metrics(10)
    assert looks.next().nodes[1].received_bytes_per_second is None, "the node was started again"


def test_of_a_shared_store_its_bytes_stand_for_those_of_a_disk(
    answers: dict[str, tuple[int, bytes]], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, url, size in (
        (b"mainstem_queue_store_bytes 7\n", None, 7),
        (b"mainstem_queue_store_bytes 0\nmainstem_shared_store_bytes 4096\n", "s3://bucket/x", 4096),
    ):
        cluster = msgspec.json.decode(answers["/v1/cluster"][1], type=ClusterView)
        answers["/v1/cluster"] = 200, msgspec.json.encode(msgspec.structs.replace(cluster, shared_store=url))
        answers["/metrics"] = 200, metrics(1000)[1] + text
        looks = Looks(address, "unused:1", (), lags=lags)
        looks.begin()
        look = looks.next()
        assert (look.nodes[1].store_bytes, look.shared_store) == (size, url)
        print_look(look)
        shown = capsys.readouterr().out
        assert ("DISK 2" in shown, "s3://bucket/x" in shown) == (url is None, url is not None)


def test_what_does_not_answer_is_told_and_ends_nothing(answers: dict[str, tuple[int, bytes]], address: str) -> None:
    def unreachable(bootstrap: str, groups: Sequence[str]) -> tuple[list[ConsumerGroupLag], int]:
        raise NodeUnreachable(f"no node at {bootstrap}")

    looks = Looks(address, "gone:1", (), lags=unreachable)
    looks.begin()
    answers["/v1/cluster"] = (503, b'{"error": "too many requests at once"}')
    look = looks.next()
    assert look.troubles == [f"{address}: too many requests at once", "no node at gone:1"]
    assert look.write_disk is None
    assert [node.node_id for node in look.nodes] == [1, 2, 3]


def test_a_look_fits_80_columns(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    looks = Looks(address, "unused:1", (), lags=lags)
    looks.begin()
    print_look(looks.next())
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "NODE  STATE" in text
    assert "and 2 more consumer groups; --group shows the ones you name" in text
    assert "1 of 2 write groups led" in text


def test_a_node_that_is_not_there_fails_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--once", "--http", "127.0.0.1:1"]) == 1
    assert "Give another address with --http" in capsys.readouterr().err


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("node"), "pipeline.mode=off")
    serving.start()
    yield serving
    serving.close()


def command(node: Serving, *arguments: str) -> list[str]:
    words = [*arguments, "--bootstrap", node.kafka, "--http", node.http]
    return [sys.executable, "-m", "mainstem.cli.main", *words]


ENVIRONMENT = {
    "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
    "TERM": "xterm",
    "PATH": os.environ["PATH"],
}


def test_a_real_node_tells_its_figures_and_the_lag_of_groups(node: Serving) -> None:
    def done(*arguments: str, stdin: bytes = b"") -> bytes:
        return subprocess.run(
            command(node, *arguments), input=stdin, env=ENVIRONMENT, timeout=PATIENCE_SECONDS, check=True,
            stdout=subprocess.PIPE,
        ).stdout  # fmt: skip

    done("topic", "create", "watched", "--partitions", "2")
    done("produce", "watched", "-p", "0", stdin=b"x\n" * 100)
    done("produce", "watched", "-p", "1", stdin=b"x\n" * 10)
    done("consume", "watched", "-g", "watchers", "-n", "5", "--batch-size", "5")
    look = json.loads(done("top", "--once", "--json", "--interval", "100ms"))
    assert look["groups"] == [{"group": "watchers", "state": "empty", "lag": 105}]
    (told,) = look["nodes"]
    assert (told["node_id"], told["state"], told["leads"]) == (1, "alive", look["write_groups"])
    assert told["unsplit_bytes"] > 0
    assert told["journal_bytes"] > 0
    assert told["requests_per_second"] is not None
    assert json.loads(done("top", "--once", "--json", "-g", "nobody", "--interval", "100ms"))["groups"] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_as_done(node: Serving, number: signal.Signals) -> None:
    watching = subprocess.Popen(
        command(node, "top", "--json", "--interval", "100ms"), env=ENVIRONMENT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert watching.stdout is not None
        for _ in range(2):
            assert json.loads(watching.stdout.readline())["cluster_id"]
        watching.send_signal(number)
        rest, error = watching.communicate(timeout=PATIENCE_SECONDS)
        assert (watching.returncode, error) == (0, b"")
        for line in rest.splitlines():
            assert json.loads(line)
    finally:
        watching.kill()


def test_a_terminal_gets_its_screen_back(node: Serving) -> None:
    ours, its = pty.openpty()
    watching = subprocess.Popen(
        command(node, "top", "--interval", "100ms"), env=ENVIRONMENT, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    ready = select.poll()  # takes any number of a descriptor, which `select.select` does not
    ready.register(ours, select.POLLIN)
    seen = b""
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while b"UNSPLIT" not in seen:
            assert time.monotonic() < deadline, seen
            if ready.poll(100):
                seen += os.read(ours, 65536)
        watching.send_signal(signal.SIGINT)
        while time.monotonic() < deadline:
            if ready.poll(100):
                try:
                    seen += os.read(ours, 65536)
                except OSError:  # the other end is closed
                    break
        assert watching.wait(PATIENCE_SECONDS) == 0
    finally:
        watching.kill()
        os.close(ours)
    assert seen.index(b"\x1b[?1049h") < seen.rindex(b"\x1b[?1049l"), "the alternate screen is left"
    assert seen.rindex(b"\x1b[?25l") < seen.rindex(b"\x1b[?25h"), "the cursor is back"
    assert b"Traceback" not in seen
