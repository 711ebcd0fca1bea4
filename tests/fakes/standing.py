"""How a cluster stands, as a test says."""

from __future__ import annotations

from collections.abc import Callable

from mainstem.errors import MainstemError
from mainstem.model import LogPosition, MoveUnderWay, QuorumStanding


class FakeStanding:
    """`ports.ClusterStanding`. Tests may set `quorum`, `addresses`, `under_way`, `replicas` (by write group) and
    `refuse` (what every question raises) and `leads` (what becomes of a write group that is to be led by a node)."""

    def __init__(self) -> None:
        self.quorum = QuorumStanding(1, 3, 9, (LogPosition(1, 10, 5_000, 5_000),), ())
        self.addresses = {1: ("127.0.0.1", 9093)}
        self.under_way: list[MoveUnderWay] = []
        self.replicas: dict[int, tuple[int, ...]] = {}
        self.leads: Callable[[int, int], None] = lambda group, node_id: None
        self.refuse: MainstemError | None = None

    async def metadata_quorum(self) -> QuorumStanding:
        if self.refuse is not None:
            raise self.refuse
        return self.quorum

    async def moves(self) -> list[MoveUnderWay]:
        if self.refuse is not None:
            raise self.refuse
        return self.under_way

    def placed(self, group: int) -> tuple[int, ...]:
        return self.replicas.get(group, ())

    async def lead(self, group: int, node_id: int) -> None:
        self.leads(group, node_id)

    def address(self, node_id: int) -> tuple[str, int] | None:
        return self.addresses.get(node_id)
