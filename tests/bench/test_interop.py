"""The table of other people's clients: what a row says, what counts against Mainstem, and why a tool failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench.interop import tools
from bench.interop.__main__ import Row, table
from bench.interop.programs.scenario import NOT_OFFERED, shared_out

ROOT = Path(__file__).parent.parent.parent


def row(scenario: str, kafka: str | None, mainstem: str | None) -> Row:
    return Row("client", "1.0", scenario, {"kafka": kafka, "mainstem": mainstem})


@pytest.mark.parametrize(
    ("found", "counts", "says"),
    [
        (row("round trip", "", ""), False, "| yes | yes |  |"),
        (row("round trip", "", "boom"), True, "| yes | **no** | mainstem: boom |"),
        (row("round trip", "a | b", "boom"), False, "| **no** | **no** | kafka: a \\| b; mainstem: boom |"),
        (row("round trip", None, None), False, "| not offered | not offered |  |"),
    ],
)
def test_a_row_says_who_serves_the_client_and_what_counts_against_mainstem(found: Row, counts: bool, says: str) -> None:
    assert found.regrets() is counts
    assert table([found]).splitlines()[-1].endswith(says)


def test_a_row_that_kafka_fails_proves_nothing() -> None:
    assert row("round trip", "boom", "").proves_nothing()
    assert not row("round trip", "", "boom").proves_nothing()
    assert not row("round trip", None, None).proves_nothing()


def test_a_tool_is_taken_by_its_exit_code_and_by_what_it_says() -> None:
    def run(script: str, says: str = "", lacks: str = "", *, refused: bool = False) -> str:
        call = tools.Call([script, "ADDRESS"], b"in", says, lacks, refused)
        return tools.run([call], {"ADDRESS": "host:1"}, lambda tool: ["sh", "-c", tool, "sh"])

    assert run("echo $1 topic", "host:1") == ""
    assert run("cat", "in") == ""
    assert run("echo else", "orders") == "else"
    assert run("echo first; echo SomeException: why; echo last; exit 1") == "SomeException: why"
    assert run("exit 4").endswith("ended with code 4")
    assert run("echo denied; exit 4", "denied", refused=True) == ""
    assert run("echo done", "denied", refused=True) == "done"
    assert run("echo here", lacks="here").endswith("still says here")


@pytest.mark.parametrize(
    ("scenario", "code"), [("works", 0), ("fails", 1), ("missing", NOT_OFFERED), ("else", NOT_OFFERED)]
)
def test_a_program_ends_as_its_scenario_did(scenario: str, code: int) -> None:
    program = (
        "from bench.interop.programs.scenario import NotOffered, run\n"
        "def fails(address): raise ValueError(address)\n"
        "def missing(address): raise NotOffered('from version 9 on')\n"
        "run({'works': lambda address: None, 'fails': fails, 'missing': missing})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, scenario, "host:1"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code
    if scenario == "fails":
        assert done.stdout == "ValueError: host:1\n"


def test_members_share_all_partitions_once() -> None:
    assert shared_out([[0, 2], [1, 3]], 4)
    assert not shared_out([[0, 1, 2, 3], []], 4)
    assert not shared_out([[0, 1], [1, 2, 3]], 4)
    assert not shared_out([[0, 1], [2]], 4)
