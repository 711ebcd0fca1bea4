"""Whether a program can work at a feature level of the cluster. No I/O."""

from __future__ import annotations

from mainstem.model import LevelRange
from mainstem.nameserver.errors import UnreadableFeatureLevel


def check_own_levels(level: int, own: LevelRange) -> None:
    """Raises `UnreadableFeatureLevel` where this program cannot work in a cluster at this level."""
    if level > own.newest:
        raise UnreadableFeatureLevel(
            f"the cluster is at feature level {level}, this program knows those up to {own.newest}: start this node "
            f"with the version that the others run; nothing was changed"
        )
    if level < own.oldest:
        raise UnreadableFeatureLevel(
            f"the cluster is at feature level {level}, this program works from level {own.oldest} on: start this node "
            f"with the version that the others run, and raise the level there first "
            f"(mainstem cluster feature-level --raise)"
        )


def check_levels_of(node_id: int, levels: LevelRange, level: int) -> None:
    """Raises `UnreadableFeatureLevel` where a node that wants to join cannot work at the cluster's level."""
    if not levels.includes(level):
        raise UnreadableFeatureLevel(
            f"the cluster is at feature level {level}, node {node_id} can work at {span(levels)}: start it with "
            f"the version that the others run"
        )


def span(levels: LevelRange) -> str:
    if levels.oldest == levels.newest:
        return f"level {levels.oldest} only"
    return f"levels {levels.oldest} to {levels.newest}"
