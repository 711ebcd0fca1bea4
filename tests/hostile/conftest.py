"""A node for each test, small enough that an attack of seconds meets its bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.harness.serving import Serving

StartNode = Callable[..., Serving]

SETTINGS = ("pipeline.mode=off", "groups.offsets_topic_partitions=2")
"""No splitter, which these tests do not need, and few partitions to load."""


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """`start_node("section.key=value", …)`: a node that is served by nobody else and stopped with the test."""
    started: list[Serving] = []

    def start(*settings: str) -> Serving:
        serving = Serving(tmp_path / f"node-{len(started)}", *SETTINGS, *settings)
        started.append(serving)
        return serving.start()

    try:
        yield start
    finally:
        for serving in started:
            serving.close()
