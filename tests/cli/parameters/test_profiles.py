"""Named clusters: which address wins, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from mainstem.cli.clients.client_settings import settings_of
from mainstem.cli.errors import SettingsUnusable
from mainstem.cli.lazy_group import LazyGroup
from mainstem.cli.parameters import options
from mainstem.cli.parameters.profiles import root_option

FILE = """
default = "home"

[profiles.home]
bootstrap = "home:1"
http = "home:2"

[profiles.work]
bootstrap = "work:1, [::1]:3"
http = "work:2"
token = "secret"

[profiles.half]
bootstrap = "half:1"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MAINSTEM_BOOTSTRAP", "MAINSTEM_HTTP", "MAINSTEM_TOKEN", "MAINSTEM_PROFILE", "MAINSTEM_CLIENT_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "profiles.toml"
    path.write_text(FILE)
    monkeypatch.setenv("MAINSTEM_PROFILES", str(path))
    return path


Told = Callable[..., tuple[str | None, ...]]


@pytest.fixture
def told(file: Path) -> Told:
    """The addresses and the token that a command gets to know."""

    @click.command()
    @options.both
    @options.token
    def both(bootstrap: str, http: str, token: str | None) -> tuple[str | None, ...]:
        return bootstrap, http, token

    @click.command()
    @options.kafka_only
    def kafka(bootstrap: str) -> tuple[str | None, ...]:
        return (bootstrap,)

    @click.command()
    @options.both_if_named(bootstrap_help="", http_help="")
    def doctor(bootstrap: str | None, http: str | None) -> tuple[str | None, ...]:
        return bootstrap, http

    group = click.Group(commands={"both": both, "kafka": kafka, "doctor": doctor})
    root_option(group)

    def run(*arguments: str) -> Any:
        return group.main(arguments, standalone_mode=False)

    return run


def test_the_default_is_used_where_nothing_is_named(told: Told) -> None:
    assert told("both") == ("home:1", "home:2", None)
    assert told("doctor") == (None, None)


def test_a_profile_is_named_before_or_behind_the_command(told: Told) -> None:
    work = ("work:1,[::1]:3", "work:2", "secret")
    assert told("both", "--profile", "work") == work
    assert told("--profile", "work", "both") == work
    assert told("--profile", "home", "both", "--profile", "work") == work
    assert told("doctor", "--profile", "work") == work[:2]


