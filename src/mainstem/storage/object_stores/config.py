"""Configuration of object stores: how they are reached, and how much is asked of one that is slow or down.

Credentials are no part of it. Each kind of store finds them where its other tools do: `AWS_*` variables, web
identities, profiles with keys and instance roles for S3; `GOOGLE_APPLICATION_CREDENTIALS`, the default credentials of
gcloud and instance accounts for GCS; `HADOOP_CONF_DIR` and Kerberos's ticket cache for HDFS.
"""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError

MEBIBYTE = 1 << 20


class ObjectStoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in bytes, times in seconds."""

    endpoint: str = ""
    """URL of the store's API, for stores that are not at their maker's; empty: the usual one."""
    options: dict[str, str] = {}
    """Passed on to the store as they are, under the names that obstore gives them, or those of hdfs-site.xml for HDFS:
    encryption on the server, region, payer…"""
    request_timeout_seconds: float = 30.0
    """A request is given up when it has taken this long: a part of `part_bytes` at 4 Mbit/s."""
    connect_timeout_seconds: float = 5.0
    """A store that does not accept a connection for so long is unreachable."""
    retry_seconds: float = 60.0
    """A call is tried again for so long, its first attempt included."""
    requests_in_flight_max: int = 64
    """Requests under way at once, halved when the store asks for fewer: 20 ms and 1 MiB each make 3 GiB/s."""
    part_bytes: int = 16 * MEBIBYTE
    """Size of the parts of large objects: 10,000 parts, which is all that S3 takes, are 160 GiB."""
    parts_in_flight: int = 4
    """Parts of one object that are uploaded at once: they lie in memory."""
    failures_max: int = 5
    """After so many outages in a row the store counts as down and is left alone, but for a probe from time to time."""
    probe_seconds: float = 1.0
    """The first probe of a store that is down comes after this long; each failed one doubles the time…"""
    probe_seconds_max: float = 30.0
    """…up to this."""

    def validate(self) -> None:
        """Raises `ConfigError` naming the key, the value and what is allowed."""
        for key in ("request_timeout_seconds", "connect_timeout_seconds", "retry_seconds", "probe_seconds"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"object_store.{key} = {getattr(self, key)}: must be more than 0 seconds")
        if self.probe_seconds_max < self.probe_seconds:
            raise ConfigError(
                f"object_store.probe_seconds_max = {self.probe_seconds_max}: must be at least "
                f"object_store.probe_seconds = {self.probe_seconds}"
            )
        for key in ("requests_in_flight_max", "parts_in_flight", "failures_max"):
            if getattr(self, key) < 1:
                raise ConfigError(f"object_store.{key} = {getattr(self, key)}: must be at least 1")
        if not 5 * MEBIBYTE <= self.part_bytes <= 512 * MEBIBYTE:
            raise ConfigError(
                f"object_store.part_bytes = {self.part_bytes}: must be {5 * MEBIBYTE} (S3 takes no smaller parts) to "
                f"{512 * MEBIBYTE} bytes"
            )
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"object_store.endpoint = {self.endpoint!r}: must be a URL, http://… or https://…")
