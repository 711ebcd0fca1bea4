"""`mainstem` commands against one node, run to their end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tests.end_to_end.processes import SOURCE
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mainstem.cli.main", *arguments]


def environment(node: Serving) -> dict[str, str]:
    """The variables by which a command finds its node."""
    return {"PYTHONPATH": str(SOURCE), "MAINSTEM_BOOTSTRAP": node.kafka, "MAINSTEM_HTTP": node.http}


def mainstem(node: Serving, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """The standard output of a command that must succeed."""
    done = _done(node, arguments, variables or {})
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(node: Serving, *arguments: str) -> str:
    """The errors of a command that must not succeed."""
    done = _done(node, arguments, {})
    assert done.returncode != 0, done.stdout
    return done.stderr


def _done(node: Serving, arguments: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        # nobody's terminal: pytest's workers tell their children how wide the one is that the tests were started from
        env={**os.environ, "COLUMNS": "", **environment(node), **variables},
    )


def replace_member(node: Serving, old: int, new: int, *options: str) -> str:
    """The output of `mainstem cluster replace`. On a busy machine the metadata quorum may have another leader before it
    is done; then it asks to be begun again."""

    def printed() -> str:
        done = _done(node, ("cluster", "replace", str(old), str(new), *options), {})
        assert done.returncode == 0 or "begin it again" in done.stderr, done.stderr
        return done.stdout if done.returncode == 0 else ""

    told: str = eventually(printed, what=f"node {new} in the place of node {old}")
    return told


def all_have_moved(node: Serving) -> None:
    """Wait until no queue moves between write groups any more."""
    eventually(
        lambda: not mainstem_json(node, "cluster", "status")["slot_moves"],
        seconds=PATIENCE_SECONDS,
        what="the end of all moves",
    )


def copies(node: Serving, topic: str) -> list[int]:
    """How many replicas each partition has."""
    return [len(one["replicas"]) for one in mainstem_json(node, "topic", "describe", topic)["partitions"]]


def mainstem_json(node: Serving, *arguments: str) -> Any:
    return json.loads(mainstem(node, *arguments, "--json"))
