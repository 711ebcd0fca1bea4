"""Access control lists.

DescribeAcls: the rules that a filter selects, by resource pattern.
CreateAcls: add rules.
DeleteAcls: remove the rules that filters select; the answer names them.
"""

from __future__ import annotations

from mainstem.protocol.schema import array, int8, int16, int32, message, nested, string, wire

LITERAL_PATTERN = 3


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest:
    resource_type_filter: int = wire(int8)
    resource_name_filter: str | None = wire(string, nullable="0+")
    pattern_type_filter: int = wire(int8, "1+", default=LITERAL_PATTERN)
    principal_filter: str | None = wire(string, nullable="0+")
    host_filter: str | None = wire(string, nullable="0+")
    operation: int = wire(int8)
    permission_type: int = wire(int8)


@nested
class AclDescription:
    principal: str = wire(string)
    host: str = wire(string)
    operation: int = wire(int8)
    permission_type: int = wire(int8)


@nested
class DescribeAclsResource:
    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    pattern_type: int = wire(int8, "1+", default=LITERAL_PATTERN)
    acls: tuple[AclDescription, ...] = wire(array(AclDescription))


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    resources: tuple[DescribeAclsResource, ...] = wire(array(DescribeAclsResource))


@nested
class AclCreation:
    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    resource_pattern_type: int = wire(int8, "1+", default=LITERAL_PATTERN)
    principal: str = wire(string)
    host: str = wire(string)
    operation: int = wire(int8)
    permission_type: int = wire(int8)


@message(api_key=30, versions="1-3", flexible="2+", elements_max=100_000)
class CreateAclsRequest:
    creations: tuple[AclCreation, ...] = wire(array(AclCreation))


@nested
class AclCreationResult:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    results: tuple[AclCreationResult, ...] = wire(array(AclCreationResult))


@nested
class DeleteAclsFilter:
    resource_type_filter: int = wire(int8)
    resource_name_filter: str | None = wire(string, nullable="0+")
    pattern_type_filter: int = wire(int8, "1+", default=LITERAL_PATTERN)
    principal_filter: str | None = wire(string, nullable="0+")
    host_filter: str | None = wire(string, nullable="0+")
    operation: int = wire(int8)
    permission_type: int = wire(int8)


@message(api_key=31, versions="1-3", flexible="2+", elements_max=1_000)
class DeleteAclsRequest:
    filters: tuple[DeleteAclsFilter, ...] = wire(array(DeleteAclsFilter))


@nested
class DeleteAclsMatchingAcl:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    resource_type: int = wire(int8)
    resource_name: str = wire(string)
    pattern_type: int = wire(int8, "1+", default=LITERAL_PATTERN)
    principal: str = wire(string)
    host: str = wire(string)
    operation: int = wire(int8)
    permission_type: int = wire(int8)


@nested
class DeleteAclsFilterResult:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = wire(array(DeleteAclsMatchingAcl))


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    filter_results: tuple[DeleteAclsFilterResult, ...] = wire(array(DeleteAclsFilterResult))
