"""Says whether this node should be restarted, and whether it should get traffic."""

from __future__ import annotations

from mainstem.nameserver.nameserver import Nameserver
from mainstem.storage.role import Storage
from mainstem.supervised import Supervision


class NodeHealth:
    """`ready` is set by the node once it accepts clients; `storage` is None where the node has none."""

    def __init__(self, nameserver: Nameserver, storage: Storage | None, supervision: Supervision) -> None:
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
        if self._storage is not None and (reason := self._storage_fault(self._storage)) is not None:
            return reason
        return None if self.ready else "starting"

    def _storage_fault(self, storage: Storage) -> str | None:
        if storage.failure is not None:
            return f"disk 1 failed: {storage.failure}"
        if self.ready and (waiting := storage.rejoining.not_back()):
            states = ", ".join(f"{number} ({state})" for number, state in waiting.items())
            return f"{storage.rejoining.why}: has no vote in write groups {states}"
        return None

    def waiting(self) -> dict[int, str]:
        return self._storage.waiting.reasons() if self._storage is not None else {}
