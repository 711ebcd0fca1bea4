"""Configuration: precedence of the sources, and errors that name the place to correct."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem.errors import ConfigError
from mainstem.model import Durability
from mainstem.node.config import NodeConfig
from mainstem.node.config_sources import load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(
        'node_id = 3\nwrite_dir = "/from/file"\nlisten = "127.0.0.1:1"\n'
        "[storage]\nwrite_cache_bytes = 1\ncheckpoint_bytes = 8192\n"
        '[nameserver.topic_defaults]\n"retention.ms" = "1"\n"retention.bytes" = "7"\n'
    )
    return path


def loaded(**sources: object) -> NodeConfig:
    arguments = {"environment": {}, "flags": {}} | sources
    return load(**arguments)  # type: ignore[arg-type]


def test_defaults_are_valid_and_match_the_documented_ports() -> None:
    config = loaded()
    assert (config.listen, config.http, config.rpc) == (
        ("127.0.0.1:9092",),
        "127.0.0.1:9080",
        "127.0.0.1:9093",
    )


def test_each_source_overrides_the_one_before_it(file: Path) -> None:
    environment = {"MAINSTEM_STORAGE__WRITE_CACHE_BYTES": "2", "MAINSTEM_WRITE_DIR": "/from/variable"}
    flags = {"write_dir": "/from/flag", "listen": None}
    assert loaded(file=file).storage.write_cache_bytes == 1
    assert loaded(file=file, environment=environment).storage.write_cache_bytes == 2
    assert loaded(file=file, environment=environment).write_dir == "/from/variable"
    assert loaded(file=file, environment=environment, flags=flags).write_dir == "/from/flag"
    last = loaded(file=file, environment=environment, flags=flags, assignments=["write_dir=/from/set"])
    assert last.write_dir == "/from/set"
    assert last.storage.checkpoint_bytes == 8192


def test_what_the_node_decides_reaches_the_rooms(file: Path) -> None:
    config = loaded(file=file, flags={"listen": "127.0.0.1:2,127.0.0.2:3"})
    assert config.server.listen == config.listen == ("127.0.0.1:2", "127.0.0.2:3")
    assert config.nameserver.node_id == config.node_id == 3


def test_keys_of_tables_merge_over_the_sources(file: Path) -> None:
    config = loaded(file=file, assignments=["nameserver.topic_defaults.retention.ms=5"])
    assert config.nameserver.topic_defaults == {"retention.ms": "5", "retention.bytes": "7"}


def test_text_is_read_as_the_type_of_its_field() -> None:
    config = loaded(
        environment={"MAINSTEM_NAMESERVER__TOPIC_DEFAULTS": '{"retention.ms": "9"}'},
        assignments=["journal.durability=async", "server.advertise=null", "storage.disk_check_seconds=0.5"],
    )
    assert config.journal.durability is Durability.ASYNC
    assert loaded(assignments=["storage.write_cache_bytes=256MB"]).storage.write_cache_bytes == 256_000_000
    assert config.server.advertise is None
    assert config.storage.disk_check_seconds == 0.5
    assert config.nameserver.topic_defaults == {"retention.ms": "9"}


def test_default_file_is_read_from_the_working_directory(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert loaded().node_id == 1
    file.rename(tmp_path / "mainstem.toml")
    assert loaded().node_id == 3


def test_variable_names_the_file(file: Path) -> None:
    assert loaded(environment={"MAINSTEM_CONFIG": str(file)}).node_id == 3


def test_variables_that_kubernetes_sets_for_a_service_called_mainstem_are_ignored() -> None:
    environment = {
        "MAINSTEM_SERVICE_HOST": "10.0.0.1",
        "MAINSTEM_SERVICE_PORT_HTTP": "9080",
        "MAINSTEM_PORT": "tcp://10.0.0.1:9092",
        "MAINSTEM_PORT_9092_TCP_ADDR": "10.0.0.1",
    }
    assert loaded(environment=environment) == loaded()


def test_variables_of_the_command_line_are_not_settings() -> None:
    names = (
        "MAINSTEM_BOOTSTRAP", "MAINSTEM_HTTP", "MAINSTEM_TOKEN", "MAINSTEM_PROFILE", "MAINSTEM_PROFILES",
        "MAINSTEM_CLIENT_CONFIG",
    )  # fmt: skip
    assert loaded(environment=dict.fromkeys(names, "x")) == loaded()


@pytest.mark.parametrize(
    ("sources", "parts"),
    [
        ({"environment": {"MAINSTEM_LISTN": "x"}}, ["MAINSTEM_LISTN", "unknown key listn", "mean listen?"]),
        (
            {"environment": {"MAINSTEM_STORAGE__WRITE_CASH_BYTES": "1"}},
            ["MAINSTEM_STORAGE__WRITE_CASH_BYTES", "did you mean storage.write_cache_bytes?"],
        ),
        ({"environment": {"MAINSTEM_STORAGE": "1"}}, ["MAINSTEM_STORAGE", "is a section", "storage."]),
        (
            {"assignments": ["storage.write_cache_bytes=12x"]},
            ["--set storage.write_cache_bytes", "'12x'", "a number of bytes"],
        ),
        ({"assignments": ["journal.durability=maybe"]}, ["--set journal.durability", "one of sync, async"]),
        ({"assignments": ["write_cache_bytes=1"]}, ["did you mean storage.write_cache_bytes?"]),
        ({"assignments": ["node_id"]}, ["--set node_id", "key=value"]),
        ({"assignments": ["node_id.x=1"]}, ["node_id is a value and has no keys"]),
        ({"assignments": ["storage.write_cache_bytes.x=1"]}, ["storage.write_cache_bytes is a value"]),
        ({"assignments": ["server.listen=127.0.0.1:1"]}, ["server.listen", "key listen"]),
        (
            {"assignments": ["storage.write_cache_bytes=-1"]},
            ["storage.write_cache_bytes = -1", "0 or more", "set by --set storage.write_cache_bytes"],
        ),
        ({"assignments": ["server.backlog=0"]}, ["server", "backlog = 0", "--set server.backlog"]),
        ({"flags": {"listen": "127.0.0.1:70000"}}, ["127.0.0.1:70000", "--listen"]),
        ({"flags": {"http": "nowhere"}}, ["http = 'nowhere'", "HOST:PORT", "--http"]),
        ({"flags": {"roles": "brokr"}}, ["roles = 'brokr'", "broker, storage, nameserver", "--roles"]),
        ({"flags": {"roles": ""}}, ["roles is empty"]),
        ({"assignments": ["rack=" + "r" * 201]}, ["rack has 201 characters"]),
        ({"flags": {"roles": "broker"}}, ["roles = broker", "a node alone has all roles"]),
        (
            {"flags": {"roles": "broker,storage"}, "assignments": ['nameserver.peers={"1": "h:1", "2": "h:2"}']},
            ["roles = broker, storage", "nameserver.peers names node 1", "--roles"],
        ),
        ({"flags": {"write_dir": ""}}, ["write_dir is empty", "--write-dir"]),
        (
            {"flags": {"write_dir": "/m", "store_dir": "/m/"}},
            [
                "write_dir = '/m' and store_dir = '/m/' are the same directory",
                "/m/write and /m/store",
                "--write-dir",
            ],
        ),
        ({"flags": {"write_dir": "/m", "store_dir": "/m/x/../y"}}, ["store_dir is below /m", "--store-dir"]),
        ({"flags": {"write_dir": "/m/w/x", "store_dir": "file:///m"}}, ["write_dir is below /m", "/m/write"]),
        (
            {"flags": {"store_dir": "/m/s", "remote_dir": "/m/s/r"}},
            ["remote_dir is below /m/s", "which all nodes have mounted", "--remote-dir"],
        ),
        (
            {"flags": {"write_dir": "/m/w"}, "assignments": ["remote_dir=file:///m/w"]},
            ["write_dir = '/m/w' and remote_dir = 'file:///m/w' are the same directory"],
        ),
        ({"assignments": ["remote_dir=ftp://host/x"]}, ["remote_dir = ftp://host/x", "known are a path, s3://"]),
        (
            {"assignments": ["remote_dir=s3://user:secret@bucket"]},
            ["remote_dir = s3://bucket", "the store's usual environment"],
        ),
        (
            {"flags": {"store_dir": "ftp://host/x"}},
            ["store_dir = ftp://host/x", "known are a path, s3://", "--store-dir"],
        ),
        ({"flags": {"store_dir": "s3://"}}, ["store_dir = s3://", "names no bucket"]),
        (
            {"flags": {"store_dir": "s3://user:secret@bucket/x"}},
            ["store_dir = s3://bucket/x", "the store's usual environment"],
        ),
        (
            {"flags": {"store_dir": "s3://bucket/x"}, "assignments": ["remote_dir=s3://bucket/y"]},
            [
                "remote_dir = 's3://bucket/y' and store_dir = 's3://bucket/x'",
                "Leave remote_dir out",
                "--store-dir",
                "--set remote_dir",
            ],
        ),
        (
            {"flags": {"write_dir": "/m/w", "store_dir": "/m"}, "assignments": ["shared_store=true"]},
            ["are not apart: write_dir is below /m"],
        ),
        ({"assignments": ["nameserver.topic_defaults.retention.mz=5"]}, ["retention.mz"]),
    ],
)
def test_errors_say_where_what_and_what_is_allowed(sources: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(**sources)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"node_id = ", ["not valid TOML"]),
        (b"\xff", ["not valid TOML"]),
        (b'node_id = "1"', ["node_id = '1'", "a whole number"]),
        (b"[storag]\nx = 1", ["unknown key storag", "did you mean storage?"]),
        (b"storage = 1", ["this is a section, written [storage]"]),
        (b"[storage]\ncheckpoint_byte = 1", ["did you mean storage.checkpoint_bytes?"]),
        (b"[storage]\nwrite_cache_bytes = '256M'", ["storage.write_cache_bytes", "256MB for powers of 1000"]),
        (b"[storage]\nwrite_cache_bytes = true", ["storage.write_cache_bytes = True", "a whole number"]),
    ],
)
def test_errors_in_a_file_name_it(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    path = tmp_path / "wrong.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        loaded(file=path)
    for part in [str(path), *parts]:
        assert part in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        loaded(file=tmp_path / "nowhere.toml")


@pytest.mark.parametrize("location", ["", "/mnt/remote", "s3://bucket/prefix", "gs://bucket", "hdfs://name:8020/x"])
def test_the_remote_tier_has_a_directory_or_a_url(location: str) -> None:
    config = loaded(assignments=[f"remote_dir={location}"])
    assert config.remote_dir == config.nameserver.remote_dir == location


@pytest.mark.parametrize(
    ("sources", "shared", "objects_url", "told"),
    [
        ({"store_dir": "/m/s"}, False, "", ""),
        ({"store_dir": "file:///m/s", "remote_dir": "s3://b/x"}, False, "s3://b/x", ""),
        ({"store_dir": "s3://b/x/"}, True, "s3://b/x/", "s3://b/x"),
        ({"store_dir": "hdfs://name:8020/x", "shared_store": "true"}, True, "hdfs://name:8020/x", "hdfs://name:8020/x"),
        ({"store_dir": "/m/s", "shared_store": "true"}, True, "/m/s", "a shared directory"),
        ({"store_dir": "s3://b/x", "remote_dir": "s3://b/x/"}, True, "s3://b/x", "s3://b/x"),
    ],
)
def test_a_store_is_shared_that_is_an_object_store_or_is_said_to_be(
    sources: dict[str, str], shared: bool, objects_url: str, told: str
) -> None:
    config = loaded(flags=sources)
    assert (config.shares_store, config.objects_url, config.store_told) == (shared, objects_url, told)
