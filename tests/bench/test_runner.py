"""Systems take turns within a workload, repetitions go round, failures are noted, time bounds the whole."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.errors import LoadFailed, SystemFailed
from bench.machine import CpuSets, share_cores
from bench.results import Results
from bench.runner import Runner
from bench.session import SHORT, Bench, Form, Session, Stage, Workload
from bench.systems.system import Durability, Node, Setup
from bench.topics import Queues
from tests.bench.load_result import load_result

BURNT_SECONDS = 0.5
NODE = """
import sys, time
while True:
    open(sys.argv[1]).read()
    begun = time.process_time()
    while time.process_time() - begun < float(sys.argv[3]): pass
    open(sys.argv[2], "w").close()
"""
"""A node that spends some CPU time whenever somebody opens and closes its first pipe, and then opens its second."""
LOAD = """#!{python}
open({asked!r}, "w").close()
open({answered!r}).read()
print("counting", flush=True)
print({result!r})
"""
"""A load that asks the node something before it counts, and then nothing any more."""


@dataclasses.dataclass(frozen=True)
class NoSystem:
    """These sessions start no node."""

    name: str

    def prepare(self) -> None: ...

    def version(self) -> str:
        return self.name

    def start(self, setup: Setup) -> Node:
        raise SystemFailed("nothing to start")


def bench(directory: Path, form: Form) -> Bench:
    systems = {name: NoSystem(name) for name in ("mainstem", "kafka")}
    return Bench(form, CpuSets((0,), (0,)), Results(), directory, directory, directory, systems, "1g", 0)


def workload(number: str, run: Callable[[Stage], None], *names: str) -> Workload:
    def sessions(form: Form) -> list[Session]:
        return [Session(name=name, run=run, durability=Durability.SYNC) for name in names]

    return Workload(number, number, sessions, ())


def held(directory: Path, form: Form, only: tuple[str, ...] = ("mainstem", "kafka")) -> list[str]:
    order = []

    def note(stage: Stage) -> None:
        order.append(f"{stage.session.name} {stage.label}")

    Runner(bench(directory, form), only, lambda line: None, lambda: None).run(
        [workload("1", note, "a", "b"), workload("2", note, "c")]
    )
    return order


def test_systems_take_turns_and_repetitions_go_round(tmp_path: Path) -> None:
    once = ["a mainstem", "a kafka", "b mainstem", "b kafka", "c mainstem", "c kafka"]
    assert held(tmp_path, dataclasses.replace(SHORT, repetitions=2)) == once + once


def test_only_the_systems_asked_for(tmp_path: Path) -> None:
    form = dataclasses.replace(SHORT, repetitions=1)
    assert held(tmp_path, form, ("kafka",)) == ["a kafka", "b kafka", "c kafka"]


def test_what_does_not_fit_into_the_time_is_left_out_and_noted(tmp_path: Path) -> None:
    def never(stage: Stage) -> None:
        pytest.fail("a session was held")

    made = bench(tmp_path, dataclasses.replace(SHORT, repetitions=1, seconds_max=0.0))
    Runner(made, ("mainstem",), lambda line: None, lambda: None).run([workload("7", never, "a", "b")])
    assert made.results.notes == ["repetition 1 lacks, as 0 s were over, sessions of: 7 (2)"]


def test_a_failure_is_noted_and_costs_no_other_figures(tmp_path: Path) -> None:
    def half_broken(stage: Stage) -> None:
        if stage.system.name == "kafka":
            raise LoadFailed("it answered with errors")
        stage.record("row", {"mb_per_s": 1.0})

    made = bench(tmp_path, dataclasses.replace(SHORT, repetitions=1))
    Runner(made, ("kafka", "mainstem"), lambda line: None, lambda: None).run([workload("1", half_broken, "a")])
    assert made.results.notes == ["1, a, on disk, kafka failed: it answered with errors"]
    assert made.results.median(made.results.find("1", "row", "on disk"), "mainstem", "mb_per_s") == 1.0


def test_a_session_leaves_no_files(tmp_path: Path) -> None:
    def write(stage: Stage) -> None:
        (tmp_path / "node").mkdir()
        (tmp_path / "node" / "file").write_text("")

    made = bench(tmp_path, dataclasses.replace(SHORT, repetitions=1))
    Runner(made, ("mainstem",), lambda line: None, lambda: None).run([workload("1", write, "a")])
    assert not (tmp_path / "node").exists()


def test_variants_of_a_system_have_columns_of_their_own(tmp_path: Path) -> None:
    def sessions(form: Form) -> list[Session]:
        def record(stage: Stage) -> None:
            stage.record("row", {"mb_per_s": 2.0})

        return [Session(name="a", run=record, durability=Durability.ASYNC, systems=("mainstem",), variant="recycled")]

    made = bench(tmp_path, dataclasses.replace(SHORT, repetitions=1))
    Runner(made, ("mainstem",), lambda line: None, lambda: None).run([Workload("1", "1", sessions, ())])
    assert made.results.systems(made.results.rows[0]) == ["mainstem recycled"]


class OneNode(NoSystem):
    """Its node is `NODE`, with two pipes in `directory`."""

    def start(self, setup: Setup) -> Node:
        pipes = [str(setup.directory.parent / name) for name in ("asked", "answered")]
        process = subprocess.Popen([sys.executable, "-c", NODE, *pipes, str(BURNT_SECONDS)])
        return Node(setup, [process], ["nowhere"])


def test_what_a_node_spends_before_the_load_counts_is_not_measured(tmp_path: Path) -> None:
    result = load_result(seconds=1.0, size=1_000_000)
    asked, answered = (tmp_path / name for name in ("asked", "answered"))
    for pipe in (asked, answered):
        os.mkfifo(pipe)
    program = tmp_path / "load"
    program.write_text(
        LOAD.format(python=sys.executable, asked=str(asked), answered=str(answered), result=json.dumps(result))
    )
    program.chmod(0o700)

    def run(stage: Stage) -> None:
        stage.start()
        stage.measure("row", stage.produce(Queues("some", 1, 1)))

    made = dataclasses.replace(
        bench(tmp_path, dataclasses.replace(SHORT, repetitions=1)),
        load_program=program, cpus=share_cores(), systems={"mainstem": OneNode("mainstem")},
    )  # fmt: skip
    Runner(made, ("mainstem",), lambda line: None, lambda: None).run([workload("1", run, "a")])
    assert made.results.notes == []
    spent_us = made.results.median(made.results.find("1", "row"), "mainstem", "cpu_us_per_batch")
    assert spent_us is not None
    assert spent_us * result["batches"] / 1e6 < BURNT_SECONDS / 2
