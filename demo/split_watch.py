"""Watches the split while the story goes on: prints what Spark reports of each trigger, as it comes.

The figures are those of the StreamingQueryProgress that the splitter hands to its node. A node that is down
answers nothing for a while; a trigger followed by another within a poll is not seen, so sums are lower bounds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from demo.node_process import NodeFailed, NodeProcess

POLL_SECONDS = 0.2


class SplitWatch:
    """A thread from `start` to `stop`; then `progress` holds what was seen, oldest first."""

    def __init__(self, node: NodeProcess, say: Callable[[str], None]) -> None:
        self.progress: list[dict[str, Any]] = []
        self._node = node
        self._say = say
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def done_by(self) -> list[str]:
        """The Spark masters and application ids that reported."""
        return sorted({str(entry["spark"]) for entry in self.progress})

    def batches(self) -> int:
        return sum(int(entry["batches"]) for entry in self.progress)

    def _run(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            try:
                progress = self._node.view("/v1/split")["last_progress"]
            except NodeFailed:
                continue  # killed or starting, as the story wants it
            if progress is not None and all(progress["timestamp"] != one["timestamp"] for one in self.progress):
                self.progress.append(progress)
                self._tell(progress)

    def _tell(self, progress: dict[str, Any]) -> None:
        took = progress["duration_ms"].get("triggerExecution", 0)
        self._say(
            f"Spark query, trigger {progress['batch_id']}: {progress['slices']} slices, "
            f"{progress['batches']:,} record batches, {progress['bytes'] / 1e6:.1f} MB in {took:,} ms"
        )
