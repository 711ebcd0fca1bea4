"""Frees long messages in slices, some elements at a time.

A message of a hundred thousand elements is as many objects, and freeing all of them with the last reference to it
would hold the event loop for ten milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from operator import attrgetter
from typing import Any

from mainstem.protocol.schema import ArrayKind, find_declaration

ELEMENTS_PER_SLICE = 2_000
"""Half a millisecond."""

_NUMBERS_PER_ELEMENT = 8
"""So many names or numbers are freed in the time of an element with fields of its own."""


def let_go_in_slices(messages: list[Any]) -> Generator[None, None, None]:
    """Empty a list of messages, and with them their arrays: a generator that yields whenever about half a
    millisecond has passed. The list must have the only references to the messages."""
    done = 0
    while messages:
        part = messages.pop()
        if type(part) is tuple:
            messages += part
            done += len(part) // _NUMBERS_PER_ELEMENT
        else:
            for arrays_of in _arrays(type(part)):
                array = arrays_of(part)
                if type(array) is tuple and array:
                    messages.append(array)
                array = None
            done += 1
        part = None
        if done >= ELEMENTS_PER_SLICE:
            done = 0
            yield


def _arrays(message_class: type[Any]) -> tuple[Callable[[Any], Any], ...]:
    """The getters of a message's arrays; none for a class that is no message."""
    found = _getters.get(message_class)
    if found is None:
        declaration = find_declaration(message_class)
        fields = () if declaration is None else declaration.fields
        found = tuple(attrgetter(field.name) for field in fields if isinstance(field.kind, ArrayKind))
        _getters[message_class] = found
    return found


_getters: dict[type[Any], tuple[Callable[[Any], Any], ...]] = {}
"""Per class: as many as are declared, and the few kinds of values."""
