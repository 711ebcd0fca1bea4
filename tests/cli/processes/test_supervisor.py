"""The supervisor of several nodes, on a clock that the test turns."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from mainstem.cli.processes.supervisor import STEADY_SECONDS, STOP_SECONDS_MAX, Supervisor


class PlayedProcess:
    """A process that ends when the test says so, and on SIGTERM with `stop_code`."""

    def __init__(self, node_id: int, events: list[str]) -> None:
        self.node_id = node_id
        self.last_words = "the disk is full"
        self.ready = False
        self.stop_code: int | None = 0
        """None: it does not stop when asked to."""
        self.codes: list[int] = []
        self.begun_at: list[float] = []
        self.events = events
        self.clock: Callable[[], float] = lambda: 0.0

    def begin(self) -> None:
        self.begun_at.append(self.clock())
        self.ready = False

    def ended(self) -> int | None:
        return self.codes.pop() if self.codes else None

    def stop(self) -> None:
        self.events.append(f"stop {self.node_id}")
        if self.stop_code is not None:
            self.codes.append(self.stop_code)

    def kill(self) -> None:
        self.events.append(f"kill {self.node_id}")
        self.codes.append(-9)


class Stage:
    """A supervisor of three nodes; `plays` are done at their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[str] = []
        self.processes = [PlayedProcess(node_id, self.events) for node_id in (1, 2, 3)]
        for process in self.processes:
            process.clock = lambda: self.now
        self.plays: list[tuple[float, Callable[[], object]]] = []
        self.supervisor = Supervisor(
            self.processes, lambda: self.now, self.sleep, lambda: self.events.append("all ready")
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.plays and self.plays[0][0] <= self.now:
            self.plays.pop(0)[1]()

    def at(self, seconds: float, play: Callable[[], object]) -> None:
        self.plays.append((seconds, play))
        self.plays.sort(key=lambda each: each[0])

    def all_get_ready(self) -> None:
        for process in self.processes:
            process.ready = True

    def want_stop(self) -> None:
        self.supervisor.stops_wanted += 1


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_nodes_are_stopped_one_at_a_time_from_the_last_to_the_first(stage: Stage) -> None:
    stage.at(1, stage.all_get_ready)
    stage.at(2, stage.want_stop)
    assert stage.supervisor.run() == 0
    assert stage.events == ["all ready", "stop 3", "stop 2", "stop 1"]


def test_a_stop_ends_with_the_first_code_that_is_not_0(stage: Stage) -> None:
    stage.at(1, stage.all_get_ready)
    stage.at(2, stage.want_stop)
    stage.processes[1].stop_code, stage.processes[0].stop_code = 3, 4
    assert stage.supervisor.run() == 3
    assert stage.events[-1] == "stop 1"


def test_a_node_that_cannot_start_is_named_and_the_others_are_stopped(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.at(1, lambda: stage.processes[1].codes.append(2))
    assert stage.supervisor.run() == 2
    assert stage.events == ["stop 3", "stop 1"]
    assert "node 2 cannot start (exit code 2): the disk is full; the other nodes are stopped" in caplog.text


def test_a_node_that_is_killed_as_it_starts_gives_the_code_of_shells(stage: Stage) -> None:
    stage.at(1, lambda: stage.processes[0].codes.append(-9))
    assert stage.supervisor.run() == 128 + 9


def test_a_node_that_dies_is_started_again_after_pauses_that_double(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stage.at(1, stage.all_get_ready)
    second = stage.processes[1]

    def die() -> None:
        second.codes.append(-9)
        if len(second.begun_at) < 9:
            stage.at(stage.now + 100 - stage.now % 100, die)

    stage.at(10, die)
    stage.at(2_000, stage.want_stop)
    assert stage.supervisor.run() == 0
    pauses = [round(at % 100) if round(at % 100) < 99 else 0 for at in second.begun_at[2:]]
    assert round(second.begun_at[1]) == 11
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    assert [len(process.begun_at) for process in stage.processes] == [1, 10, 1]
    assert "node 2 ended with SIGKILL; it is started again in 1 s" in caplog.text
    assert "node 2 did not start again, and ended with SIGKILL; it is started again in 2 s" in caplog.text
    assert stage.events.count("all ready") == 1


def test_a_node_that_was_steady_has_no_failures_behind_it(stage: Stage) -> None:
    second = stage.processes[1]
    stage.at(1, stage.all_get_ready)
    stage.at(10, lambda: second.codes.append(1))
    stage.at(20, stage.all_get_ready)
    stage.at(30 + STEADY_SECONDS, lambda: second.codes.append(1))
    stage.at(200, stage.want_stop)
    assert stage.supervisor.run() == 0
    assert [round(at) for at in second.begun_at] == [0, 11, round(31 + STEADY_SECONDS)]


def test_a_node_that_waits_for_its_next_start_has_nothing_to_stop(stage: Stage) -> None:
    stage.at(1, stage.all_get_ready)
    stage.at(5, lambda: stage.processes[2].codes.append(1))
    stage.at(5.5, stage.want_stop)
    assert stage.supervisor.run() == 0
    assert stage.events == ["all ready", "stop 2", "stop 1"]


def test_a_node_that_does_not_stop_is_killed_in_the_end(stage: Stage) -> None:
    stage.processes[2].stop_code = None
    stage.at(1, stage.all_get_ready)
    stage.at(2, stage.want_stop)
    assert stage.supervisor.run() == 128 + 9
    assert stage.events == ["all ready", "stop 3", "kill 3", "stop 2", "stop 1"]
    assert stage.now >= 2 + STOP_SECONDS_MAX


def test_a_second_signal_kills(stage: Stage) -> None:
    for process in stage.processes:
        process.stop_code = None
    stage.at(1, stage.all_get_ready)
    stage.at(2, stage.want_stop)
    stage.at(3, stage.want_stop)
    assert stage.supervisor.run() == 128 + 9
    assert [event for event in stage.events if event.startswith("kill")] == ["kill 3", "kill 2", "kill 1"]
    assert stage.now < 2 + STOP_SECONDS_MAX
