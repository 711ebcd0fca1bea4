"""A splitter of before queue segments of one object, out of this repository's history, beside a node of today: it goes
on splitting, and where all that is left to compact has such segments it is told that it has to be upgraded."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from bench.store.plain_splitter import PlainSplitter
from tests.clients.drivers import librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.odd_nodes.old_version import sources_of
from tests.end_to_end.tiering import RUN_BYTES, remote_rows, unsplit_bytes
from tests.end_to_end.topics import Topics
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually
from tests.storage.object_stores.servers import s3_server

from mainstem.storage.store_files.store_file import JOINED_SUFFIX, RUN_SUFFIX

BEFORE_JOINED = "714d74dc"
"""The last version but one that knows nothing of queue segments of one file."""

EARLIER = """
import sys
from bench.store.plain_splitter import PlainSplitter
from mainstem.rpc.errors import RpcError
with PlainSplitter(sys.argv[1], 1 << 20) as splitter:
    splitter.split(merging=False)
    for _ in range(2):
        try:
            splitter._node.compact_work(splitter._keeper.held, drain=True)
            print("there is work")
        except RpcError as error:
            print(error)
"""
"""Its own planner, tasks and calls, without Spark."""

TOPIC = "state"
SETTINGS = (
    "pipeline.mode=off", "nameserver.write_groups=1", "storage.write_cache_bytes=0", "storage.checkpoint_seconds=1",
    "storage.prune_seconds=0.3", "journal.segment_age_seconds=1", "store_dir=s3://mainstem-tests/shared",
)  # fmt: skip
MESSAGES, KEYS, VALUE_BYTES = 14, 3, 900_000
"""More than a segment of 8 MiB, most of which a compaction leaves out."""


def produce(node: Serving, seed: int) -> None:
    choice = random.Random(seed)
    messages = [Message(choice.randbytes(VALUE_BYTES), b"%d" % (number % KEYS)) for number in range(MESSAGES)]
    librdkafka.produce(node.kafka, TOPIC, messages)


def counted(node: Serving, suffix: str) -> list[str]:
    return [name for _group, name in remote_rows(node).counted if name.endswith(suffix)]


@pytest.mark.long
def test_an_earlier_splitter_splits_on_and_is_told_to_be_upgraded(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    try:
        sources = sources_of(BEFORE_JOINED, tmp_path / "earlier", "src", "bench")
    except LookupError as error:
        pytest.skip(str(error))
    with s3_server() as server:
        options = [f"object_store.options.{key}={value}" for key, value in server.options.items()]
        node = Serving(tmp_path / "node", *SETTINGS, f"object_store.endpoint={server.endpoint}", *options)
        try:
            node.start()
            Topics(node).create(TOPIC, {"cleanup.policy": "compact", "segment.bytes": str(8 << 20)})
            produce(node, 1)
            with PlainSplitter(node.http, RUN_BYTES) as splitter:
                splitter.split(merging=False)
                splitter.drain()
            segments = counted(node, JOINED_SUFFIX)
            assert segments
            assert not counted(node, RUN_SUFFIX)
            produce(node, 2)
            done = subprocess.run(
                [sys.executable, "-c", EARLIER, node.http],
                cwd=sources.parent,
                env={**os.environ, "PYTHONPATH": f"{sources}{os.pathsep}{sources.parent}", "MAINSTEM_PURE": "1"},
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert done.stdout.count("this splitter is of an earlier version") == 2, done.stdout
            assert "Upgrade it to the version of its node" in done.stdout
            eventually(lambda: not unsplit_bytes(node), what="a journal that is pruned of what is split")
            assert counted(node, RUN_SUFFIX), "what it split"
            assert counted(node, JOINED_SUFFIX) == segments, "nothing of it was touched"
            with PlainSplitter(node.http, RUN_BYTES) as splitter:
                work, _queues = splitter._node.compact_work(splitter._keeper.held, drain=True)  # noqa: SLF001
            assert set(segments) & {one.name for one in work.inputs}, "one of today is given it"
        finally:
            node.close()
