"""A row of a fetch plan: one partition that a reader asks for. Pure-Python twin of the compiled row."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.kernel.layout import Verdict
from mainstem.model import Buffer

FetchKey = str | bytes
"""A topic as the request names it: by name, or by the 16 bytes of its id."""


class PlanTopic:
    """A topic of the plan."""

    __slots__ = ("key", "spread")

    def __init__(self, key: FetchKey) -> None:
        self.key = key
        self.spread = False
        """Whether its readers are spread over replicas."""


class PlanRow:
    """One partition: the request, its outcome in this round, and the last answer to the reader."""

    __slots__ = (
        "aborted",
        "ahead",
        "bytes_max",
        "current_leader_epoch",
        "diverging",
        "fetch_offset",
        "high_watermark",
        "last_fetched_epoch",
        "last_stable",
        "log_start",
        "nearer",
        "next_offset",
        "partition",
        "queue_id",
        "records",
        "settled",
        "size",
        "told_error",
        "told_high_watermark",
        "told_log_start",
        "topic",
        "verdict",
    )

    def __init__(
        self,
        topic: PlanTopic,
        partition: int,
        fetch_offset: int,
        bytes_max: int,
        current_leader_epoch: int,
        last_fetched_epoch: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.ask(fetch_offset, bytes_max, current_leader_epoch, last_fetched_epoch)
        self.told_error = False
        self.told_high_watermark = -1
        self.told_log_start = -1
        self.queue_id = 0
        self.reset(Verdict.OK)

    def ask(self, fetch_offset: int, bytes_max: int, current_leader_epoch: int, last_fetched_epoch: int) -> None:
        self.fetch_offset = fetch_offset
        self.bytes_max = bytes_max
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch

    def reset(self, verdict: int) -> None:
        self.settled = verdict != Verdict.OK
        self.verdict = verdict
        self.high_watermark = -1
        self.log_start = -1
        self.last_stable = -1
        self.next_offset = -1
        self.aborted: Sequence[tuple[int, int]] = ()
        """Producer and first offset of each aborted transaction among the batches."""
        self.records: Sequence[Buffer] = ()
        self.size = 0
        self.diverging: tuple[int, int] | None = None
        """Epoch and end offset where the reader's history left the queue's."""
        self.ahead = False
        """Whether the reader is beyond what this follower has applied."""
        self.nearer = -1
        """The node that the reader is sent to for it; -1: none."""

    @property
    def is_news(self) -> bool:
        return (
            self.size > 0
            or self.verdict != Verdict.OK
            or self.told_error
            or self.high_watermark != self.told_high_watermark
            or self.log_start != self.told_log_start
            or self.diverging is not None
            or self.nearer >= 0
        )

    def tell(self) -> None:
        self.told_error = self.verdict != Verdict.OK
        self.told_high_watermark = self.high_watermark
        self.told_log_start = self.log_start
