"""The parts of an answer the matrix of access rules compares, and that its questions are of every API that is
judged."""

from __future__ import annotations

import random
from uuid import UUID

from bench.access.acl_matrix import RULES_MAX, rules_of
from bench.access.acl_questions import questions, told
from bench.access.question import TOPICS
from bench.access.token_questions import OWNERS, Token

from mainstem.broker.dispatch.access_table import ACCESS, Open
from mainstem.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from mainstem.protocol.schema import declaration_of
from mainstem.security.acls.acl import fault_of

OPEN_AND_ASKED = {71, 72}
"""Telemetry, which takes no right."""
OF_TOKENS = {38, 39, 40, 41}
"""Delegation tokens: whose they are is looked at first."""


def records_deleted(*topics: tuple[str, int]) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=name,
                partitions=(DeleteRecordsPartitionResult(partition_index=0, low_watermark=5, error_code=code),),
            )
            for name, code in topics
        )
    )


def test_answers_are_compared_by_their_errors_whatever_their_order() -> None:
    answer = told(records_deleted(("a", 0), ("b", 29)))
    assert answer == told(records_deleted(("b", 29), ("a", 0)))
    assert answer != told(records_deleted(("a", 0), ("b", 3)))
    assert answer == told(records_deleted(("a", 0), ("b", 29), ("__internal", 0)))


def test_every_api_that_is_judged_is_asked() -> None:
    ids = {name: UUID(int=number) for number, name in enumerate(TOPICS)}
    tokens = {owner: Token(f"id of {owner}", b"secret of " + owner.encode()) for owner in OWNERS}
    asked = list(questions(ids, tokens))
    keys = {declaration_of(type(question.message)).api_key for question in asked}
    judged = {key for key, access in ACCESS.items() if not isinstance(access, Open)}
    assert keys - OPEN_AND_ASKED - OF_TOKENS == judged - OF_TOKENS
    assert keys >= OF_TOKENS
    names = [question.name for question in asked]
    assert len(set(names)) == len(names)


def test_rules_are_such_as_can_be_added_and_the_same_for_a_seed() -> None:
    sets = [rules_of(random.Random(seed)) for seed in range(50)]
    assert all(1 <= len(rules) <= RULES_MAX for rules in sets)
    assert not any(fault_of(rule) for rules in sets for rule in rules)
    assert rules_of(random.Random(7)) == sets[7]
