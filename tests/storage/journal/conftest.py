"""Coroutine tests of this directory run on an event loop of their own."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from tests.harness.patience import PATIENCE_SECONDS


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), PATIENCE_SECONDS))
    return True
