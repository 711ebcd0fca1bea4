"""From a URL to an object store, with all that stands between it and its callers.

    /mnt/shared/mainstem, file:///mnt/shared/mainstem    a directory
    s3://bucket/prefix                                   S3 and what speaks its protocol
    gs://bucket/prefix                                   Google Cloud Storage
    hdfs://namenode:8020/folder, hdfs://service/folder   HDFS

The libraries of the latter three are extras of the installation, loaded when they are needed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from mainstem.errors import ConfigError
from mainstem.model import HistogramSample, Sample
from mainstem.ports import ObjectStore
from mainstem.storage.object_stores.aws_profile import aws_profile
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.guards.breaker import Breaker
from mainstem.storage.object_stores.guards.in_flight import BoundedInFlight
from mainstem.storage.object_stores.guards.metered import Metered
from mainstem.storage.object_stores.guards.retries import Retrying
from mainstem.storage.object_stores.guards.wrapped import WrappedStore
from mainstem.storage.object_stores.local import LocalObjectStore
from mainstem.storage.object_stores.names import checked

if TYPE_CHECKING:
    from obstore.store import GCSStore, S3Store

KINDS = {"s3": ("s3", "obstore"), "gs": ("gcs", "obstore"), "hdfs": ("hdfs", "hdfs_native")}
"""Scheme → the extra that installs its library, and the library."""


class StoreUrl(NamedTuple):
    """`scheme`: of `KINDS`, or `file`. `host`: the bucket, or the name node with its port; empty for a directory."""

    scheme: str
    host: str
    path: str
    """The prefix in a bucket, without slashes at its ends; the absolute path of a folder of HDFS; the path of a
    directory."""

    def __str__(self) -> str:
        if self.scheme == "file":
            return self.path
        return f"{self.scheme}://{self.host}" + (f"/{self.path.strip('/')}" if self.path.strip("/") else "")

    def absolute(self) -> StoreUrl:
        """The same store for a process in another working directory."""
        return self._replace(path=str(Path(self.path).expanduser().absolute())) if self.scheme == "file" else self


def parsed_url(text: str) -> StoreUrl:
    """Raises `ConfigError` saying what is wrong with the URL and what it may be."""
    if "://" not in text:
        return StoreUrl("file", "", text)
    parts = urlsplit(text)
    known = ", ".join(f"{scheme}://" for scheme in KINDS)
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"{_without_secrets(text)}: an object store's URL is a scheme, a bucket and a prefix; credentials come "
            "from the store's usual environment, and options from object_store.options"
        )
    path = unquote(parts.path)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not path:
            raise ConfigError(f"{text}: takes a path of this machine, file:///mnt/shared/mainstem")
        return StoreUrl("file", "", path)
    if parts.scheme not in KINDS:
        raise ConfigError(f"{text}: there is no object store {parts.scheme}://; known are a path, {known}")
    if not parts.netloc:
        raise ConfigError(f"{text}: names no {'name node' if parts.scheme == 'hdfs' else 'bucket'}")
    prefix = path.strip("/")
    try:
        if prefix:
            checked(prefix)
    except ValueError as error:
        raise ConfigError(f"{text}: {error}; a prefix has letters, digits, and . _ = + - between slashes") from None
    if parts.scheme == "hdfs":
        if not prefix:
            raise ConfigError(f"{text}: takes a folder of HDFS, {parts.scheme}://{parts.netloc}/mainstem")
        return StoreUrl("hdfs", parts.netloc, f"/{prefix}")
    return StoreUrl(parts.scheme, parts.netloc, prefix)


def _without_secrets(text: str) -> str:
    """The URL as far as it may be shown."""
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{rest.partition('?')[0].partition('#')[0].rpartition('@')[2]}"


class GuardedStore(WrappedStore):
    """`ObjectStore` that retries, bounds, leaves alone what is down, and counts. From the caller inward: `Retrying`,
    `BoundedInFlight`, `Breaker`, `Metered`, the store itself."""

    def __init__(
        self,
        store: ObjectStore,
        config: ObjectStoreConfig,
        *,
        jitter: random.Random | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.metered = Metered(store, monotonic)
        self.breaker = Breaker(
            self.metered,
            failures_max=config.failures_max,
            probe_seconds=config.probe_seconds,
            probe_seconds_max=config.probe_seconds_max,
            monotonic=monotonic,
        )
        self.in_flight = BoundedInFlight(self.breaker, config.requests_in_flight_max, self.breaker.check)
        self.retrying = Retrying(
            self.in_flight,
            config.retry_seconds,
            jitter=jitter or random.Random(),
            monotonic=monotonic,
            sleep=sleep,
        )
        super().__init__(self.retrying)

    @property
    def fault(self) -> str:
        """Why the last request got no answer, or was refused; empty: it was answered, or there was none."""
        return self.breaker.fault

    def samples(self) -> Iterator[Sample | HistogramSample]:
        yield from self.metered.samples()
        yield from self.breaker.samples()
        yield from self.in_flight.samples()
        yield from self.retrying.samples()


def open_object_store(url: str, config: ObjectStoreConfig) -> GuardedStore:
    """The object store of a URL. Sends no request. Raises `ConfigError` for a URL or an option that cannot be used,
    and for a library that is not installed, naming what to install."""
    return GuardedStore(plain_store(parsed_url(url), config), config)


def plain_store(url: StoreUrl, config: ObjectStoreConfig) -> ObjectStore:
    """The store itself, without what guards it."""
    if url.scheme == "file":
        return LocalObjectStore(Path(url.path).expanduser())
    require_library(url)
    try:
        return _hdfs(url, config) if url.scheme == "hdfs" else _bucket(url, config)
    except ConfigError:
        raise
    except Exception as error:  # the libraries have their own, for options that they do not know
        raise ConfigError(f"{url} cannot be opened: {str(error).strip().splitlines()[0]}") from error


def require_library(url: StoreUrl, find: Callable[[str], object] = importlib.util.find_spec) -> None:
    """Raises `ConfigError` if `find` does not find the library of this kind of store."""
    extra, library = KINDS[url.scheme]
    if find(library) is None:
        raise ConfigError(f"{url} needs a library that is not installed: pip install 'mainstem[{extra}]'")


def _hdfs(url: StoreUrl, config: ObjectStoreConfig) -> ObjectStore:
    from mainstem.storage.object_stores.hdfs import HdfsObjectStore

    if config.endpoint:
        raise ConfigError("object_store.endpoint: HDFS takes none; the URL names the name node")
    return HdfsObjectStore(f"hdfs://{url.host}", url.path, config)


def _bucket(url: StoreUrl, config: ObjectStoreConfig) -> ObjectStore:
    from obstore.store import GCSStore, S3Store

    from mainstem.storage.object_stores.remote import RemoteObjectStore

    options: Any = dict(config.options)  # obstore checks the names
    if config.endpoint:
        options["endpoint" if url.scheme == "s3" else "base_url"] = config.endpoint

    profile = aws_profile(os.environ, options) if url.scheme == "s3" else None

    def make(client: dict[str, Any]) -> S3Store | GCSStore:
        kind: Any = S3Store if url.scheme == "s3" else GCSStore
        provider = {} if profile is None else {"credential_provider": profile}
        found: S3Store | GCSStore = kind(url.host, prefix=url.path or None, config=options, **client, **provider)
        return found

    return RemoteObjectStore(str(url), make, config)
