"""ApiVersions: answers with the route list, and with the features of the cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from mainstem.broker.broker import Broker
from mainstem.broker.features import FEATURES
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages import ApiDeclaration
from mainstem.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE_NAMED_FROM = 3
SOFTWARE_LENGTH_MAX = 128
"""Characters that are kept of the name and the version of a client's library."""
FEATURES_FROM_0 = 4
"""Clients of older versions fail at features whose versions begin with 0, which are left out for them, as in Kafka."""
PRODUCE = 0
ADVERTISED_FROM = {PRODUCE: 0}
"""The list begins here, as Kafka's does, though older versions than the declared ones are not served: librdkafka 2.4
and others compress nothing with gzip, snappy or lz4 unless version 0 of Produce is listed, and tell nobody. Clients
take the newest version that they know, which all of them know from 3 on."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def handle(
    apis: Callable[[], Iterable[ApiDeclaration]], broker: Broker, request: ApiVersionsRequest, call: RequestContext
) -> ApiVersionsResponse:
    """`apis` are those that the node serves."""
    if call.version >= _SOFTWARE_NAMED_FROM:
        software = request.client_software_name, request.client_software_version
        if not all(_SOFTWARE.fullmatch(text) for text in software):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
        call.session.software_name, call.session.software_version = (text[:SOFTWARE_LENGTH_MAX] for text in software)
    return with_features(served(ErrorCode.NONE, apis()), broker, call.version)


def served(error: ErrorCode, apis: Iterable[ApiDeclaration]) -> ApiVersionsResponse:
    """The list of served APIs, beside an error or none."""
    api_keys = tuple(
        ApiVersion(
            api_key=api.api_key,
            min_version=ADVERTISED_FROM.get(api.api_key, api.version_min),
            max_version=api.version_max,
        )
        for api in apis
    )
    return ApiVersionsResponse(error_code=error, api_keys=api_keys)


def with_features(response: ApiVersionsResponse, broker: Broker, version: int) -> ApiVersionsResponse:
    """The response, with the features that there are and those that the cluster has agreed on."""
    if broker.cluster_admin is None:
        return response
    level = broker.cluster_admin.feature_level
    return replace(
        response,
        supported_features=tuple(
            SupportedFeatureKey(name=feature.name, min_version=feature.oldest, max_version=feature.newest)
            for feature in FEATURES.values()
            if feature.oldest > 0 or version >= FEATURES_FROM_0
        ),
        finalized_features_epoch=broker.cluster_admin.version,
        finalized_features=tuple(
            FinalizedFeatureKey(name=feature.name, min_version_level=at, max_version_level=at)
            for feature in FEATURES.values()
            if (at := feature.at(level)) > 0
        ),
    )
