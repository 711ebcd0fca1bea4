"""Chooses a node's event loop: uvloop where it is installed (it comes with Mainstem where it is available), else
asyncio's own. A node cannot tell the two apart except by speed; tests run on either and on a simulated one.

The variable MAINSTEM_LOOP chooses: `auto` (the default), `uvloop`, `asyncio`.
"""

from __future__ import annotations

import asyncio
import os

from mainstem.errors import ConfigError

LOOP_VARIABLE = "MAINSTEM_LOOP"


def chosen_loop() -> str:
    """`uvloop` or `asyncio`. Raises ConfigError for a choice that cannot be met."""
    choice = os.environ.get(LOOP_VARIABLE, "auto")
    if choice not in ("auto", "uvloop", "asyncio"):
        raise ConfigError(f"{LOOP_VARIABLE}={choice!r}: choose auto, uvloop or asyncio")
    if choice == "asyncio":
        return choice
    try:
        import uvloop  # noqa: F401
    except ImportError as error:
        if choice == "uvloop":
            raise ConfigError(f"{LOOP_VARIABLE}=uvloop, but it cannot be loaded ({error}); install it") from error
        return "asyncio"
    return "uvloop"


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of the chosen kind. Raises ConfigError."""
    if chosen_loop() == "asyncio":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()
