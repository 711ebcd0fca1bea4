"""The durations and errors of requests, by API, for `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate

from mainstem.broker.errors import ERROR_NAMES
from mainstem.model import HistogramSample, Sample

BOUNDS_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, float("inf"))
"""Seconds: from a request served in memory to a consumer group that waits for its members."""


NONE: Mapping[int, int] = {}


class ApiLatency:
    """The requests of one API. Only the event loop writes it, so readers need no lock."""

    __slots__ = ("api", "counts", "errors", "seconds")

    def __init__(self, api: str) -> None:
        self.api = api
        self.counts = [0] * len(BOUNDS_SECONDS)
        self.seconds = 0.0
        self.errors: Counter[int] = Counter()

    def observe(self, seconds: float, errors: Mapping[int, int] = NONE, requests: int = 1) -> None:
        """Each of `requests` requests took `seconds`; `errors`: how often each error was answered."""
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += requests
        self.seconds += seconds * requests
        if errors:
            for error, count in errors.items():
                self.errors[error] += count

    def samples(self) -> Iterable[Sample | HistogramSample]:
        label = ("api", self.api)
        yield HistogramSample(
            "mainstem_request_seconds",
            "From the dispatch of a request to its response.",
            BOUNDS_SECONDS,
            tuple(accumulate(self.counts)),
            self.seconds,
            (label,),
        )
        for error, count in dict(self.errors).items():
            labels = (label, ("error", ERROR_NAMES.get(error, str(error))))
            yield Sample("mainstem_request_errors_total", "counter", "Errors answered.", count, labels)
