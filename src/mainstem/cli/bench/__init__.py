"""`mainstem bench`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="bench",
    help="Put load on any Kafka-compatible node and measure it.",
    commands_by_name={
        "produce": LazyCommand("mainstem.cli.bench.produce", "Send records as fast as they go, or at a rate."),
        "consume": LazyCommand("mainstem.cli.bench.consume", "Read a topic as fast as it goes."),
        "latency": LazyCommand("mainstem.cli.bench.latency", "Time records from being due to being read."),
    },
)
