"""Moves of queues that a test says are possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mainstem.model import WriteGroupBurdens
from mainstem.nameserver.errors import InvalidPlacement, MoveBegun, NotMoving


class FakeQueueMoves:
    """`ports.QueueMoves`. Tests may set `placed` (by write group), `moving` (by slot), `behind` (the write groups that
    a slot has left), `busy` (bytes per second by write group), `refuse` (what becomes of a move), `late` (the slots
    whose moves cannot be taken back any more) and `makes` (whether write groups are made); they read `begun`, `beside`
    (what was named beside each), and `asked_for_burdens`."""

    def __init__(self) -> None:
        self.placed: dict[int, tuple[int, ...]] = {}
        self.moving: dict[int, int] = {}
        self.behind: dict[int, tuple[int, ...]] = {}
        self.busy: dict[int, float] = {}
        self.queues = 1
        self.refuse: Callable[[str, int, int], None] = lambda topic, partition, group: None
        self.begun: list[tuple[str, int, int]] = []
        self.beside: list[list[tuple[str, int]]] = []
        self.asked_for_burdens = 0
        self.late: set[int] = set()
        self.makes = False

    def placements(self) -> dict[int, tuple[int, ...]]:
        return self.placed

    def under_way(self) -> dict[int, int]:
        return self.moving

    def left(self, slot: int) -> tuple[int, ...]:
        return self.behind.get(slot, ())

    async def burdens(self) -> WriteGroupBurdens:
        self.asked_for_burdens += 1
        return WriteGroupBurdens(self.busy, dict.fromkeys(self.placed, 1), self.queues)

    async def move(self, topic: str, partition: int, group: int, beside: Sequence[tuple[str, int]] = ()) -> None:
        self.refuse(topic, partition, group)
        self.begun.append((topic, partition, group))
        self.beside.append(list(beside))

    async def make_group(self, node_ids: Sequence[int]) -> None:
        if not self.makes:
            raise InvalidPlacement("there are enough")
        self.placed[len(self.placed)] = tuple(node_ids)

    async def take_back(self, slot: int) -> None:
        if slot in self.late:
            raise MoveBegun("it is too late")
        if self.moving.pop(slot, None) is None:
            raise NotMoving("it is there")
