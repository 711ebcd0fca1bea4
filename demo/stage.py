"""How a demo with an object store begins and ends: an S3 server and a node start from nothing, the story is told, and
nothing is left running or lying about."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from tools.s3_server import CREDENTIALS, S3Server, s3_server

from demo.errors import DemoFailed
from demo.messages.data import DataMissing
from demo.node_process import NodeFailed, NodeProcess
from demo.summary import Check, console, summary
from demo.waiting import give_up_after
from mainstem.pipeline.spark.java import find_java, spark_missing

BUCKET = "mainstem-demo"
SECONDS_MAX = 178
"""The demo's promise is three minutes; past this it gives up and says where it stood."""


class Story(Protocol):
    """The steps of a demo over one node and its object store."""

    node: NodeProcess

    def tell(self) -> list[Check]:
        """Go through the steps; return what they proved. Raises `NodeFailed`, `DemoFailed`, KafkaException,
        TimeoutError."""
        ...

    def served(self) -> Mapping[str, Mapping[str, int]]:
        """Reading -> bytes by tier."""
        ...


def perform(make: Callable[[Path, S3Server], Story]) -> int:
    """Tell the story that `make` makes of an empty directory and an S3 server; returns the exit code."""
    give_up_after(SECONDS_MAX)
    if missing := " ".join(filter(None, (find_java().missing, spark_missing()))):
        console.print(f"[red]The demo needs Spark:[/] {missing}")
        return 1
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="mainstem-demo-"))
    for name, value in CREDENTIALS.items():  # where S3's other tools look for them, too
        os.environ[f"AWS_{name.upper()}"] = value
    story: Story | None = None
    try:
        with s3_server(BUCKET) as s3:
            story = make(directory, s3)
            try:
                checks = story.tell()
            finally:
                story.node.end()
            return summary(checks, story.served(), time.monotonic() - started)
    except (DataMissing, NodeFailed, RuntimeError) as error:
        console.print(f"[red]The demo failed:[/] {error}", soft_wrap=True)
        return 1
    except (DemoFailed, KafkaException, TimeoutError) as error:
        console.print(f"[red]The demo failed:[/] {error}\n{story.node.log_tail() if story else ''}", soft_wrap=True)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def create_topics(bootstrap: str, topics: Iterable[NewTopic]) -> None:
    """Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})  # its end would end what is asked for
    for future in admin.create_topics(list(topics)).values():
        future.result(timeout=30)
