"""ApiVersions: which APIs and versions the node speaks; the first request of most connections."""

from __future__ import annotations

from mainstem.protocol.schema import array, boolean, int16, int32, int64, message, nested, string, wire


@message(api_key=18, versions="0-4", flexible="3+")
class ApiVersionsRequest:
    client_software_name: str = wire(string, "3+", default="", ignorable=True)
    client_software_version: str = wire(string, "3+", default="", ignorable=True)


@nested
class ApiVersion:
    api_key: int = wire(int16)
    min_version: int = wire(int16)
    max_version: int = wire(int16)


@nested
class SupportedFeatureKey:
    name: str = wire(string, "3+")
    min_version: int = wire(int16, "3+")
    max_version: int = wire(int16, "3+")


@nested
class FinalizedFeatureKey:
    name: str = wire(string, "3+")
    max_version_level: int = wire(int16, "3+")
    min_version_level: int = wire(int16, "3+")


@message(api_key=18, versions="0-4", flexible="3+")
class ApiVersionsResponse:
    error_code: int = wire(int16)
    api_keys: tuple[ApiVersion, ...] = wire(array(ApiVersion))
    throttle_time_ms: int = wire(int32, "1+", default=0, ignorable=True)
    supported_features: tuple[SupportedFeatureKey, ...] = wire(
        array(SupportedFeatureKey), "3+", tag=0, default=(), ignorable=True
    )
    finalized_features_epoch: int = wire(int64, "3+", tag=1, default=-1, ignorable=True)
    finalized_features: tuple[FinalizedFeatureKey, ...] = wire(
        array(FinalizedFeatureKey), "3+", tag=2, default=(), ignorable=True
    )
    zk_migration_ready: bool = wire(boolean, "3+", tag=3, default=False, ignorable=True)
