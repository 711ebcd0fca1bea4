"""Which principal a certificate's subject stands for: Kafka's `ssl.principal.mapping.rules`.

A rule is `DEFAULT` (the subject as it is) or `RULE:pattern/replacement/` with an `L` or a `U` behind it for small
letters or capitals. The first rule whose pattern matches the whole subject counts; `$1` in a replacement is the
pattern's first group. A subject that no rule matches has no principal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from mainstem.errors import ConfigError

DEFAULT = "DEFAULT"
_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_BACK_REFERENCE = re.compile(r"\\(.)|\$(\d)")

_CASES: dict[str, Callable[[str], str]] = {"L": str.lower, "U": str.upper, "": str}

Rule = Callable[[str], str | None]
"""From a subject to a name; None: the rule does not match."""


class PrincipalMapping:
    def __init__(self, rules: Sequence[str]) -> None:
        """Raises ConfigError naming the rule that cannot be read."""
        self._rules = [_rule(text.strip()) for text in rules]

    def principal(self, subject: str) -> str | None:
        """`User:` and the name of a subject; None: no rule matches it."""
        for rule in self._rules:
            name = rule(subject)
            if name is not None:
                return f"User:{name}"
        return None


def _rule(text: str) -> Rule:
    if text == DEFAULT:
        return lambda subject: subject
    found = _RULE.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"principal_mapping_rules: {text!r} is no rule; it takes DEFAULT or RULE:pattern/replacement/"
        )
    try:
        pattern = re.compile(found[1])
    except re.error as error:
        raise ConfigError(f"principal_mapping_rules: {text!r} has no regular expression: {error}") from None
    replacement = found[2]
    for reference in _BACK_REFERENCE.finditer(replacement):
        if reference[2] and int(reference[2]) > pattern.groups:
            raise ConfigError(f"principal_mapping_rules: {text!r} has no group {reference[2]}")
    case = _CASES[found[3]]

    def apply(subject: str) -> str | None:
        match = pattern.fullmatch(subject)
        if match is None:
            return None
        filled = _BACK_REFERENCE.sub(lambda part: part[1] or match[int(part[2])] or "", replacement)
        return case(filled)

    return apply