def test_the_nearer_word_wins(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSTEM_BOOTSTRAP", "variable:1")
    monkeypatch.setenv("MAINSTEM_TOKEN", "of the variable")
    assert told("both") == ("variable:1", "home:2", "of the variable")
    assert told("both", "--profile", "work") == ("work:1,[::1]:3", "work:2", "secret")
    assert told("both", "--profile", "work", "--bootstrap", "option:1")[0] == "option:1"
    monkeypatch.setenv("MAINSTEM_PROFILE", "work")
    assert told("both") == ("variable:1", "work:2", "of the variable")
    assert told("both", "--profile", "home")[:2] == ("home:1", "home:2")


def test_a_profile_without_the_address_asks_no_other_node(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSTEM_HTTP", "elsewhere:2")
    assert told("kafka", "--profile", "half") == ("half:1",)
    with pytest.raises(click.UsageError, match=r"profile half has no http: add it to \[profiles.half\]"):
        told("both", "--profile", "half")
    assert told("both", "--profile", "half", "--http", "option:2")[1] == "option:2"


def test_without_a_file_the_built_in_defaults_count(told: Told, file: Path) -> None:
    file.unlink()
    assert told("both") == (options.DEFAULT_BOOTSTRAP, options.DEFAULT_HTTP, None)
    with pytest.raises(click.BadParameter, match="cannot be read: No such file"):
        told("both", "--profile", "work")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("default =", "not valid TOML"),
        ("defualt = 'a'", "unknown key defualt; expected default and"),
        ("profiles = 3", r"sections \[profiles.NAME\]"),
        ("[profiles]\nwork = 'x'", "profiles.work is not a section"),
        (
            "[profiles.work]\nbootsrap = 'x:1'",
            "unknown key profiles.work.bootsrap; expected bootstrap, http, token",
        ),
        ("[profiles.work]\nhttp = 9080", "profiles.work.http = 9080: expected text"),
        (
            "[profiles.work]\nhttp = 'work'\nbootstrap = 'work:1'",
            "'work' is not an address: the port is missing",
        ),
        ("[profiles.word]\nhttp = 'a:1'", "there is no profile 'work' in .*; did you mean word?"),
        ("[profiles.b]\n[profiles.a]", "known are a, b"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(told: Told, file: Path, content: str, part: str) -> None:
    file.write_text(content)
    with pytest.raises(click.UsageError, match=part):
        told("both", "--profile", "work")


SECURE = """
[profiles.secure]
bootstrap = "secure:1"
security.protocol = "SASL_SSL"
"sasl.username" = "alice"
sasl.password = "secret"

[profiles.filed]
http = "filed:2"
client_config = "%s"
"sasl.username" = "carol"
"""


@pytest.fixture
def connected(told: Told, file: Path, tmp_path: Path) -> Callable[..., tuple[str, Any]]:
    """The address and the settings that a command connects with; `client.properties` lies in `tmp_path`."""
    properties = tmp_path / "client.properties"
    properties.write_text(
        "# of bob\n\nbootstrap.servers=filed:1\nsecurity.protocol = SSL\nsasl.username=bob\n"
        "sasl.password=a=b#c\ngroup.id=g\nacks=1\n"
    )
    file.write_text(FILE + SECURE % properties)

    @click.command()
    @options.kafka_only
    def kafka(bootstrap: str) -> tuple[str, Any]:
        return bootstrap, dict(settings_of(bootstrap))

    def run(*arguments: str) -> Any:
        return kafka.main(arguments, standalone_mode=False)

    return run


def test_a_profile_says_what_clients_connect_with(connected: Callable[..., tuple[str, Any]]) -> None:
    alice = {"security.protocol": "SASL_SSL", "sasl.username": "alice", "sasl.password": "secret"}
    assert connected("--profile", "secure") == ("secure:1", alice)
    assert connected("--profile", "secure", "--bootstrap", "option:1") == ("option:1", alice)
    assert connected("--profile", "half") == ("half:1", {})


def test_a_file_says_it_instead(
    connected: Callable[..., tuple[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what the file says, connections alone; nothing of a profile is mixed with it."""
    monkeypatch.setenv("MAINSTEM_BOOTSTRAP", "variable:1")
    file = str(tmp_path / "client.properties")
    bob = {"security.protocol": "SSL", "sasl.username": "bob", "sasl.password": "a=b#c"}
    assert connected("--client-config", file) == ("filed:1", bob)
    assert connected("--client-config", file, "--profile", "secure") == ("filed:1", bob)
    assert connected("--profile", "secure", "--client-config", file, "--bootstrap", "option:1") == ("option:1", bob)
    monkeypatch.setenv("MAINSTEM_CLIENT_CONFIG", file)
    assert connected() == ("filed:1", bob)


def test_a_profile_names_a_file(connected: Callable[..., tuple[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    carol = {"security.protocol": "SSL", "sasl.username": "carol", "sasl.password": "a=b#c"}
    assert connected("--profile", "filed") == ("filed:1", carol)
    assert connected("--profile", "filed", "--bootstrap", "option:1") == ("option:1", carol)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"security.protocol=SSL\nsecret of mine\n", "line 2 is not KEY=VALUE$"),
        (b"=x", "line 1 is not KEY=VALUE$"),
        (b"\xff", "not UTF-8$"),
        (b"#" * (2 << 20), "more than"),
    ],
)
def test_what_is_wrong_in_a_file_of_settings_is_named(
    connected: Callable[..., tuple[str, Any]], tmp_path: Path, content: bytes, part: str
) -> None:
    (tmp_path / "client.properties").write_bytes(content)
    with pytest.raises(SettingsUnusable, match=f"client.properties: {part}"):
        connected("--client-config", str(tmp_path / "client.properties"))


def test_a_secret_that_is_wrong_is_not_told(connected: Callable[..., tuple[str, Any]], file: Path) -> None:
    file.write_text("[profiles.secure]\n'sasl.password' = 20251123")
    with pytest.raises(click.UsageError, match="expected text") as raised:
        connected("--profile", "secure")
    assert "2025" not in str(raised.value)


def test_help_needs_no_profile(told: Told, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("broken")
    exit_code: object = told("both", "--help")
    assert exit_code == 0
    assert "--profile" in capsys.readouterr().out


def test_every_command_that_takes_addresses_takes_a_profile() -> None:
    from mainstem.cli.main import root

    def walk(command: click.Command) -> None:
        if isinstance(command, LazyGroup):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner)
            return
        taken = {option for parameter in command.params for option in parameter.opts}
        # `serve` has a --http of its own: the one to listen on.
        assert not {"--bootstrap", "--http"} <= taken or "--profile" in taken, command.name

    walk(root)
