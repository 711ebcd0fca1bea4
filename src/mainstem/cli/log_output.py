"""The node's log on stderr: lines for people, or one JSON object per line for programs."""

from __future__ import annotations

import json
import logging
import time

_QUIET = ("uvicorn", "asyncio")
"""Libraries whose information is noise beside ours; their warnings stay."""


def log_to_stderr(form: str, level: str) -> None:
    """Send the process's log to stderr. `form` is 'text' or 'json'."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00.123 INFO  storage.recovery: message`, UTC."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(room)s: %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.room = record.name.removeprefix("mainstem.")
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """Keys: time (ms since the epoch), level, logger, message, and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
