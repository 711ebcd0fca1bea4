"""The leaders of the write groups, as far as this node has heard: of two claims the one with the higher term
holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mainstem.rpc.messages.metadata import WriteGroupLeader


class Leading(NamedTuple):
    node: int
    term: int


class WriteGroupLeaders:
    def __init__(self) -> None:
        self._leaders: dict[int, Leading] = {}

    def learn(self, group: int, node: int, term: int) -> bool:
        """Note that a node leads a write group; returns whether that is news. A term has one leader: a second
        claim for the same term is not believed."""
        known = self._leaders.get(group)
        if known is not None and known.term >= term:
            return False
        self._leaders[group] = Leading(node, term)
        return True

    def learn_all(self, leaders: Iterable[WriteGroupLeader], groups: int) -> bool:
        """Take over another node's list; write groups that do not exist are left out."""
        news = [self.learn(it.group, it.node, it.term) for it in leaders if it.group < groups]
        return any(news)

    def of(self, group: int) -> Leading | None:
        return self._leaders.get(group)

    def all(self) -> Mapping[int, Leading]:
        return dict(self._leaders)

    def told(self) -> list[WriteGroupLeader]:
        """The leaders known here, as they are sent to other nodes."""
        return [WriteGroupLeader(group, it.node, it.term) for group, it in sorted(self._leaders.items())]
