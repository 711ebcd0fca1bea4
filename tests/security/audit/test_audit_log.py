"""Audit records: what is kept, what is counted alone, and that both are bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.fakes.clock import FakeClock

from mainstem.errors import ConfigError
from mainstem.security.acls.acl import CLUSTER_NAME, Operation, ResourceKind
from mainstem.security.acls.authorizer import Decision
from mainstem.security.audit import audit_log
from mainstem.security.audit.audit_log import AuditEvent, AuditLog
from mainstem.security.audit.config import ADMIN, AUTHENTICATION, DATA, DENIED, AuditConfig
from mainstem.security.audit.verdicts import VerdictAudit


def event(resource: str = "topic:t", kind: str = ADMIN) -> AuditEvent:
    return AuditEvent(kind, "User:an", "10.0.0.1", "CreateTopics", resource, "allowed")


def failed_login(number: int) -> AuditEvent:
    """One of a guesser who changes all that is his to choose."""
    return AuditEvent(
        AUTHENTICATION,
        f"User:{number}",
        "10.0.0.9",
        "SCRAM-SHA-256",
        "",
        "SASL_AUTHENTICATION_FAILED",
        f"client-{number}",
    )


def taken(log: AuditLog) -> list[dict[str, Any]]:
    return [json.loads(record.content) for record in (*log.take(), *log.take_missing())]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_record_says_who_did_what_when_and_what_came_of_it(clock: FakeClock) -> None:
    log = AuditLog(AuditConfig(), clock)
    log.add(event())
    assert taken(log) == [
        {
            "version": 1, "time_ms": clock.now_ms(), "event": "admin", "principal": "User:an", "host": "10.0.0.1",
            "operation": "CreateTopics", "resource": "topic:t", "outcome": "allowed",
        }
    ]  # fmt: skip
    assert taken(log) == []


def test_only_what_is_wanted_is_recorded(clock: FakeClock) -> None:
    log = AuditLog(AuditConfig(events=(DENIED,)), clock)
    for kind in (ADMIN, DATA, DENIED):
        assert log.wants(kind) == (kind == DENIED)
        log.add(event(kind=kind))
    assert [record["event"] for record in taken(log)] == [DENIED]


def test_what_repeats_itself_is_one_record_with_a_count(clock: FakeClock) -> None:
    log = AuditLog(AuditConfig(), clock)
    for _ in range(1000):
        log.add(event())
    log.add(event("topic:other"))
    assert len(taken(log)) == 2
    clock.advance(61)
    (record,) = taken(log)
    assert (record["resource"], record["repeated"]) == ("topic:t", 999)
    log.add(event())
    (record,) = taken(log)
    assert "repeated" not in record


def test_what_comes_too_fast_is_counted_alone(clock: FakeClock) -> None:
    log = AuditLog(AuditConfig(records_per_second=10), clock)
    for number in range(1000):
        log.add(event(f"topic:{number}"))
    records = taken(log)
    assert len(records) == 101
    assert records[-1] == {
        "version": 1, "time_ms": clock.now_ms(), "event": "dropped", "of": "admin", "outcome": "allowed", "count": 900
    }  # fmt: skip
    assert {sample.name: sample.value for sample in log.samples()} == {
        "mainstem_audit_records_total": 101,
        "mainstem_audit_dropped_total": 900,
    }
    clock.advance(1)
    log.add(event("topic:later"))
    assert len(taken(log)) == 1


def test_a_flood_of_failed_logins_leaves_room_for_every_change(clock: FakeClock) -> None:
    log = AuditLog(AuditConfig(), clock)
    changes = []
    for second in range(60):
        for number in range(500):
            log.add(failed_login(500 * second + number))
        log.add(event(f"topic:{second}"))
        clock.advance(1)
        changes += [record["resource"] for record in taken(log) if record["event"] == ADMIN]
    assert changes == [f"topic:{second}" for second in range(60)]
    assert log.dropped > 20_000


def test_changes_that_were_made_have_room_beside_those_that_were_refused(clock: FakeClock) -> None:
    log = AuditLog(AuditConfig(records_per_second=10), clock)
    for number in range(1000):
        log.add(event(f"topic:{number}")._replace(outcome="TOPIC_AUTHORIZATION_FAILED"))
    log.add(event("topic:made"))
    assert [record["resource"] for record in taken(log) if record["outcome"] == "allowed"] == ["topic:made"]


def test_another_client_id_makes_no_other_event(clock: FakeClock) -> None:
    log = AuditLog(AuditConfig(), clock)
    for number in range(10):
        log.add(event()._replace(client_id=f"client-{number}"))
    (record,) = taken(log)
    assert record["client_id"] == "client-0"
    clock.advance(61)
    (record,) = taken(log)
    assert record["repeated"] == 9


def test_an_event_that_cannot_be_put_into_words_is_counted(clock: FakeClock) -> None:
    log = AuditLog(AuditConfig(), clock)
    log.failed("CreateTopics", ValueError("no such field"))
    assert (log.dropped, taken(log)) == (1, [])


def test_all_that_is_kept_is_bounded(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "REPEATED_MAX", 10)
    monkeypatch.setattr(audit_log, "WAITING_MAX", 50)
    log = AuditLog(AuditConfig(records_per_second=100_000), clock)
    for number in range(100):
        log.add(event(f"topic:{number}" + "x" * 1000))
    assert len(log._lately) == 10  # noqa: SLF001  # what is remembered is seen by nothing else
    records = taken(log)
    assert len(records) == 51
    assert all(len(record.get("resource", "")) <= 255 for record in records)


def test_records_that_could_not_be_written_are_told_of_until_that_is_written(clock: FakeClock) -> None:
    log = AuditLog(AuditConfig(), clock)
    log.add(event("topic:a"))
    log.add(event("topic:b")._replace(outcome="UNKNOWN_SERVER_ERROR"))
    for record in log.take():
        log.drop(record)
    for _ in range(3):
        missing = log.take_missing()
        told = [json.loads(record.content) for record in missing]
        assert [(it["event"], it["of"], it["outcome"], it["count"]) for it in told] == [
            ("dropped", "admin", "allowed", 1),
            ("dropped", "admin", "denied", 1),
        ]
        for record in missing:
            log.drop(record)
    assert log.dropped == 2, "what tells of missing records is no event"


@pytest.mark.parametrize(
    ("operation", "kind", "name", "allowed", "expected"),
    [
        (Operation.WRITE, ResourceKind.TOPIC, "t", False, DENIED),
        (Operation.READ, ResourceKind.GROUP, "g", False, DENIED),
        (Operation.ALTER, ResourceKind.CLUSTER, CLUSTER_NAME, False, DENIED),
        (Operation.DESCRIBE, ResourceKind.TOPIC, "t", False, None),
        (Operation.CREATE, ResourceKind.CLUSTER, CLUSTER_NAME, False, None),
        (Operation.WRITE, ResourceKind.TOPIC, "hardcode", False, None),
        (Operation.WRITE, ResourceKind.TOPIC, "t", True, DATA),
        (Operation.READ, ResourceKind.TOPIC, "t", True, DATA),
        (Operation.READ, ResourceKind.GROUP, "g", True, None),
        (Operation.DELETE, ResourceKind.TOPIC, "t", True, None),
    ],
)
def test_verdicts_are_events_where_somebody_wanted_something(
    clock: FakeClock, operation: Operation, kind: ResourceKind, name: str, allowed: bool, expected: str | None
) -> None:
    log = AuditLog(AuditConfig(events=(DENIED, DATA)), clock)
    VerdictAudit(log)("User:an", "10.0.0.1", operation, kind, name, Decision(allowed, None, "so it is"))
    found = taken(log)
    assert [record["event"] for record in found] == ([] if expected is None else [expected])
    if expected is not None:
        assert found[0]["operation"] == operation.name
        assert found[0]["resource"] == f"{kind.name.lower()}:{name}"
        assert found[0]["outcome"] == ("allowed" if allowed else "denied")


@pytest.mark.parametrize(
    "config",
    [
        AuditConfig(events=("everything",)),
        AuditConfig(files_max=0),
        AuditConfig(records_per_second=0),
        AuditConfig(file_bytes_max=1),
        AuditConfig(enabled=True, topic=False),
    ],
)
def test_settings_that_make_no_sense_are_refused(config: AuditConfig) -> None:
    with pytest.raises(ConfigError):
        config.validate()
