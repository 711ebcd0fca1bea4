"""The suites of other people's clients: how their outcomes are read, and what counts against Mainstem."""

from __future__ import annotations

from pathlib import Path

from bench.interop.suites import Outcome, Suite, outcomes_of_go, outcomes_of_pytest, regretted, split_words, table

PASSED, FAILED, SKIPPED = Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED


def test_outcomes_of_pytest_are_those_of_its_report() -> None:
    report = """<?xml version="1.0"?><testsuites><testsuite>
        <testcase classname="test.integration.test_admin" name="test_good" time="1" />
        <testcase classname="test.integration.test_admin" name="test_bad"><failure message="no">why</failure></testcase>
        <testcase classname="test.integration.test_admin" name="test_off"><skipped message="old" /></testcase>
        <testcase classname="test.integration.test_admin" name="test_broken"><error message="no">why</error></testcase>
        <testcase classname="test.integration.test_admin" name="test_unclean"><error message="no">why</error></testcase>
        <testcase classname="test.integration.test_admin" name="test_unclean" />
        </testsuite></testsuites>"""
    assert outcomes_of_pytest(report) == {
        "test_admin::test_good": PASSED,
        "test_admin::test_bad": FAILED,
        "test_admin::test_off": SKIPPED,
        "test_admin::test_broken": FAILED,
        "test_admin::test_unclean": FAILED,
    }


def test_outcomes_of_go_are_those_of_tests_and_what_hung_has_failed() -> None:
    output = "\n".join(
        (
            "go: downloading something",
            '{"Action":"start","Package":"kgo"}',
            '{"Action":"run","Package":"kgo","Test":"TestGood"}',
            '{"Action":"output","Package":"kgo","Test":"TestGood","Output":"{\\n"}',
            '{"Action":"pass","Package":"kgo","Test":"TestGood","Elapsed":1}',
            '{"Action":"run","Package":"kgo","Test":"TestBad"}',
            '{"Action":"fail","Package":"kgo","Test":"TestBad","Elapsed":1}',
            '{"Action":"skip","Package":"kgo","Test":"TestOff","Elapsed":0}',
            '{"Action":"run","Package":"kgo","Test":"TestHung"}',
            '{"Action":"fail","Package":"kgo","Elapsed":3}',
        )
    )
    assert outcomes_of_go(output) == {"TestGood": PASSED, "TestBad": FAILED, "TestOff": SKIPPED, "TestHung": FAILED}


def test_what_kafka_passes_counts_and_what_differs_is_told() -> None:
    found = {
        "kafka": {"a": PASSED, "b": PASSED, "c": FAILED, "d": FAILED, "e": PASSED, "f": SKIPPED},
        "mainstem": {"a": PASSED, "b": FAILED, "c": PASSED, "d": FAILED, "f": SKIPPED},
    }
    assert regretted(found) == ["b", "e"]
    lines = table(Suite("client", "1.0", Path, lambda *_: {}), found).splitlines()
    assert "| kafka | 3 | 2 | 1 |" in lines
    assert "| mainstem | 2 | 2 | 1 |" in lines
    assert lines[lines.index("| --- | --- | --- |") + 1 :] == [
        "| b | passed | failed |",
        "| c | failed | passed |",
        "| d | failed | failed |",
        "| e | passed | did not run |",
    ]


def test_words_for_the_suites_own_runner_follow_two_dashes() -> None:
    assert split_words(["franz-go", "--system", "kafka", "--", "-run", "Txn"]) == (
        ["franz-go", "--system", "kafka"],
        ["-run", "Txn"],
    )
    assert split_words(["franz-go"]) == (["franz-go"], [])
