"""The split application: `python -m mainstem.pipeline.main --node http://HOST:PORT`.

The node's supervisor, `mainstem split run` or a cluster's scheduler runs it. Exit codes tell the outcome
(`errors.EXIT_DONE` and the others). With `--watch-stdin` it kills its session when its standard input ends, so that
neither it nor its JVM outlives the node that started it, however that died.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.errors import MainstemError
from mainstem.pipeline.embedded.config import PipelineConfig
from mainstem.pipeline.embedded.processes import end_session
from mainstem.pipeline.embedded.spare_time import take_spare_time
from mainstem.pipeline.errors import EXIT_DONE, EXIT_FAILED, EXIT_LEASE_HELD, EXIT_YIELDED, Ended, UploadFailed
from mainstem.pipeline.link.lease_keeper import LeaseKeeper
from mainstem.pipeline.link.node_link import Endpoint, NodeLink, find_endpoint
from mainstem.pipeline.merge.merge_task import MergeSettings
from mainstem.pipeline.spark.java import Java, require_java
from mainstem.pipeline.split.split_plan import SplitSettings
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.split import LeaseHeld
from mainstem.rpc.wire.tls import RpcTlsConfig
from mainstem.storage.shared_store.shared_store import SharedStore
from mainstem.storage.store_files.store_file import RUNS_DIRECTORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mainstem.split")

SLICE_BYTES_MAX = 64 * 1024 * 1024
"""A task holds one slice in memory; larger runs are made by merging."""

LEASE_WAIT_SECONDS = 60.0
"""An embedded splitter gives way within seconds; a crashed one's lease runs out sooner than this."""

STOP_SECONDS_MAX = 30.0
"""When asked to stop, the process is gone after this long at the latest."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    defaults = PipelineConfig()
    parser = argparse.ArgumentParser(prog="mainstem split run", description="Split a node's journal with Spark.")
    parser.add_argument("--node", required=True, help="HTTP address of the node, e.g. http://127.0.0.1:9080")
    parser.add_argument("--master", default=defaults.master, help="Spark master (default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="split everything committed now, then end with exit code 0")
    merging = parser.add_mutually_exclusive_group()
    merging.add_argument("--merge-only", action="store_true", help="merge files of the queue store, and split nothing")
    merging.add_argument(
        "--compact-only", action="store_true", help="merge and compact files of the queue store, and split nothing"
    )
    merging.add_argument(
        "--tier-only",
        action="store_true",
        help="merge files of the queue store and upload them to the remote tier, and split nothing",
    )
    merging.add_argument(
        "--no-merge",
        action="store_true",
        help="split, and neither merge nor compact files of the queue store, nor upload any",
    )
    parser.add_argument(
        "--checkpoint",
        default="",
        help="directory of Spark's checkpoint (default: a temporary one; losing it loses nothing)",
    )
    parser.add_argument("--bytes-per-trigger", type=int, default=defaults.bytes_per_trigger)
    parser.add_argument("--trigger-seconds", type=float, default=defaults.trigger_seconds)
    parser.add_argument(
        "--bytes-per-second", type=int, default=0, help="pace of writing runs, all tasks together (default: 0, unpaced)"
    )
    parser.add_argument("--start-bytes", type=int, default=0, help="split when this many bytes are unsplit")
    parser.add_argument("--start-age-seconds", type=float, default=0.0, help="…or the oldest is this old")
    parser.add_argument("--tasks", type=int, default=2, help="tasks that run at a time, for pacing and slicing")
    parser.add_argument(
        "--wait-seconds",
        type=float,
        default=LEASE_WAIT_SECONDS,
        help="how long to wait for another splitter's lease (default: %(default)s)",
    )
    for name, text in (("certificate", "shown to the node"), ("key", "of the certificate"), ("ca", "of the node's")):
        parser.add_argument(
            f"--rpc-tls-{name}",
            default=os.environ.get(f"MAINSTEM_RPC_TLS__{name.upper()}", ""),
            metavar="FILE",
            help=f"{text}, where the node has rpc_tls; PEM (executors read it, too)",
        )
    parser.add_argument("--driver-memory", default=defaults.driver_memory)
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="any Spark setting")
    parser.add_argument("--embedded", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--watch-stdin", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the splitter to its end; returns the exit code."""
    options = parse(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: _stop_soon(stopping))
    if options.watch_stdin:
        threading.Thread(target=end_with_stdin, daemon=True).start()
    if options.embedded:
        take_spare_time()
    try:
        java = require_java()
        endpoint = find_endpoint(options.node, tls_of(options))
        return run(options, endpoint, java, stopping)
    except LeaseHeld as error:
        log.error("%s. Stop it, or let it work: it splits the same journal.", error)
        return EXIT_LEASE_HELD
    except MainstemError as error:
        log.error("%s", error)
        return EXIT_FAILED


