"""The base of our own types of options: `click.ParamType`, which newer versions of click have as a generic class.

`OptionType[int]` tells type checkers what an option becomes; at run time it is the class alone, with any version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click import ParamType as OptionType
else:

    class OptionType(click.ParamType):
        def __class_getitem__(cls, kind: Any) -> type[OptionType]:
            return cls


__all__ = ["OptionType"]
