"""The ways in which a splitter ends."""

from __future__ import annotations

import enum


class Ended(enum.Enum):
    """Why a splitter ended, other than by an error."""

    DONE = "all that was there at the start is done"
    STOPPED = "asked to stop"
    YIELDED = "another splitter asked for the lease"
    LEASE_LOST = "the lease was lost"
