"""`mainstem serve`: run a node until a signal or a fault ends it.

The first line on stdout is for programs and comes when clients are accepted:
`ready kafka=HOST:PORT http=HOST:PORT rpc=HOST:PORT node=ID`. Everything else goes to stderr.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from mainstem import __version__
from mainstem.cli.errors import CommandLineError, DiskFailed, NodeDied
from mainstem.errors import DISK_REMEDY, MainstemError, is_of_disk

if TYPE_CHECKING:
    from mainstem.node.config import NodeConfig
    from mainstem.node.node import Addresses, RunningNode

logger = logging.getLogger("mainstem")

PROCESSES_MAX = 128
"""As the configuration's, which is read only when the command runs."""

END_SECONDS_MAX = 20.0
"""How long a node that cannot go on may take to close what it can."""

DISK_END_SECONDS_MAX = 5.0
"""The same where disk 1 failed: nothing can be saved any more, and what it led is led by others by then."""


@click.command("serve")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="Read this file, TOML or a server.properties. Default: mainstem.toml in the working directory.",
)
@click.option("--listen", metavar="HOST:PORT[,…]", help="Accept Kafka clients here; port 0 picks a free one, as below.")
@click.option("--http", metavar="HOST:PORT", help="Serve health, metrics and status here.")
@click.option("--rpc", metavar="HOST:PORT", help="Accept other nodes and splitters here.")
@click.option("--write-dir", metavar="DIR", help="Keep the journal here: disk 1.")
@click.option(
    "--store-dir",
    metavar="DIR|URL",
    help="Keep the queue store here: a directory is disk 2, the URL of an object store is shared by all nodes.",
)
@click.option("--remote-dir", metavar="DIR|URL", help="Keep the remote tier here; the same for all nodes.")
@click.option(
    "--roles", metavar="ROLE[,…]", help="What the node does: broker, storage, nameserver. Default: all three."
)
@click.option(
    "--processes",
    type=click.IntRange(1, PROCESSES_MAX),
    metavar="N",
    help="Run N nodes of this machine, each a process, with ports and directories of its own.",
)
@click.option("--process", "index", type=int, hidden=True, help="Run this one of N nodes, counted from 0.")
@click.option("--supervisor", type=int, hidden=True, help="Stop when the process with this id ends.")
@click.option(
    "--allow-open",
    metavar="KIND[,…]",
    help="Let ports of these kinds (kafka, http, rpc) be open beyond this host to anybody.",
)
@click.option(
    "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set any key of the configuration; repeatable."
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How the log is written to stderr.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The least that is logged.",
)
def command(
    file: Path | None,
    listen: str | None,
    http: str | None,
    rpc: str | None,
    write_dir: str | None,
    store_dir: str | None,
    remote_dir: str | None,
    roles: str | None,
    processes: int | None,
    index: int | None,
    supervisor: int | None,
    allow_open: str | None,
    assignments: tuple[str, ...],
    log_format: str,
    log_level: str,
) -> int:
    """Run a node, or several.

    The node reads its settings from mainstem.toml, MAINSTEM_* variables, options and --set; where several of them set a
    key, the last one counts. It ends cleanly on SIGINT and SIGTERM.
    """
    gc.disable()  # what is imported stays: the node has the collector begin when it is ready (`heap.py`)
    from mainstem.node.config_sources import load
    from mainstem.process.core_files import leave_no_core_files
    from mainstem.process.event_loop import new_event_loop
    from mainstem.process.free_memory import use_few_arenas
    from mainstem.time_slices import SHORT_SECONDS, set_slice

    use_few_arenas()  # before there are threads
    set_slice(SHORT_SECONDS)  # likewise
    flags = {
        "listen": listen,
        "http": http,
        "rpc": rpc,
        "write_dir": write_dir,
        "store_dir": store_dir,
        "remote_dir": remote_dir,
        "roles": roles,
        "allow_open": allow_open,
        "processes": None if processes is None else str(processes),
    }
    config = load(file=file, environment=os.environ, flags=flags, assignments=assignments)
    log_to_stderr(log_format, log_level)
    if not config.core_files:
        leave_no_core_files()
    if index is not None:
        from mainstem.cli.processes.layout import node_config
        from mainstem.process.parent import stop_with

        if supervisor is not None and not stop_with(supervisor):
            return 0
        config = node_config(config, index)
    elif config.processes:
        from mainstem.cli.processes.command import run_processes

        arguments = [] if file is None else ["--config", str(file)]
        for key, value in flags.items():
            arguments += [] if value is None else [f"--{key.replace('_', '-')}", value]
        for assignment in assignments:
            arguments += ["--set", assignment]
        return run_processes(config, [*arguments, "--log-format", log_format, "--log-level", log_level], log_format)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run_node(config))
    return 0


