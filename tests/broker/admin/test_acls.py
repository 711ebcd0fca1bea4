"""DescribeAcls, CreateAcls and DeleteAcls against the authorizer and a fake of the metadata."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.admin.admin_broker import AdminBroker, versions_of
from tests.fakes.access.acls import MemoryAcls

from mainstem.broker.handlers import create_acls, delete_acls, describe_acls
from mainstem.nameserver.errors import FeatureLevelTooLow, MetadataUnavailable, TooManyAcls
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from mainstem.security.acls.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceKind

RULE = Acl(ResourceKind.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
WRITE = RULE._replace(operation=Operation.WRITE)
PREFIX = RULE._replace(name="ord", pattern=PatternType.PREFIXED, permission=Permission.DENY)
VERSIONS = versions_of(CreateAclsRequest)


class Secured:
    """A broker with an authorizer."""

    def __init__(self, *acls: Acl) -> None:
        self.admin = AdminBroker()
        self.acls = MemoryAcls(*acls)
        self.admin.broker.authorizer = self.acls.authorizer()
        self.admin.broker.acl_admin = self.acls

    def create(self, *acls: Acl, version: int | None = None) -> list[tuple[int, str | None]]:
        request = CreateAclsRequest(creations=tuple(creation(*acl) for acl in acls))
        response = self.admin.ask(create_acls.handle, request, version)
        return [(it.error_code, it.error_message) for it in response.results]

    def describe(self, wanted: AclFilter, version: int | None = None) -> DescribeAclsResponse:
        request = DescribeAclsRequest(**filter_fields(*wanted))
        response: DescribeAclsResponse = self.admin.ask(describe_acls.handle, request, version)
        return response

    def delete(self, *filters: AclFilter, version: int | None = None) -> DeleteAclsResponse:
        request = DeleteAclsRequest(filters=tuple(DeleteAclsFilter(**filter_fields(*it)) for it in filters))
        response: DeleteAclsResponse = self.admin.ask(delete_acls.handle, request, version)
        return response


def creation(kind: int, name: str, pattern: int, principal: str, host: str, operation: int, allow: int) -> AclCreation:
    return AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=allow,
    )


def filter_fields(
    kind: int, name: str | None, pattern: int, principal: str | None, host: str | None, operation: int, allow: int
) -> dict[str, Any]:
    return {
        "resource_type_filter": kind,
        "resource_name_filter": name,
        "pattern_type_filter": pattern,
        "principal_filter": principal,
        "host_filter": host,
        "operation": operation,
        "permission_type": allow,
    }


def shown(response: DescribeAclsResponse) -> set[Acl]:
    assert response.error_code == ErrorCode.NONE
    return {
        Acl(
            ResourceKind(resource.resource_type), resource.resource_name, PatternType(resource.pattern_type),
            it.principal, it.host, Operation(it.operation), Permission(it.permission_type),
        )
        for resource in response.resources
        for it in resource.acls
    }  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_rules_come_and_go(version: int) -> None:
    secured = Secured()
    assert secured.create(RULE, WRITE, PREFIX, RULE, version=version) == [(ErrorCode.NONE, None)] * 4
    response = secured.describe(AclFilter(), version=version)
    assert shown(response) == {RULE, WRITE, PREFIX}
    assert len(response.resources) == 2, "rules of one pattern stand together"
    assert shown(secured.describe(AclFilter(name="orders", pattern=PatternType.MATCH), version=version)) == {
        RULE, WRITE, PREFIX,
    }  # fmt: skip
    deleted = secured.delete(AclFilter(*RULE), AclFilter(*RULE), AclFilter(ResourceKind.GROUP), version=version)
    found = [[(it.resource_name, it.operation, it.error_code) for it in one.matching_acls]
             for one in deleted.filter_results]  # fmt: skip
    assert found == [[("orders", Operation.READ, ErrorCode.NONE)], [], []]
    assert [one.error_code for one in deleted.filter_results] == [ErrorCode.NONE] * 3
    assert set(secured.acls.table) == {WRITE, PREFIX}


def test_rules_that_make_no_sense_are_refused_by_themselves() -> None:
    secured = Secured()
    answers = secured.create(RULE._replace(principal="alice"), RULE, RULE._replace(name=""))
    assert [code for code, _ in answers] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert "no colon" in (answers[0][1] or "")
    assert list(secured.acls.table) == [RULE]


def test_numbers_that_nobody_knows_are_refused() -> None:
    secured = Secured(RULE)
    request = CreateAclsRequest(creations=(creation(99, "orders", 3, "User:a", "*", 3, 3),))
    response = secured.admin.ask(create_acls.handle, request)
    assert [it.error_code for it in response.results] == [ErrorCode.INVALID_REQUEST]
    assert secured.describe(AclFilter(ResourceKind.UNKNOWN)).error_code == ErrorCode.INVALID_REQUEST
    unknown = DescribeAclsRequest(**filter_fields(1, None, 99, None, None, 1, 1))
    assert secured.admin.ask(describe_acls.handle, unknown).error_code == ErrorCode.INVALID_REQUEST
    (refused,) = secured.delete(AclFilter(operation=Operation.UNKNOWN)).filter_results
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert list(secured.acls.table) == [RULE]


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (FeatureLevelTooLow("takes level 5"), ErrorCode.UNSUPPORTED_VERSION),
        (MetadataUnavailable("no leader"), ErrorCode.NOT_CONTROLLER),
        (TooManyAcls("too many"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_the_metadata_refuses_is_told(refusal: Exception, code: ErrorCode) -> None:
    secured = Secured(RULE)
    secured.acls.refuse = refusal
    assert secured.create(WRITE, PREFIX) == [(code, str(refusal))] * 2
    (result,) = secured.delete(AclFilter()).filter_results
    assert (result.error_code, result.error_message, result.matching_acls) == (code, str(refusal), ())
    assert list(secured.acls.table) == [RULE]


def test_a_rule_that_cannot_be_removed_is_told_by_name() -> None:
    secured = Secured(RULE)
    secured.acls.refuse_changes = MetadataUnavailable("no leader")
    (result,) = secured.delete(AclFilter()).filter_results
    (matching,) = result.matching_acls
    assert (matching.error_code, matching.resource_name) == (ErrorCode.NOT_CONTROLLER, "orders")


def test_rules_that_this_node_has_not_heard_of_are_deleted() -> None:
    """Somebody added one through another node, and had the answer, before."""
    secured = Secured()
    secured.acls.not_heard.append(RULE)
    (result,) = secured.delete(AclFilter()).filter_results
    assert [it.principal for it in result.matching_acls] == ["User:alice"]
    assert not len(secured.acls.table)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_an_authorizer_all_is_refused(version: int) -> None:
    secured = Secured()
    secured.admin.broker.authorizer = None
    disabled = ErrorCode.SECURITY_DISABLED
    assert [code for code, _ in secured.create(RULE, WRITE, version=version)] == [disabled] * 2
    assert secured.describe(AclFilter(), version=version).error_code == disabled
    assert [it.error_code for it in secured.delete(AclFilter(), version=version).filter_results] == [disabled]
    assert not len(secured.acls.table)
