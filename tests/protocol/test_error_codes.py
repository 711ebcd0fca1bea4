"""Error codes against a published list."""

from __future__ import annotations

from kio.schema.errors import ErrorCode as KioErrorCode

from mainstem.protocol.error_codes import ErrorCode


def test_codes_names_and_retriability_are_kafkas() -> None:
    theirs = [(int(code), code.name.upper(), code.retriable) for code in KioErrorCode]
    assert [(int(code), code.name, code.retriable) for code in ErrorCode] == theirs


def test_every_code_says_what_it_means() -> None:
    messages = [code.message for code in ErrorCode]
    assert all(messages)
    assert len(set(messages)) == len(messages)
