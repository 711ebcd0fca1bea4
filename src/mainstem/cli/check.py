"""The findings of `mainstem doctor`, one line each."""

from __future__ import annotations

import enum
from typing import NamedTuple


class CheckState(enum.Enum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Check(NamedTuple):
    name: str
    state: CheckState
    found: str
    advice: str = ""
