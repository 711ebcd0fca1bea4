"""A request that has begun during its dispatch and needs no task to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from mainstem.model import AppendResult

R = TypeVar("R")


class Started(NamedTuple, Generic[R]):
    """`finish` makes the response (None: there is none) once `future` is done, or at once without a future.
    It may raise UnanswerableRequest, which closes the connection."""

    future: asyncio.Future[list[AppendResult]] | None
    finish: Callable[[list[AppendResult]], R | None]
