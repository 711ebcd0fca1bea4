"""The suites of other people's clients: how their outcomes are read, and what counts against Mainstem."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from bench.interop.suites import kept
from bench.interop.suites.__main__ import piece_of, regretted, split_words, table
from bench.interop.suites.compose import Compose
from bench.interop.suites.go_suites import names_of_tests, outcomes_of_go, pattern_of
from bench.interop.suites.librdkafka_suite import outcomes_of_librdkafka
from bench.interop.suites.python_suites import outcomes_of_pytest
from bench.interop.suites.suite import Outcome, Suite
from bench.systems.system import OUTPUT, Durability, Node, Setup, launch

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


def test_outcomes_of_librdkafka_are_those_of_tests_that_were_asked_for() -> None:
    def told(state: str, *, known_issue: bool = False) -> dict[str, object]:
        return {"state": state, "known_issue": known_issue, "report": []}

    tests = {
        "<MAIN>": told("PASSED"),
        "0001_good": told("PASSED"),
        "0002_bad": told("FAILED"),
        "0003_hung": told("RUNNING"),
        "0004_off": told("SKIPPED"),
        "0005_other": told("DNS"),
        "0006_known": told("FAILED", known_issue=True),
    }
    assert outcomes_of_librdkafka(json.dumps({"tests": tests})) == {
        "0001_good": PASSED,
        "0002_bad": FAILED,
        "0003_hung": FAILED,
        "0004_off": SKIPPED,
        "0006_known": SKIPPED,
    }


def test_the_tests_of_some_files_become_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a_test.go").write_text(
        "func TestA(t *testing.T) {\n\tt.Run(func(t *testing.T) {})\n}\nfunc help() {}\n"
    )
    (tmp_path / "b_test.go").write_text("func TestB(t *testing.T) {}\nfunc BenchmarkB(b *testing.B) {}\n")
    assert pattern_of(names_of_tests(tmp_path.glob("*.go"))) == "^(TestA|TestB)$"


def test_pieces_share_the_tests_among_them() -> None:
    tests = [f"Test{number}" for number in range(10)]
    pieces = [piece_of(f"{number}/4").dealt(tests) for number in range(1, 5)]
    assert pieces[0] == ["Test0", "Test4", "Test8"]
    assert sorted(test for piece in pieces for test in piece) == tests
    for text in ("0/4", "5/4", "4", "one/two"):
        with pytest.raises(ValueError):
            piece_of(text)


def test_a_suite_stops_and_starts_nodes_by_the_words_of_docker_compose(tmp_path: Path) -> None:
    setup = Setup(directory=tmp_path, cpus=(0,), cores_count=1, durability=Durability.NONE)
    sleeper = ["sh", "-c", "echo up; exec sleep 1000"]
    node = Node(setup, [launch(setup, sleeper, os.environ) for _ in range(2)], ["host:1", "host:2"])

    def docker(*words: str) -> str:
        environment = os.environ | {"PATH": compose.path}
        return subprocess.run(["docker", *words], env=environment, capture_output=True, text=True).stdout

    try:
        with Compose(node) as compose:
            for word, lives in (("stop", False), ("stop", False), ("start", True), ("start", True)):
                assert docker("compose", word, "kafka-2") == ""
                assert node.lives is lives
            assert docker("compose", "logs", "--since", "2026", "kafka-1") == (tmp_path / OUTPUT).read_text()
            assert "`docker compose exec kafka-2` is not" in docker("compose", "exec", "kafka-2")
            assert "`docker compose stop kafka-3` is not" in docker("compose", "stop", "kafka-3")
    finally:
        node.kill()


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


def test_runs_in_pieces_and_again_become_one_table(tmp_path: Path) -> None:
    file, suite = tmp_path / "kept", Suite("client", "1.0", Path, lambda *_: {})
    kept.add(file, suite, "kafka", {"a": PASSED, "b": PASSED})
    kept.add(file, suite, "kafka", {"c": PASSED, "d": SKIPPED})
    kept.add(file, suite, "kafka", {"c": PASSED, "e": PASSED})
    kept.add(file, suite, "mainstem", {"a": PASSED, "b": FAILED, "c": PASSED, "d": SKIPPED})
    kept.add(file, suite, "mainstem", {"c": FAILED})
    lines = kept.table(kept.rounds_of(kept.read(file))).splitlines()
    assert "| client 1.0 | kafka | 2 | 4 | 0 | 0 | 1 |" in lines
    assert "| client 1.0 | mainstem | 2 | 1 | 1 | 1 | 1 |" in lines
    assert lines[lines.index("| --- | --- | --- | --- |") + 1 :] == [
        "| client 1.0 | b | passed | failed |",
        "| client 1.0 | c | passed | passed 1 of 2 |",
        "| client 1.0 | e | passed | did not run |",
    ]
