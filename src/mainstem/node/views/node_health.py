"""Says whether this node should be restarted, and whether it should get traffic."""

from __future__ import annotations

from mainstem.nameserver.nameserver import Nameserver
from mainstem.storage.role import Storage
from mainstem.supervised import Supervision


class NodeHealth:
    """`ready` is set by the node once it accepts clients."""

    def __init__(self, nameserver: Nameserver, storage: Storage, supervision: Supervision) -> None:
        self._nameserver = nameserver
        self._storage = storage
        self._supervision = supervision
        self.ready = False

    def not_alive(self) -> str | None:
        if self._supervision.lost:
            return self._supervision.why_not()
        return None

    def not_ready(self) -> str | None:
        if (reason := self._supervision.why_not()) is not None:
            return reason
        if (failure := self._nameserver.failure) is not None:
            return f"the metadata failed: {failure}"
        if self._storage.failure is not None:
            return f"disk 1 failed: {self._storage.failure}"
        if self.ready and (waiting := self._storage.rejoining.not_back()):
            states = ", ".join(f"{number} ({state})" for number, state in waiting.items())
            return f"{self._storage.rejoining.why}: has no vote in write groups {states}"
        return None if self.ready else "starting"

    def waiting(self) -> dict[int, str]:
        return self._storage.waiting.reasons()
