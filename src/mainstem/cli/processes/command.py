"""The command `serve`, where it runs several nodes: their supervisor, its signals and its streams."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Sequence
from functools import partial

from mainstem.cli.processes.layout import machine_of, node_configs, note_voters
from mainstem.cli.processes.log_stream import LogStream
from mainstem.cli.processes.supervised_process import SupervisedProcess
from mainstem.cli.processes.supervisor import Supervisor
from mainstem.node.config import NodeConfig

logger = logging.getLogger("mainstem.supervisor")

STDOUT, STDERR = 1, 2


def run_processes(config: NodeConfig, arguments: Sequence[str], log_form: str) -> int:
    """Run all nodes of the configuration until a signal, or until one cannot start. `arguments`: those of this command.
    Returns the exit code. Raises ConfigError, OSError."""
    configs = node_configs(config)
    note_voters(config)
    log = LogStream(partial(_write_to, STDERR), log_form)
    processes = [
        SupervisedProcess(
            each.node_id,
            [*arguments, "--process", str(index), "--supervisor", str(os.getpid())],
            log,
            _announce,
        )
        for index, each in enumerate(configs)
    ]
    supervisor = Supervisor(processes, time.monotonic, time.sleep, lambda: _all_ready(len(processes)))

    def stop(number: int, _frame: object) -> None:
        supervisor.stops_wanted += 1

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    logger.info(
        "nodes %d to %d run on machine %s, supervised by process %d",
        configs[0].node_id, configs[-1].node_id, machine_of(config), os.getpid(),
    )  # fmt: skip
    return supervisor.run()


def _all_ready(processes: int) -> None:
    _announce(b"ready processes=%d\n" % processes)


def _announce(line: bytes) -> None:
    """Lines for programs; whoever has gone away does not need them."""
    try:
        _write_to(STDOUT, line)
    except OSError:
        return


def _write_to(descriptor: int, line: bytes) -> None:
    """Raises OSError. Nothing is buffered, so that lines come whole between those of other threads."""
    while line:
        line = line[os.write(descriptor, line) :]
