"""The allowance under which files of a disk are worked on beside the node that serves from it: whoever does long work
asks for the bytes before it goes on with them, and waits until the node can spare the disk and the processor."""

from __future__ import annotations

from collections.abc import Callable

Allowance = Callable[[int], None]
"""Returns when so many bytes may be worked on."""


def unlimited(size: int) -> None:
    """The allowance of work that nobody waits for."""
