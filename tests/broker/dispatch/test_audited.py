"""The audit of a request changes nothing of its answer, whatever the audit makes of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.broker.harness import call
from tests.fakes.clock import FakeClock

from mainstem.broker.dispatch.audited import NAMED_MAX, audited
from mainstem.protocol.messages.topics import CreatableTopicResult, CreateTopicsResponse
from mainstem.security.audit.audit_log import AuditLog
from mainstem.security.audit.config import AuditConfig

CREATE_TOPICS = 19, "CreateTopics"
VERSION = 5


def answered(response: Any) -> tuple[Any, list[dict[str, Any]], AuditLog]:
    """The result of a request that a handler answers so; the records about it, and their log."""
    log = AuditLog(AuditConfig(), FakeClock())

    async def handle() -> Any:
        if isinstance(response, Exception):
            raise response
        return response

    try:
        came: Any = asyncio.run(audited(handle, log, CREATE_TOPICS, call(VERSION), lambda: None))
    except ConnectionError as error:
        came = error
    return came, [json.loads(record.content) for record in log.take()], log


def created(name: str, error_code: int = 0) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error_code)


def test_each_resource_has_a_record_with_its_outcome() -> None:
    response = CreateTopicsResponse(topics=(created("a"), created("b", 36)))
    came, records, _ = answered(response)
    assert came is response
    assert [(record["resource"], record["outcome"]) for record in records] == [
        ("topic:a", "allowed"),
        ("topic:b", "TOPIC_ALREADY_EXISTS"),
    ]


def test_of_very_many_resources_the_rest_is_a_number() -> None:
    _, records, _ = answered(
        CreateTopicsResponse(topics=tuple(created(f"t{number}") for number in range(NAMED_MAX + 7)))
    )
    assert len(records) == NAMED_MAX + 1
    assert records[-1]["resource"] == "and 7 more"


def test_a_request_that_fails_fails_as_ever_and_has_a_record() -> None:
    error = ConnectionError("gone")
    came, (record,), _ = answered(error)
    assert came is error
    assert record["outcome"] == "ConnectionError"


def test_a_response_that_the_audit_cannot_read_is_sent_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    response = CreateTopicsResponse(topics=(None,))  # type: ignore[arg-type]
    came, records, log = answered(response)
    assert came is response
    assert records == []
    assert log.dropped == 1
    assert "CreateTopics has no audit record" in caplog.text
