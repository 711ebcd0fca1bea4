"""UpdateFeatures: raises the cluster's feature level until it has the versions that are asked for (`features.py`). All
of a request's updates are made, or none. A version never goes down: older programs could not read what is written."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.features import FEATURES
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.update_features import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

TYPE_FROM = 1
"""The version from which on an update has a type; before, it says only whether it may go down."""


class _Invalid(Exception):
    """An update that cannot be made; says why."""


async def handle(broker: Broker, request: UpdateFeaturesRequest, call: RequestContext) -> UpdateFeaturesResponse:
    cluster = broker.cluster_admin
    if cluster is None:
        return UpdateFeaturesResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if len({update.feature for update in request.feature_updates}) < len(request.feature_updates):
        return _refused(ErrorCode.INVALID_REQUEST, "the request names a feature more than once")
    level = cluster.feature_level
    wanted = level
    for update in request.feature_updates:
        try:
            wanted = max(wanted, _level_for(update, level, call.version))
        except _Invalid as fault:
            name, version = update.feature[:64], update.max_version_level
            return _refused(ErrorCode.INVALID_UPDATE_VERSION, f"feature {name!r}, version {version}: {fault}")
    if wanted > level:
        try:
            await cluster.raise_feature_level(wanted, validate_only=request.validate_only)
        except MainstemError as refusal:
            error = error_of_refusal(refusal)
            return _refused(
                ErrorCode.FEATURE_UPDATE_FAILED if error == ErrorCode.UNKNOWN_SERVER_ERROR else error, str(refusal)
            )
    return UpdateFeaturesResponse(
        error_code=ErrorCode.NONE,
        results=tuple(
            UpdatableFeatureResult(feature=update.feature, error_code=ErrorCode.NONE, error_message=None)
            for update in request.feature_updates
        ),
    )


def _refused(error: ErrorCode, message: str) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=error, error_message=message)


def _level_for(update: FeatureUpdateKey, level: int, version: int) -> int:
    """The level that an update takes, in a cluster of that level. Raises `_Invalid`."""
    feature = FEATURES.get(update.feature)
    if feature is None:
        raise _Invalid(f"this cluster does not know the feature; it has {', '.join(FEATURES)}")
    asked, present = update.max_version_level, feature.at(level)
    kind = update.upgrade_type
    if version < TYPE_FROM:
        kind = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _Invalid(f"there is no type of update {kind}")
    if asked == present:
        return level
    if not feature.oldest <= asked <= feature.newest:
        raise _Invalid(f"this node has versions {feature.oldest} to {feature.newest}")
    if asked < present:
        raise _Invalid(f"the cluster is at version {present}, and goes to no older one")
    if kind != UPGRADE:
        raise _Invalid(f"the cluster is at version {present}: this is no downgrade")
    needed = feature.level_of(asked)
    if needed is None:
        raise _Invalid(f"the cluster goes from version {present} to {feature.newest} at once")
    return needed
