"""Quotas as commands take them: a rate each, or `none` to remove it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import click

from mainstem.cli.parameters.options import OptionType
from mainstem.quantities import bytes_of
from mainstem.security.quotas.quota import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)

NONE = "none"


class Rate(NamedTuple):
    """A quota's new value; None: it goes."""

    value: float | None


class RateType(OptionType[Rate]):
    """A number greater than 0, or `none`; of bytes a size such as 10MB as well."""

    def __init__(self, *, sizes: bool) -> None:
        self.name = "SIZE" if sizes else "NUMBER"
        self._sizes = sizes

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Rate:
        text = str(value).removesuffix("/s")
        if text == NONE:
            return Rate(None)
        try:
            rate = float(bytes_of(text)) if self._sizes else float(text)
        except ValueError as error:
            self.fail(str(error), param, context)
        if not rate > 0:
            self.fail(f"{text}: a quota is greater than 0; {NONE} removes it", param, context)
        return Rate(rate)


OPTIONS = {
    "produce_rate": (PRODUCER_BYTE_RATE, RateType(sizes=True), "Bytes of Produce requests per second"),
    "consume_rate": (CONSUMER_BYTE_RATE, RateType(sizes=True), "Bytes of fetched batches per second"),
    "request_percentage": (REQUEST_PERCENTAGE, RateType(sizes=False), "Percent of the time of a node's event loop"),
    "mutation_rate": (CONTROLLER_MUTATION_RATE, RateType(sizes=False), "Partitions created and deleted per second"),
    "connection_rate": (CONNECTION_CREATION_RATE, RateType(sizes=False), "New connections per second"),
}


def quota_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each quota; `changes_of` makes changes of them."""
    for name, (_, kind, what) in reversed(OPTIONS.items()):
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, name, type=kind, help=f"{what}; {NONE} removes the quota.")(command)
    return command


def changes_of(given: Mapping[str, Rate | None]) -> dict[str, float | None]:
    """By key of the quota its new value, None to remove it, of the options that were given."""
    return {OPTIONS[name][0]: rate.value for name, rate in given.items() if rate is not None}
