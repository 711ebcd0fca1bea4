"""Which node one is, of which cluster, and on which host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec

NODE = "node"
CLIENT = "client"

ANY_NODE = -1
"""The caller accepts any node at this address."""

INCARNATION_BYTES = 16


class Identity(msgspec.Struct, frozen=True):
    """A node of a cluster. `incarnation` is made with the node's write directory: it tells apart two nodes
    that were given the same id by mistake, and a node that lost its disk from what it was before."""

    cluster_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    node_id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    incarnation: Annotated[bytes, msgspec.Meta(min_length=INCARNATION_BYTES, max_length=INCARNATION_BYTES)]

    def __str__(self) -> str:
        return f"node {self.node_id} of cluster {self.cluster_id!r}"


def host_identity() -> str:
    """A name for this running kernel and this process's view of the file system (its mount namespace): two containers
    on one machine differ, two processes side by side do not. Empty where the kernel does not tell; callers then treat
    every other process as remote."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/mnt')}"
    except OSError:
        return ""
