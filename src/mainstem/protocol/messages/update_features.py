"""UpdateFeatures: raise the versions of features that the cluster has agreed on (KIP-584, KIP-778)."""

from __future__ import annotations

from mainstem.protocol.schema import array, boolean, int8, int16, int32, message, nested, string, wire

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
"""Types of changes."""


@nested
class FeatureUpdateKey:
    feature: str = wire(string)
    max_version_level: int = wire(int16)
    allow_downgrade: bool = wire(boolean, "0", default=False)
    upgrade_type: int = wire(int8, "1+", default=UPGRADE)


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    timeout_ms: int = wire(int32, default=60_000)
    feature_updates: tuple[FeatureUpdateKey, ...] = wire(array(FeatureUpdateKey))
    validate_only: bool = wire(boolean, "1+", default=False)


@nested
class UpdatableFeatureResult:
    feature: str = wire(string)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+")


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    results: tuple[UpdatableFeatureResult, ...] = wire(array(UpdatableFeatureResult), "0-1", default=(), ignorable=True)