def run(options: argparse.Namespace, endpoint: Endpoint, java: Java, stopping: threading.Event) -> int:
    """Take the lease, split, give it back. Raises a `MainstemError` that prevents the start."""
    tls = tls_of(options)
    node = NodeLink(endpoint.rpc, "splitter", tls)
    kind = "embedded" if options.embedded else "once" if options.once else "detached"
    what = work_of(options)
    shared = endpoint.shared_store
    uploads = what in ("split", "upload") and shared is None
    if what == "upload" and shared is not None:
        raise UploadFailed(f"there is nothing to upload: all files lie in the shared store, {shared.url}")
    kind += f" {what} in place of a" if what != "split" else ""
    holder = f"{kind} splitter, process {os.getpid()} on {socket.gethostname()}"
    lease = node.acquire(holder, wait_seconds=options.wait_seconds, yields=options.embedded)
    log.info("split lease of epoch %d taken from %s", lease.epoch, endpoint.rpc)
    with (
        LeaseKeeper(NodeLink(endpoint.rpc, "split lease", tls), lease) as keeper,
        tempfile.TemporaryDirectory(prefix="mainstem-split-", ignore_cleanup_errors=True) as scratch,
    ):
        from mainstem.pipeline.merge.compactor import Compactor
        from mainstem.pipeline.merge.merger import Merger
        from mainstem.pipeline.spark.session import stop_session
        from mainstem.pipeline.split.splitter import Splitter
        from mainstem.pipeline.tier.tierer import Tierer

        spark: SparkSession | None = None
        try:
            spark = session_of(options, java, Path(scratch))
            merges = NodeLink(endpoint.rpc, "merge", tls)
            settings = merge_settings_of(options, endpoint)
            merger = Merger(
                spark,
                merges,
                keeper,
                settings,
                tasks=options.tasks,
                split_behind_bytes=options.bytes_per_trigger,
                stopping=stopping.is_set,
                compactor=Compactor(spark, merges, settings) if what in ("split", "compaction") else None,
                uploader=Tierer(spark, merges, settings, tasks=options.tasks) if uploads else None,
            )
            if what != "split":
                ended = merger.run(drain=options.once)
            else:
                ended = Splitter(
                    spark,
                    node,
                    keeper,
                    settings_of(options, endpoint),
                    checkpoint_dir=options.checkpoint or f"{scratch}/checkpoint",
                    stopping=stopping.is_set,
                    yields=options.embedded,
                    merger=None if options.once or options.no_merge else merger,
                ).run(trigger_seconds=None if options.once else options.trigger_seconds)
        except Exception as error:
            if not keeper.lost:
                message = _essence(error)
                log.error("the %s failed: %s", what, message)
                _report_failure(node, keeper, message)
                return EXIT_FAILED
            ended = Ended.LEASE_LOST
        finally:
            if spark is not None:
                stop_session(spark)
        if ended is Ended.LEASE_LOST:
            log.error(
                "the split lease is lost: %s. This splitter stops; nothing of its is recorded any more.", keeper.lost
            )
    log.info("split ended: %s", ended.value)
    return {Ended.LEASE_LOST: EXIT_LEASE_HELD, Ended.YIELDED: EXIT_YIELDED}.get(ended, EXIT_DONE)


