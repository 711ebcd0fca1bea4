"""Shared by all simulations: their surroundings (`light.py`)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.files_in_memory import memory
from tests.simulation.light import seldom_looking_for_garbage


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory, and gone with the test: a seed plays again what failed."""
    with tempfile.TemporaryDirectory(dir=memory()) as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def little_garbage() -> Iterator[None]:
    with seldom_looking_for_garbage():
        yield
