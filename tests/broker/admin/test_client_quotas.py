"""DescribeClientQuotas and AlterClientQuotas against a fake of the metadata."""

from __future__ import annotations

import pytest
from tests.broker.admin.admin_broker import AdminBroker, versions_of
from tests.fakes.access.quotas import MemoryQuotas

from mainstem.broker.handlers import alter_client_quotas, describe_client_quotas
from mainstem.nameserver.errors import FeatureLevelTooLow, MetadataUnavailable
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.quotas import (
    MATCH_ANY,
    MATCH_DEFAULT,
    MATCH_EXACT,
    AlterClientQuotasRequest,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaEntityPart,
    QuotaFilterComponent,
    QuotaOperation,
)
from mainstem.security.quotas.quota import CLIENT_ID, CONSUMER_BYTE_RATE, IP, PRODUCER_BYTE_RATE, USER, Entity

ALICE: Entity = ((USER, "alice"),)
ALICE_X: Entity = ((CLIENT_ID, "x"), (USER, "alice"))
USERS: Entity = ((USER, None),)
VERSIONS = versions_of(AlterClientQuotasRequest)


def alteration(entity: Entity, *ops: QuotaOperation, **values: float) -> AlteredQuotas:
    return AlteredQuotas(
        entity=tuple(QuotaEntityPart(entity_type=kind, entity_name=name) for kind, name in entity),
        ops=ops or tuple(QuotaOperation(key=key, value=value, remove=False) for key, value in values.items()),
    )


class Limited:
    def __init__(self) -> None:
        self.admin = AdminBroker()
        self.kept = MemoryQuotas()
        self.admin.broker.quota_admin = self.kept

    def alter(
        self, *entries: AlteredQuotas, version: int | None = None, validate_only: bool = False
    ) -> list[tuple[int, str | None]]:
        request = AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
        response = self.admin.ask(alter_client_quotas.handle, request, version)
        assert [it.entity for it in response.entries] == [it.entity for it in entries]
        return [(it.error_code, it.error_message) for it in response.entries]

    def describe(
        self, *components: tuple[str, int, str | None], strict: bool = False, version: int | None = None
    ) -> DescribeClientQuotasResponse:
        wanted = tuple(
            QuotaFilterComponent(entity_type=kind, match_type=how, match=name) for kind, how, name in components
        )
        request = DescribeClientQuotasRequest(components=wanted, strict=strict)
        response: DescribeClientQuotasResponse = self.admin.ask(describe_client_quotas.handle, request, version)
        return response

    def found(self, *components: tuple[str, int, str | None], strict: bool = False) -> list[Entity]:
        response = self.describe(*components, strict=strict)
        assert response.error_code == ErrorCode.NONE
        assert response.entries is not None
        return [tuple((part.entity_type, part.entity_name) for part in it.entity) for it in response.entries]


@pytest.fixture
def limited() -> Limited:
    return Limited()


@pytest.mark.parametrize("version", VERSIONS)
def test_quotas_are_set_described_and_removed(limited: Limited, version: int) -> None:
    both = alteration(ALICE, producer_byte_rate=1024.0, request_percentage=2.5)
    assert limited.alter(both, version=version) == [(0, None)]
    (entry,) = limited.describe(version=version).entries or ()
    assert {it.key: it.value for it in entry.values} == {"producer_byte_rate": 1024.0, "request_percentage": 2.5}
    removal = QuotaOperation(key=PRODUCER_BYTE_RATE, value=0.0, remove=True)
    assert limited.alter(alteration(ALICE, removal), version=version) == [(0, None)]
    assert dict(limited.kept.table) == {ALICE: {"request_percentage": 2.5}}


def test_filters_select_as_in_kafka(limited: Limited) -> None:
    entities: list[Entity] = [ALICE, ALICE_X, USERS, ((CLIENT_ID, "x"),), ((IP, None),)]
    for entity in entities[:-1]:
        limited.kept.table.change(entity, {CONSUMER_BYTE_RATE: 1.0})
    limited.kept.table.change(entities[-1], {"connection_creation_rate": 1.0})
    assert limited.found() == entities
    assert limited.found((USER, MATCH_EXACT, "alice")) == [ALICE, ALICE_X]
    assert limited.found((USER, MATCH_EXACT, "alice"), strict=True) == [ALICE]
    assert limited.found((USER, MATCH_DEFAULT, None)) == [USERS]
    assert limited.found((USER, MATCH_ANY, None), strict=True) == [ALICE, USERS]
    assert limited.found((USER, MATCH_ANY, None), (CLIENT_ID, MATCH_EXACT, "x")) == [ALICE_X]
    assert limited.found((IP, MATCH_ANY, None)) == [((IP, None),)]
    assert limited.found(strict=True) == []


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([("group", MATCH_ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([(USER, MATCH_ANY, None)] * 2, ErrorCode.INVALID_REQUEST),
        ([(USER, MATCH_ANY, None), (IP, MATCH_ANY, None)], ErrorCode.INVALID_REQUEST),
        ([(USER, 3, None)], ErrorCode.INVALID_REQUEST),
        ([(USER, MATCH_EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([(USER, MATCH_ANY, "alice")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_filters_that_make_no_sense_are_refused(
    limited: Limited, components: list[tuple[str, int, str | None]], error: ErrorCode
) -> None:
    response = limited.describe(*components)
    assert (response.error_code, response.entries) == (error, None)
    assert response.error_message


def test_what_is_wrong_with_one_entity_leaves_the_others_alone(limited: Limited) -> None:
    answers = limited.alter(
        alteration(ALICE, producer_byte_rate=1.0, speed=1.0),
        alteration(USERS, producer_byte_rate=-1.0),
        alteration(((IP, "nowhere"),), connection_creation_rate=1.0),
        alteration(ALICE_X, producer_byte_rate=1.0),
        alteration(((CLIENT_ID, "y"),), consumer_byte_rate=1.0),
        alteration(((CLIENT_ID, "y"),), consumer_byte_rate=2.0),
        alteration(((CLIENT_ID, "z"),), *[QuotaOperation(key=PRODUCER_BYTE_RATE, value=1.0, remove=False)] * 2),
    )
    bad = ErrorCode.INVALID_REQUEST
    assert [code for code, _ in answers] == [bad, bad, bad, 0, bad, bad, bad]
    assert all(bool(message) == (code != 0) for code, message in answers)
    assert [entity for entity, _ in limited.kept.table] == [ALICE_X]


def test_a_change_can_be_tried_first(limited: Limited) -> None:
    tried = limited.alter(alteration(ALICE, producer_byte_rate=1.0), alteration(USERS, speed=1.0), validate_only=True)
    assert [code for code, _ in tried] == [0, ErrorCode.INVALID_REQUEST]
    assert not len(limited.kept.table)


def test_refusals_of_the_metadata_reach_the_client(limited: Limited) -> None:
    limited.kept.refuse = FeatureLevelTooLow("raise the level")
    change = alteration(ALICE, producer_byte_rate=1.0)
    assert limited.alter(change) == [(ErrorCode.UNSUPPORTED_VERSION, "raise the level")]
    limited.kept.refuse = MetadataUnavailable("nobody leads")
    assert limited.alter(change) == [(ErrorCode.NOT_CONTROLLER, "nobody leads")]
    response = limited.describe()
    assert (response.error_code, response.error_message) == (ErrorCode.NOT_CONTROLLER, "nobody leads")
    limited.admin.broker.quota_admin = None
    assert limited.alter(change) == [(ErrorCode.UNKNOWN_SERVER_ERROR, "this node keeps no quotas")]
    assert limited.describe().entries == ()
