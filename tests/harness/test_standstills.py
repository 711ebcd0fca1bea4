"""Steps that take long are told of while they do."""

from __future__ import annotations

import io
import logging
import threading

from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.standstills import ClientLog, Standstills


def test_a_step_that_takes_long_tells_what_is_known_and_all_stacks() -> None:
    output, asked = io.StringIO(), threading.Event()

    def tell() -> str:
        asked.set()
        return "node 2 leads"

    standstills = Standstills(tell, seconds=0.0, output=output)
    with standstills.watched("a commit"):
        assert asked.wait(PATIENCE_SECONDS)
    assert set(standstills.told) == {"a commit"}
    for part in ("a commit has taken", "node 2 leads", "in test_a_step_that_takes_long"):
        assert part in output.getvalue()


def test_stacks_are_told_also_where_nobody_knows_more() -> None:
    output, asked = io.StringIO(), threading.Event()

    def tell() -> str:
        asked.set()
        raise OSError("no node runs")

    with Standstills(tell, seconds=0.0, output=output).watched("a commit"):
        assert asked.wait(PATIENCE_SECONDS)
    assert "more is not known: OSError('no node runs')" in output.getvalue()
    assert "in test_stacks_are_told" in output.getvalue()


def test_a_short_step_is_not_told_of() -> None:
    output = io.StringIO()
    standstills = Standstills(lambda: "", seconds=PATIENCE_SECONDS, output=output)
    with standstills.watched("a commit"):
        pass
    assert (standstills.told, output.getvalue()) == ([], "")


def test_a_log_counts_what_repeats_and_leaves_out_threads_that_end() -> None:
    log = ClientLog(lines=3)
    logger: logging.Logger = log.logger("client")
    for line in ("old", "asked", "asked", "asked", "x: Handle is terminating in state DOWN", "answered"):
        logger.debug(line)
    assert [line.partition(" ")[2].strip() for line in log.last()] == ["asked", "and 2 times more", "answered"]
    assert len(log.last(1)) == 1
