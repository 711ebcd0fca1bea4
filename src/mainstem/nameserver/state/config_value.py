"""The type and bounds of a config's value, and how it is read from the string that clients send.

`DeclaredConfig.parse` is the only way from a string to a value; it raises `InvalidConfig` naming the key, the
value and what is allowed.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from mainstem.nameserver.errors import InvalidConfig

VALUE_LENGTH_MAX = 32_767  # what a string of Kafka's older protocol versions can carry
INT_MAX = 0x7FFF_FFFF
LONG_MAX = 0x7FFF_FFFF_FFFF_FFFF
LONG_MIN = -LONG_MAX - 1
NAME_SHOWN_MAX = 100

Value = bool | int | float | str | tuple[str, ...]

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?")


NAMED_MAX = 8
"""Configs that a refusal names: clients keep some five hundred characters of it, and show it cut off."""


def unknown_config(what: str, name: str, known: Iterable[str]) -> InvalidConfig:
    """The refusal of a name that is not `known`. It names those that share the most parts between dots with it."""
    parts = set(name[:NAME_SHOWN_MAX].split("."))
    shared = {each: len(parts & set(each.split("."))) for each in known}
    most = max(shared.values())
    near = [each for each, count in shared.items() if count == most]
    named = ", ".join(near[:NAMED_MAX])
    others = len(shared) - len(near[:NAMED_MAX])
    rest = f" and {others} others" if others > 1 else " and another" if others else ""
    return InvalidConfig(f"unknown {what} {name[:NAME_SHOWN_MAX]!r}; known are {named}{rest}")


class ConfigType(enum.Enum):
    """Types of config values, with the codes Kafka's DescribeConfigs uses."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredConfig:
    """One config under Kafka's name.

    `choices` bounds strings and the items of lists (empty: anything), `minimum` and `maximum` bound numbers,
    both inclusive; of the whole numbers between them those that are `refused` are not allowed, either. `broker_names`
    are Kafka's broker configs of the same meaning. `without_effect` says why a config that is accepted only for the
    sake of tools does nothing; None: the config has an effect.
    """

    name: str
    type: ConfigType
    default: str
    documentation: str
    choices: tuple[str, ...] = ()
    minimum: float = LONG_MIN
    maximum: float = LONG_MAX
    refused: tuple[int, ...] = ()
    broker_names: tuple[str, ...] = ()
    without_effect: str | None = None

    @property
    def help(self) -> str:
        """The documentation, and the reason where the config has no effect."""
        if self.without_effect is None:
            return self.documentation
        return f"{self.documentation} No effect here: {self.without_effect}"

    def parse(self, text: str) -> Value:
        if len(text) > VALUE_LENGTH_MAX:
            raise InvalidConfig(f"{self.name}: a value of {len(text)} characters, at most {VALUE_LENGTH_MAX}")
        value = self._read(text.strip())
        if value is None:
            raise InvalidConfig(f"{self.name}={text!r} is not allowed: it takes {self.allowed()}")
        return value

    def allowed(self) -> str:
        """The allowed values, in words for an error message."""
        match self.type:
            case ConfigType.BOOLEAN:
                return "true or false"
            case ConfigType.STRING:
                return "one of " + ", ".join(self.choices) if self.choices else "any text"
            case ConfigType.LIST:
                listed = "a comma-separated list"
                return f"{listed} of {', '.join(self.choices)}" if self.choices else listed
            case ConfigType.DOUBLE:
                return f"a number from {self.minimum:g} to {self.maximum:g}"
            case _:
                but = f", but for {', '.join(map(str, self.refused))}" if self.refused else ""
                return f"a whole number from {self.minimum} to {self.maximum}{but}"

    def _read(self, text: str) -> Value | None:
        match self.type:
            case ConfigType.BOOLEAN:
                return {"true": True, "false": False}.get(text.lower())
            case ConfigType.STRING:
                return text if not self.choices or text in self.choices else None
            case ConfigType.LIST:
                return self._read_list(text)
            case ConfigType.DOUBLE:
                number = float(text) if _DECIMAL.fullmatch(text) else math.nan
                return number if self.minimum <= number <= self.maximum else None
            case _:
                whole = int(text) if _INTEGER.fullmatch(text) else None
                allowed = whole is not None and self.minimum <= whole <= self.maximum and whole not in self.refused
                return whole if allowed else None

    def _read_list(self, text: str) -> tuple[str, ...] | None:
        items = tuple(item.strip() for item in text.split(",")) if text else ()
        if not all(items) or (self.choices and not set(items) <= set(self.choices)):
            return None
        return tuple(dict.fromkeys(items))
