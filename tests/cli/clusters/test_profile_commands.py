"""`mainstem profile`: what its commands write, what they leave alone, and that they tell no secret."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.documented import documented_keys, keys_of

from mainstem.cli.main import root, run

FILE = """\
# My clusters.
default = "home"   # at the desk

[profiles.home]  # the old one
bootstrap = "home:1"

[profiles."far away"]
bootstrap = "far:1"
[profiles."far away".ssl.ca]
location = "/ca.pem"

# The last one.
[profiles.work]
http = "work:2"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config" / "profiles.toml"
    monkeypatch.setenv("MAINSTEM_PROFILES", str(path))
    monkeypatch.chdir(tmp_path)
    return path


def written(file: Path, text: str = FILE) -> None:
    file.parent.mkdir()
    file.write_text(text)


def test_the_first_profile_makes_the_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "list"]) == 0
    assert "there are no profiles" in capsys.readouterr().out
    assert run(["profile", "add", "local", "--bootstrap", "127.0.0.1:9092", "--default"]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert tomllib.loads(file.read_text()) == {
        "default": "local",
        "profiles": {"local": {"bootstrap": "127.0.0.1:9092"}},
    }
    assert run(["profile", "list"]) == 0
    assert "local *" in capsys.readouterr().out


def test_what_clients_connect_with_comes_from_a_file_and_from_options(file: Path, tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text(
        "bootstrap.servers=node:9092\nsasl.username=alice\nssl.ca.location=ca.pem\ngroup.id=g\n"
    )
    assert run([
        "profile", "add", "a b", "--client-config", "client.properties", "--set", "sasl.username=bob",
        "--set", 'sasl.password=="\\ü', "--http", "node:9080", "--token", "t",
    ]) == 0  # fmt: skip
    assert tomllib.loads(file.read_text())["profiles"] == {
        "a b": {
            "bootstrap": "node:9092",
            "http": "node:9080",
            "token": "t",
            "sasl.username": "bob",
            "sasl.password": '="\\ü',
            "ssl.ca.location": str(tmp_path / "ca.pem"),
        }
    }


def test_all_else_in_the_file_stays(file: Path) -> None:
    written(file)
    assert run(["profile", "add", "new", "--bootstrap", "new:1"]) == 0
    assert file.read_text() == FILE + '\n[profiles.new]\nbootstrap = "new:1"\n'
    assert run(["profile", "remove", "new"]) == 0
    assert file.read_text().rstrip() == FILE.rstrip()
    assert run(["profile", "remove", "far away"]) == 0
    assert "far" not in file.read_text()
    assert "# My clusters." in file.read_text()
    assert run(["profile", "remove", "home"]) == 0  # with it goes the default
    assert tomllib.loads(file.read_text()) == {"profiles": {"work": {"http": "work:2"}}}
    assert run(["profile", "add", "work", "--http", "work:3", "--force", "--default"]) == 0
    assert tomllib.loads(file.read_text()) == {"default": "work", "profiles": {"work": {"http": "work:3"}}}


def test_a_file_that_is_written_otherwise_is_left_alone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'profiles = { home = { bootstrap = "home:1" } }\n'
    written(file, text)
    for arguments in (["add", "new", "--bootstrap", "new:1"], ["remove", "home"]):
        assert run(["profile", *arguments]) == 1
        assert "change it by hand" in capsys.readouterr().err
        assert file.read_text() == text


def test_secrets_are_not_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = {
        "sasl.password": "s-1", "ssl.key.password": "s-2", "ssl.key.pem": "s-3", "ssl.keystore.password": "s-4",
        "sasl.oauthbearer.client.secret": "s-5", "sasl.jaas.config": "s-6",
    }  # fmt: skip
    plain = {"ssl.key.location": "/p-1", "sasl.username": "p-2", "sasl.oauthbearer.token.endpoint.url": "http://p-3"}
    options = [part for key, value in (secrets | plain).items() for part in ("--set", f"{key}={value}")]
    assert run(["profile", "add", "work", "--bootstrap", "a:1", "--token", "s-7", *options]) == 0
    assert run(["profile", "show", "work"]) == 0
    assert run(["profile", "show", "work", "--json"]) == 0
    assert run(["profile", "list"]) == 0
    told = capsys.readouterr().out
    assert "s-" not in told
    assert all(value in told for value in plain.values())
    assert all(value in file.read_text() for value in secrets.values())


def test_a_password_is_asked_for(file: Path) -> None:
    arguments = ["profile", "add", "work", "--bootstrap", "a:1", "--ask-password"]
    done = CliRunner().invoke(root, arguments, input="typed\n")
    assert (done.exit_code, "typed" in done.output) == (0, False)
    assert tomllib.loads(file.read_text())["profiles"]["work"]["sasl.password"] == "typed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "home", "--bootstrap", "a:1"], "there is a profile 'home' in "),
        (["add", "new"], "a profile says something"),
        (["add", "new", "--bootstrap", "a:1", "--set", "acks=1"], "acks does not say how to connect"),
        (["show", "wrok"], "there is no profile 'wrok' in "),
        (["remove", "wrok"], "known are far away, home, work"),
    ],
)
def test_what_is_refused(file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    written(file)
    assert run(["profile", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert file.read_text() == FILE


def test_as_data(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, arguments in (
        ("profile add", ["work", "--bootstrap", "a:1", "--set", "sasl.username=a"]),
        ("profile list", []),
        ("profile show", ["work"]),
        ("profile remove", ["work"]),
    ):
        assert run([*name.split(), *arguments, "--json"]) == 0
        keys = documented_keys()[name]
        assert keys_of(json.loads(capsys.readouterr().out), keys) == keys
