"""Facts about the node that the broker tells clients and cannot know by itself: the disks, and the node's
defaults of topic configs. The node hands them in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mainstem.ports import Files


class LogDir(NamedTuple):
    """A place where messages lie, as it was configured (a path or a URI). `files` tells how full it is; None
    where that is not known."""

    location: str
    files: Files | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """Kafka's topic config names → the node's defaults, where they differ from Kafka's."""

    listeners: tuple[str, ...] = ()
    """HOST:PORT of each."""

    advertised: str = ""
    """The HOST:PORT that clients are given."""

    rack: str = ""

    replication_factor: int = 1
    """Copies that the cluster keeps of every topic, as far as it has nodes for them."""

    write_dir: LogDir | None = None
    """Disk 1; None when this node does not store messages itself."""

    store_dir: LogDir | None = None
    """Disk 2 or the object store."""
