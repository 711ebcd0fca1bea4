"""`mainstem dev cluster --secure`: what it prints and writes is enough for clients of every kind, and less is not."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.cli.clusters.test_dev_cluster import DEV_CLUSTER_PORTS, MAINSTEM, dev_cluster, lines_until
from tests.harness.free_port import free_ports
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import FIRST_MEMBER_WAITS_FOR_NOBODY, eventually


class Secured(NamedTuple):
    directory: Path
    port: int
    told: str

    @property
    def kafka(self) -> str:
        return f"127.0.0.1:{self.port + 1}"

    def properties(self) -> dict[str, str]:
        lines = (self.directory / "client.properties").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def run(self, *arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        """Our own command, as somebody who has done what the cluster told."""
        environment = {**os.environ, "MAINSTEM_PROFILES": str(self.directory / "profiles.toml"), **variables}
        environment["PYTHONFAULTHANDLER"] = "1"  # a command that a library ends by a signal shows where
        return subprocess.run(
            [*MAINSTEM, *arguments],
            input=stdin, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=environment,
        )  # fmt: skip

    def output(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    port = free_ports(DEV_CLUSTER_PORTS)
    with dev_cluster(directory, port, 2, "--secure", "--set", FIRST_MEMBER_WAITS_FOR_NOBODY) as cluster:
        yield Secured(directory, port, "\n".join(lines_until(cluster, r"kill -9")))


def test_our_own_commands_are_let_in_with_the_profile(secured: Secured) -> None:
    view = json.loads(secured.output("cluster", "status", "--json"))
    assert sorted(node["state"] for node in view["nodes"]) == ["alive", "alive"]  # they call each other over TLS
    secured.output("topic", "create", "ours", "--partitions", "4")
    secured.output("produce", "ours", stdin="".join(f"{number}\n" for number in range(100)))
    assert sorted(map(int, secured.output("consume", "ours").split())) == list(range(100))
    secured.output("consume", "ours", "--group", "g")
    assert '"lag": 0' in secured.output("group", "describe", "g", "--json")
    secured.output("bench", "produce", "--records", "100", "--progress")


def test_the_http_port_speaks_tls_and_asks_who_comes(secured: Secured, tmp_path: Path) -> None:
    address = f"127.0.0.1:{secured.port + 101}"
    context = ssl.create_default_context(cafile=secured.properties()["ssl.ca.location"])

    def status(path: str, user: str | None = None, password: str = "") -> int:
        with closing(HTTPSConnection(address, timeout=PATIENCE_SECONDS, context=context)) as visitor:
            shown = b64encode(f"{user}:{password}".encode()).decode()
            visitor.request("GET", path, headers={} if user is None else {"authorization": f"Basic {shown}"})
            return visitor.getresponse().status

    right = secured.properties()["sasl.password"]
    assert [status(path) for path in ("/healthz", "/readyz", "/v1/split/endpoint")] == [200, 200, 200]
    for path in ("/metrics", "/v1/cluster", "/v1/topics"):
        assert [status(path), status(path, "admin", "guessed"), status(path, "nobody", right)] == [401] * 3
        assert status(path, "admin", right) == 200
    secured.output("user", "add", "carol", "--password-file", "-", stdin="carols password\n")
    assert status("/v1/cluster", "carol", "carols password") == 403
    secured.output("acl", "add", "User:carol", "describe", "cluster")
    eventually(lambda: status("/v1/cluster", "carol", "carols password") == 200, what="a rule that every node knows")
    carols = tmp_path / "carol.properties"
    kept = [f"{key}={value}" for key, value in secured.properties().items() if not key.startswith("sasl.")]
    carols.write_text("\n".join([*kept, "sasl.username=carol", "sasl.password=carols password"]))
    http = ("--http", f"https://{address}", "--client-config", str(carols))
    assert '"alive"' in secured.output("cluster", "status", "--json", *http)
    refused = secured.run("tenant", "create", "acme", "--prefix", "acme-", *http)
    assert refused.returncode == 1
    assert "User:carol may not: it takes ALTER on the cluster" in refused.stderr
    secured.output("tenant", "create", "acme", "--prefix", "acme-")
    plain = secured.run("cluster", "status", "--http", address)
    assert plain.returncode == 1
    with socket.create_connection(("127.0.0.1", secured.port + 101), PATIENCE_SECONDS) as stranger:
        stranger.sendall(b"GET /v1/cluster HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"HTTP" not in stranger.recv(64)


def test_batches_are_exported_over_tls(secured: Secured, tmp_path: Path) -> None:
    secured.output("topic", "create", "exported")
    secured.output("produce", "exported", stdin="hello\n")
    secured.output("store", "export", "exported", "--to", str(tmp_path / "out"))
    (log,) = (tmp_path / "out" / "exported-0").glob("*.log")
    assert b"hello" in log.read_bytes()
    plain = str(secured.directory / "client.properties")  # the profile has SCRAM
    secured.output("store", "export", "exported", "--to", str(tmp_path / "again"), "--client-config", plain)
    lines = (secured.directory / "client.properties").read_text().splitlines()
    for left_out, more in (
        ("ssl.ca", []),
        ("sasl.password", ["sasl.password=another"]),
        ("sasl.mechanism", ["sasl.mechanism=SCRAM-SHA-256"]),
        ("sasl.mechanism", ["sasl.mechanism=OAUTHBEARER"]),
        ("sasl.username", []),
        ("security", ["security.protocol=SSL"]),
    ):
        less = tmp_path / "less.properties"
        less.write_text("\n".join([*(line for line in lines if left_out not in line), *more]))
        done = secured.run("store", "export", "exported", "--to", str(tmp_path / "less"), "--client-config", str(less))
        assert done.returncode in (1, 2)
        assert not (tmp_path / "less").exists()


def test_kcat_is_let_in_with_the_properties(secured: Secured) -> None:
    program = shutil.which("kcat")
    assert program is not None, "this test needs kcat: apt-get install kcat"
    kcat = [program, "-F", str(secured.directory / "client.properties")]
    assert f"kcat -F {secured.directory / 'client.properties'} -L" in secured.told
    secured.output("topic", "create", "kcats")
    for arguments, stdin in ((["-P", "-t", "kcats"], b"hello\n"), (["-C", "-t", "kcats", "-e", "-q"], b"")):
        done = subprocess.run(
            [*kcat, *arguments], input=stdin, capture_output=True, timeout=PATIENCE_SECONDS, check=True
        )
    assert done.stdout == b"hello\n"


def test_who_shows_less_is_not_let_in(secured: Secured, tmp_path: Path) -> None:
    lines = (secured.directory / "client.properties").read_text().splitlines()
    assert "security.protocol=SASL_SSL" in lines
    wrong = tmp_path / "wrong.properties"
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        kept = [line for line in lines if "sasl.password" not in line and "sasl.mechanism" not in line]
        wrong.write_text("\n".join([*kept, f"sasl.mechanism={mechanism}", "sasl.password=guessed"]))
        done = secured.run("topic", "list", "--client-config", str(wrong))
        assert done.returncode == 1
        assert "uthentication" in done.stderr
    trustful = tmp_path / "trustful.properties"
    trustful.write_text("\n".join(line for line in lines if "ssl.ca" not in line))
    assert "no TLS with the node" in secured.run("topic", "list", "--client-config", str(trustful)).stderr


def test_other_users_may_do_what_rules_allow(secured: Secured) -> None:
    """A user with a password is known by name, and allowed nothing that nobody granted."""
    secured.output("user", "add", "bob", "--password-file", "-", stdin="bobs password\n")
    secured.output("topic", "create", "secrets")
    lines = (secured.directory / "client.properties").read_text().splitlines()
    bobs = secured.directory / "bob.properties"
    kept = [line for line in lines if "sasl." not in line]
    bobs.write_text("\n".join([*kept, "sasl.mechanism=PLAIN", "sasl.username=bob", "sasl.password=bobs password"]))
    bobs.chmod(0o600)
    assert secured.output("topic", "list", "--client-config", str(bobs)).strip() in ("", "no topics")
    done = secured.run("produce", "secrets", "--client-config", str(bobs), stdin="x")
    assert done.returncode == 1
    assert "uthorization" in done.stderr
    assert "secrets" in secured.output("topic", "list")
    secured.output("produce", "secrets", stdin="told\n")
    secured.output("acl", "add", "User:bob", "read", "topic:secrets")
    assert secured.output("consume", "secrets", "--client-config", str(bobs)) == "told\n"  # it takes no group
    done = secured.run("consume", "secrets", "--group", "bobs", "--client-config", str(bobs))
    assert done.returncode == 1
    assert "GROUP_AUTHORIZATION_FAILED" in done.stderr
    done = secured.run("audit", "tail")
    assert done.returncode == 1
    assert "audit.enabled = true" in done.stderr


def test_nodes_let_in_no_stranger(secured: Secured) -> None:
    """Their own port speaks TLS alone."""
    with socket.create_connection(("127.0.0.1", secured.port + 201), PATIENCE_SECONDS) as stranger:
        stranger.sendall(b"\0" * 64)
        assert stranger.recv(64)[:1] in (b"", b"\x15")  # closed, or an alert of TLS


def test_secrets_are_for_their_owner_alone(secured: Secured) -> None:
    files = [file for file in secured.directory.iterdir() if file.is_file()]
    files += [file for file in (secured.directory / "certs").iterdir() if file.suffix == ".key"]
    assert len(files) >= 8
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert "PRIVATE KEY" not in secured.told
    password = (secured.directory / "admin-password").read_text().strip()
    assert f"sasl.password={password}" in secured.told
    for log in secured.directory.glob("node-*/log"):
        assert password not in log.read_text()
