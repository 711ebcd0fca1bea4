"""ApiVersions: answers with the route list, and nothing else."""

from __future__ import annotations

import re

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE_NAMED_FROM = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def handle(broker: Broker, request: ApiVersionsRequest, call: RequestContext) -> ApiVersionsResponse:
    if call.version >= _SOFTWARE_NAMED_FROM:
        software = request.client_software_name, request.client_software_version
        if not all(_SOFTWARE.fullmatch(text) for text in software):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
    return served(ErrorCode.NONE)


def served(error: ErrorCode) -> ApiVersionsResponse:
    """The list of served APIs, beside an error or none."""
    from mainstem.broker.routes import ROUTES  # which lists this handler

    api_keys = tuple(
        ApiVersion(api_key=api.api_key, min_version=api.version_min, max_version=api.version_max)
        for api in (route.api for route in ROUTES)
    )
    return ApiVersionsResponse(error_code=error, api_keys=api_keys)
