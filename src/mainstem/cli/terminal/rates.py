"""Quotas for people."""

from __future__ import annotations

from mainstem.cli.terminal.output import size
from mainstem.security.quotas.quota import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE


def rate_text(key: str, value: float) -> str:
    if key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE):
        return f"{size(int(value))}/s"
    return f"{value:g} %" if key == REQUEST_PERCENTAGE else f"{value:g}/s"
