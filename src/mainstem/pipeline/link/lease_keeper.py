"""Keeps a splitter's lease alive from a thread of its own, and knows when it is lost.

It asks a node that does not answer again until the lease must have ended by its own term; a refusal ends it
at once. The splitter checks `lost` and `wanted_by` between its steps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from mainstem.pipeline.link.node_link import NodeLink
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.split import HeldLease, Lease, LeaseLost

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
"""Two renewals may fail before the lease ends."""


class LeaseKeeper:
    """Use as a context manager; leaving it releases the lease, if it is still held."""

    def __init__(self, node: NodeLink, lease: Lease, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.held = HeldLease(lease.lease_id, lease.epoch)
        self.lost = ""
        """Why the lease is gone; empty while it is held."""
        self.wanted_by = ""
        """The other splitter that waits for it; empty when none does."""
        self._node = node
        self._seconds = lease.seconds
        self._monotonic = monotonic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="split-lease", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        if not self.lost:
            try:
                self._node.release(self.held)
            except RpcError as error:
                log.warning("the split lease could not be given back and will run out: %s", error)
        self._node.close()

    def _keep(self) -> None:
        ends = self._monotonic() + self._seconds
        while not self._stop.wait(self._seconds / RENEWALS_PER_LEASE):
            asked = self._monotonic()
            try:
                self.wanted_by = self._node.renew(self.held)
                ends = asked + self._seconds
            except LeaseLost as error:
                self.lost = str(error)
            except RpcError as error:
                log.warning("the split lease could not be renewed: %s", error)
                if self._monotonic() >= ends:
                    self.lost = f"not renewed for {self._seconds:.0f} s: {error}"
            if self.lost:
                return
