"""From URLs to stores: what is taken, what is refused and with which words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainstem.errors import ConfigError
from mainstem.ports import ObjectRange
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import ObjectStoreUnavailable
from mainstem.storage.object_stores.urls import KINDS, StoreUrl, open_object_store, parsed_url, require_library

CONFIG = ObjectStoreConfig(retry_seconds=0.001, failures_max=1000)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("/mnt/shared", StoreUrl("file", "", "/mnt/shared")),
        ("data/store", StoreUrl("file", "", "data/store")),
        ("file:///mnt/a%20b", StoreUrl("file", "", "/mnt/a b")),
        ("s3://bucket", StoreUrl("s3", "bucket", "")),
        ("s3://bucket/", StoreUrl("s3", "bucket", "")),
        ("s3://bucket/a/b/", StoreUrl("s3", "bucket", "a/b")),
        ("gs://bucket/a", StoreUrl("gs", "bucket", "a")),
        ("hdfs://namenode:8020/a/b", StoreUrl("hdfs", "namenode:8020", "/a/b")),
    ],
)
def test_urls_are_taken_apart(text: str, url: StoreUrl) -> None:
    assert parsed_url(text) == url
    assert parsed_url(str(url)) == url


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ftp://host/a", "no object store ftp://; known are a path, s3://, gs://, hdfs://"),
        ("s3:///a", "names no bucket"),
        ("hdfs:///a", "names no name node"),
        ("hdfs://namenode", "takes a folder of HDFS, hdfs://namenode/mainstem"),
        ("s3://bucket/a//b", "a prefix has letters"),
        ("s3://bucket/a b", "a prefix has letters"),
        ("file://elsewhere/a", "a path of this machine"),
        ("s3://bucket/a?region=eu", "options from object_store.options"),
    ],
)
def test_what_is_no_url_of_a_store_is_refused_with_what_is(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        parsed_url(text)


def test_credentials_in_a_url_are_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="the store's usual environment") as refused:
        parsed_url("s3://key:secret@bucket/a?token=alsosecret")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("scheme", KINDS)
def test_a_library_that_is_missing_is_named_with_the_extra_that_brings_it(scheme: str) -> None:
    url = parsed_url(f"{scheme}://host/a")
    require_library(url)
    with pytest.raises(ConfigError, match=rf"pip install 'mainstem\[{KINDS[scheme][0]}\]'"):
        require_library(url, lambda library: None)


def test_an_option_that_the_store_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"s3://bucket/a cannot be opened: .*no_such_option"):
        open_object_store("s3://bucket/a", ObjectStoreConfig(options={"no_such_option": "1"}))


def test_encryption_on_the_server_is_passed_on() -> None:
    options = {"server_side_encryption": "aws:kms", "sse_kms_key_id": "arn:aws:kms:key", "region": "eu-central-1"}
    open_object_store("s3://bucket/a", ObjectStoreConfig(options=options))


def test_a_directory_that_is_not_there_is_no_empty_store(tmp_path: Path) -> None:
    async def story() -> None:
        store = open_object_store(str(tmp_path / "not-mounted"), CONFIG)
        for ask in (
            lambda: store.info("a"),
            lambda: store.read("a", [ObjectRange(0, 1)]),
            lambda: store.write("a", b""),
            lambda: store.page_for_upkeep("a"),
            lambda: store.delete(["a"]),
        ):
            with pytest.raises(ObjectStoreUnavailable, match="if it is to be mounted, mount it"):
                await ask()

    asyncio.run(story())
    assert not (tmp_path / "not-mounted").exists()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"retry_seconds": 0}, "must be more than 0 seconds"),
        ({"part_bytes": 1 << 20}, "S3 takes no smaller parts"),
        ({"probe_seconds_max": 0.5}, "must be at least"),
        ({"parts_in_flight": 0}, "must be at least 1"),
        ({"endpoint": "localhost:9000"}, "must be a URL"),
    ],
)
def test_settings_that_cannot_work_are_refused(setting: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ObjectStoreConfig(**setting).validate()  # type: ignore[arg-type]
