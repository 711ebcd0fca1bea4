"""ApiVersions: answers with the route list, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages import ApiDeclaration
from mainstem.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE_NAMED_FROM = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def handle(
    apis: Callable[[], Iterable[ApiDeclaration]], broker: Broker, request: ApiVersionsRequest, call: RequestContext
) -> ApiVersionsResponse:
    """`apis` are those that the node serves."""
    if call.version >= _SOFTWARE_NAMED_FROM:
        software = request.client_software_name, request.client_software_version
        if not all(_SOFTWARE.fullmatch(text) for text in software):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
    return served(ErrorCode.NONE, apis())


def served(error: ErrorCode, apis: Iterable[ApiDeclaration]) -> ApiVersionsResponse:
    """The list of served APIs, beside an error or none."""
    api_keys = tuple(
        ApiVersion(api_key=api.api_key, min_version=api.version_min, max_version=api.version_max) for api in apis
    )
    return ApiVersionsResponse(error_code=error, api_keys=api_keys)