async def run_node(config: NodeConfig) -> None:
    """Run a node until a signal or a fault ends it. Raises a `MainstemError` that keeps it from starting,
    `CommandLineError`."""
    from mainstem.kernel import KERNEL
    from mainstem.node.node import RunningNode
    from mainstem.process.event_loop import chosen_loop

    stopping = asyncio.Event()
    _stop_on_signals(stopping)
    logger.info(
        "mainstem %s, node %d (%s), %s kernel on %s; disk 1 %s, %s %s",
        __version__,
        config.node_id,
        ", ".join(config.roles),
        KERNEL,
        chosen_loop(),
        _place(config.write_dir),
        "shared store" if config.shares_store else "disk 2",
        _place(config.store_dir),
    )
    if KERNEL != "compiled":
        logger.warning("the pure-Python kernel is active: all is well but slower; `mainstem doctor` says what to do")
    node = RunningNode(config)
    stopped = asyncio.ensure_future(stopping.wait())
    start = asyncio.ensure_future(node.start())
    await asyncio.wait([start, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not start.done():
        # Asked to stop while recovering: `start` closes what it had opened.
        start.cancel()
        await asyncio.wait([start])
        return
    died = asyncio.ensure_future(node.died.wait())
    try:
        _announce(_started(start))
        await asyncio.wait([stopped, died], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        died.cancel()
    if not node.died.is_set():
        logger.info("stopping")
        await node.close()
        logger.info("stopped")
        return
    failure = _why(node)
    try:
        async with asyncio.timeout(END_SECONDS_MAX if node.disk_failure is None else DISK_END_SECONDS_MAX):
            await node.close()
    except TimeoutError:  # a thread may wait for the disk for ever, and Python for the thread
        logger.error("not everything could be closed within the time there was")
        _end_at_once(failure)
    except Exception as error:  # what died may be in the way; the next start recovers
        logger.error("not everything could be closed: %r", error)
    raise failure


def _started(start: asyncio.Future[Addresses]) -> Addresses:
    """Raises what kept the node from starting; `DiskFailed` where that was disk 1."""
    try:
        return start.result()
    except (MainstemError, OSError) as error:
        if is_of_disk(error):
            raise DiskFailed(f"the node cannot start: {error}; {DISK_REMEDY}") from error
        raise


def _why(node: RunningNode) -> CommandLineError:
    if node.disk_failure is not None:
        return DiskFailed(f"disk 1 failed, and the node has ended: {node.disk_failure}; {DISK_REMEDY}")
    return NodeDied("a task died that the node cannot do without; the log says which. Start the node again")


def _end_at_once(failure: CommandLineError) -> NoReturn:
    click.echo(f"mainstem: {failure}", err=True)
    logging.shutdown()
    os._exit(failure.exit_code)


def _stop_on_signals(stopping: asyncio.Event) -> None:
    """The first SIGTERM or SIGINT asks for a clean stop, the second one ends the process at once."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopping.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _place(location: str) -> str:
    return location if "://" in location else str(Path(location).expanduser().absolute())


def _announce(addresses: Addresses) -> None:
    click.echo(f"ready kafka={addresses.kafka} http={addresses.http} rpc={addresses.rpc} node={addresses.node_id}")
    logger.info(
        "ready: Kafka clients at %s, HTTP at http://%s, node RPC at %s",
        addresses.kafka,
        addresses.http,
        addresses.rpc,
    )


_QUIET = ("uvicorn", "asyncio")
"""Libraries whose information is noise beside ours; their warnings stay."""


def log_to_stderr(form: str, level: str) -> None:
    """Send the process's log to stderr. `form` is 'text' or 'json'."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00.123 INFO  storage.recovery: message`, UTC."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(room)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.room = record.name.removeprefix("mainstem.")
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """Keys: time (ms since the epoch), level, logger, message, and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
