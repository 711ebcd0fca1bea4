"""The common ground of the suites: where one is fetched, the nodes it wants, how it is run, how its tests end."""

from __future__ import annotations

import enum
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.errors import BenchError
from bench.interop.languages import Words
from bench.systems.system import Node

SUITE_SECONDS_MAX = 3600.0
TEST_SECONDS_MAX = 60
RULED = {
    "kafka.authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "authorizer.enabled": "true",
    "kafka.allow.everyone.if.no.acl.found": "true",
    "authorizer.allow_everyone_if_no_acl_found": "true",
}
"""Of nodes whose tests make rules, and are refused by them; everybody may do what no rule is about."""
OPEN_AUTHORIZER = RULED | {"kafka.super.users": "User:ANONYMOUS", "authorizer.super_users": "User:ANONYMOUS"}
"""Of nodes whose tests make rules that hold for others."""


class Outcome(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


Outcomes = Mapping[str, Outcome]
"""By test."""


class Piece(NamedTuple):
    """A part of a suite, of which several are run one by one. Tests are dealt out like cards: neighbours, which take
    alike long, go to different pieces."""

    number: int
    """From 1."""
    of: int

    def dealt(self, tests: Sequence[str]) -> Sequence[str]:
        return tests[self.number - 1 :: self.of]


class Wanted(NamedTuple):
    """The nodes that a suite wants, in the words of `Setup`."""

    settings: Mapping[str, str] = {}
    nodes: int = 1
    ports: Sequence[int] = ()
    advertised: Sequence[str] = ()
    heap: str = "768m"


class Suite(NamedTuple):
    name: str
    version: str
    fetched: Callable[[], Path]
    """Fetches what is missing, and returns where the suite is. It raises CalledProcessError or BenchError."""
    run: Callable[[Path, Node, Words, Path], Outcomes]
    """Takes what was fetched, what to test, words for the runner, and the file for the output."""
    wanted: Wanted = Wanted()
    piece: Callable[[Path, Piece], Words] | None = None
    """Makes the words for the runner that have it run a piece of what was fetched; None: only whole."""


def run(command: Words, directory: Path, environment: Mapping[str, str], output: Path) -> None:
    """Tests that fail are told by the outcomes. Raises BenchError. Processes that the suite leaves behind end with
    it."""
    with output.open("w") as file:
        process = subprocess.Popen(
            command, cwd=directory, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(SUITE_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the suite did not end within {SUITE_SECONDS_MAX:.0f} s: {output}") from error
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
