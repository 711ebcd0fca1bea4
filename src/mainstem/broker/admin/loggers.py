"""The loggers of a node's process, as Kafka's resource BROKER_LOGGER: which there are, and their levels.

Levels hold until the process ends, as in Kafka. Kafka's names stand for Python's levels: FATAL for CRITICAL, WARN for
WARNING; TRACE is DEBUG, since there is nothing below it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

ROOT = "root"
LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}
_KAFKAS = {logging.CRITICAL: "FATAL", logging.ERROR: "ERROR", logging.WARNING: "WARN", logging.INFO: "INFO"}
_OWN = "mainstem"


def levels() -> Iterator[tuple[str, str]]:
    """Every logger of ours, and the root of all, with the level that it goes by."""
    yield ROOT, _kafkas(logging.getLogger())
    for name in sorted(_names()):
        yield name, _kafkas(logging.getLogger(name))


def fault_of(changes: Mapping[str, str | None]) -> str | None:
    """Says in words what is wrong with changes of levels (None: the level of the logger around it)."""
    known = {ROOT, _OWN, *_names()}
    for name, level in changes.items():
        if name not in known:
            return f"there is no logger {name[:100]!r} on this node"
        if level is not None and level not in LEVELS:
            return f"logger {name}: there is no level {level[:20]!r}; it is one of {', '.join(LEVELS)}"
    return None


def change(changes: Mapping[str, str | None]) -> None:
    """Set levels that were checked."""
    for name, level in changes.items():
        logger = logging.getLogger() if name == ROOT else logging.getLogger(name)
        logger.setLevel(logging.NOTSET if level is None else LEVELS[level])


def _names() -> Sequence[str]:
    """Of modules, and of the rooms around them."""
    return [name for name in logging.Logger.manager.loggerDict if name == _OWN or name.startswith(f"{_OWN}.")]


def _kafkas(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    return next((name for least, name in _KAFKAS.items() if level >= least), "DEBUG")