def session_of(options: argparse.Namespace, java: Java, local_dir: Path) -> SparkSession:
    """`local_dir`: Spark's scratch space."""
    from mainstem.pipeline.spark.class_archive import archive_options
    from mainstem.pipeline.spark.session import start_session

    return start_session(
        options.master,
        local_dir=local_dir,
        driver_memory=options.driver_memory,
        name="mainstem split",
        extra=dict(entry.split("=", 1) for entry in options.conf),
        jvm=archive_options(java),
    )


def work_of(options: argparse.Namespace) -> str:
    """The work that the application is run for: a split, with all else in what it leaves, or one thing alone."""
    alone = {"merge": options.merge_only, "compaction": options.compact_only, "upload": options.tier_only}
    return next((work for work, asked in alone.items() if asked), "split")


def settings_of(options: argparse.Namespace, endpoint: Endpoint) -> SplitSettings:
    tasks = max(1, options.tasks)
    return SplitSettings(
        rpc=endpoint.rpc,
        runs_dir=str(Path(endpoint.store_dir) / RUNS_DIRECTORY),
        bytes_per_trigger=options.bytes_per_trigger,
        slice_bytes=max(1, min(SLICE_BYTES_MAX, options.bytes_per_trigger // tasks)),
        bytes_per_second=options.bytes_per_second // tasks,
        start_bytes=options.start_bytes,
        start_age_seconds=options.start_age_seconds,
        tls=tls_of(options),
        shared_store=told_to_spark(endpoint.shared_store),
    )


def merge_settings_of(options: argparse.Namespace, endpoint: Endpoint) -> MergeSettings:
    return MergeSettings(
        rpc=endpoint.rpc,
        store_dir=endpoint.store_dir,
        bytes_per_second=options.bytes_per_second // max(1, options.tasks),
        tls=tls_of(options),
        shared_store=told_to_spark(endpoint.shared_store),
    )


def told_to_spark(store: SharedStore | None) -> SharedStore | None:
    """A shared store without how it is reached, which may be secret: plans and logs of Spark show settings. Tasks ask
    the node for it."""
    return store and SharedStore(url=store.url, folder=store.folder)


def tls_of(options: argparse.Namespace) -> RpcTlsConfig:
    """The TLS files with absolute paths, for tasks that run in other directories. Raises ConfigError."""
    certificate, key, ca = (
        file and os.path.abspath(file)
        for file in (options.rpc_tls_certificate, options.rpc_tls_key, options.rpc_tls_ca)
    )
    tls = RpcTlsConfig(certificate=certificate, key=key, ca=ca)
    tls.validate()
    return tls


def _report_failure(node: NodeLink, keeper: LeaseKeeper, message: str) -> None:
    try:
        node.report(keeper.held, None, message)
    except RpcError as error:
        log.warning("the failure could not be reported to the node: %s", error)


def _essence(error: Exception) -> str:
    """The lines of a Spark error that name the fault, without the JVM's stack."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    if isinstance(error, ConnectionError | Py4JNetworkError):  # calls to the node raise neither
        return f"Spark's JVM is gone, killed or out of memory: {error}"
    lines = [line for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.lstrip().startswith("at ")]
    ours = [line for line in lines if line.startswith("mainstem.")]
    return "\n".join((ours or lines)[-4:])


def end_with_stdin() -> None:
    """End this session with the node that held the other end of the pipe: nothing can be recorded any more,
    and no other process looks after this one, its JVM and its workers."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    if os.getsid(0) == os.getpid():
        end_session(os.getpid())
    os._exit(EXIT_FAILED)


def _stop_soon(stopping: threading.Event) -> None:
    """Stop in order; by force if that takes too long (Spark may still be starting)."""
    if not stopping.is_set():
        stopping.set()
        timer = threading.Timer(STOP_SECONDS_MAX, lambda: os._exit(EXIT_FAILED))
        timer.daemon = True
        timer.start()


if __name__ == "__main__":
    sys.exit(main())
