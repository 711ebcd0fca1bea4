"""The systems that are measured, behind one interface: `System.start` gives a `Node`."""

from __future__ import annotations

from pathlib import Path

from bench.systems.kafka import Kafka
from bench.systems.mainstem import Mainstem
from bench.systems.system import System


def all_systems(cache: Path) -> dict[str, System]:
    """By name, in the order in which they take turns. `cache`: where what they download is kept."""
    return {system.name: system for system in (Mainstem(), Kafka(cache))}
