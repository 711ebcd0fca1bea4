"""`mainstem cert`: what its commands print, refuse and leave behind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.documented import documented_keys, keys_of

from mainstem.certificate_files.revocations import read_lists
from mainstem.cli.main import run


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_from_authority_to_renewal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cert", "authority", "--name", "orders"]) == 0
    assert run(["cert", "create", "--node", "1", "--host", "node-1.example", "--host", "10.0.0.1"]) == 0
    assert run(["cert", "create", "--splitter"]) == 0
    assert run(["cert", "create", "--user", "alice", "--days", "20"]) == 0
    assert "user-alice.pem, with its key in certs/user-alice.key: valid until 2" in capsys.readouterr().out
    assert sorted(file.name for file in Path("certs").iterdir()) == sorted(
        f"{name}.{kind}"
        for name in ("nodes-ca", "users-ca", "node-1", "splitter", "user-alice")
        for kind in ("pem", "key")
    )
    assert run(["cert", "show", "certs/node-1.pem", "certs/user-alice.pem"]) == 0
    told = capsys.readouterr().out
    for part in ("CN=mainstem-node-1", "node-1.example", "10.0.0.1", "CN=orders nodes", "CN=alice"):
        assert part in told
    assert re.search(r"in (19|20) days", told), "a second may have passed"
    before = {name: Path(f"certs/{name}.pem").read_bytes() for name in ("node-1", "user-alice")}
    assert run(["cert", "renew", "--within", "30", "certs/node-1.pem", "certs/user-alice.pem"]) == 0
    assert "node-1" not in capsys.readouterr().out
    assert Path("certs/node-1.pem").read_bytes() == before["node-1"]
    assert Path("certs/user-alice.pem").read_bytes() != before["user-alice"]


def test_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    for name, arguments in (
        ("cert authority", []),
        ("cert create", ["--user", "alice"]),
        ("cert renew", ["certs/user-alice.pem"]),
        ("cert revoke", ["certs/user-alice.pem"]),
        ("cert show", ["certs/user-alice.pem", "certs/users-ca.pem"]),
    ):
        assert run([*name.split(), *arguments, "--json"]) == 0
        keys = documented_keys()[name]
        assert keys_of(json.loads(capsys.readouterr().out), keys) == keys


def test_what_is_revoked_is_in_the_list_of_its_authority(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cert", "authority"]) == 0
    for name in ("alice", "bob"):
        assert run(["cert", "create", "--user", name]) == 0
    assert run(["cert", "create", "--node", "1", "--host", "node-1"]) == 0
    assert run(["cert", "revoke", "--dir", "certs"]) == 0
    assert [len(read_lists(f"certs/{kind}.crl").serials) for kind in ("nodes", "users")] == [0, 0]
    for _ in range(2):  # the second time it is in the list already
        assert run(["cert", "revoke", "certs/user-alice.pem", "certs/user-bob.pem"]) == 0
        assert "users.crl: 2 revoked" in capsys.readouterr().out
    assert run(["cert", "revoke", "--dir", "certs", "--days", "3"]) == 0
    users, nodes = read_lists("certs/users.crl"), read_lists("certs/nodes.crl")
    assert {issuer for issuer, _ in users.serials} == {"CN=mainstem users"}
    assert (len(users.serials), len(nodes.serials)) == (2, 0)
    assert run(["cert", "revoke", "certs/users-ca.pem"]) == 1
    assert "is an authority" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["revoke"], "name the certificates, or with --dir"),
        (["create"], "give one of --node, --splitter and --user"),
        (["create", "--user", "a", "--splitter"], "give one of --node, --splitter and --user"),
        (["create", "--user", "a", "--host", "b"], "--host goes with --node"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert run(["cert", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cert", "create", "--user", "alice"]) == 1
    assert capsys.readouterr().err == (
        "mainstem: certs/users-ca.pem: there is no authority yet; `mainstem cert authority` makes one\n"
    )
    assert run(["cert", "authority"]) == 0
    assert run(["cert", "authority"]) == 1
    assert "nodes-ca.pem is there already and would be lost; --force replaces it" in capsys.readouterr().err
    assert run(["cert", "authority", "--force"]) == 0


def test_show_fails_where_one_has_expired(capsys: pytest.CaptureFixture[str]) -> None:
    from datetime import UTC, datetime, timedelta

    from mainstem.security.certificates import holders
    from mainstem.security.certificates.certificate_directory import CertificateDirectory

    certs = CertificateDirectory(Path("certs"))
    then = datetime.now(UTC) - timedelta(days=10)
    certs.make_authorities("test", then)
    old = certs.create(holders.user("alice"), then, timedelta(days=5))
    assert run(["cert", "show", str(certs.authority_file(holders.AuthorityKind.USERS)), str(old.certificate)]) == 1
    assert "it has expired" in capsys.readouterr().out
    assert run(["cert", "renew", str(old.certificate)]) == 0
    assert run(["cert", "show", str(old.certificate)]) == 0
