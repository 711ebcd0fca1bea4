"""Makes a declared class a frozen, slotted, keyword-only dataclass, cheaply.

`dataclasses` would compile six functions for each of the 150 message classes: half of the import time of the
whole room. Here all classes share those functions that need not know the fields, and the constructor is
compiled when a class is first instantiated. It sets slots through their descriptors, which takes half the
time of a frozen dataclass's constructor. `dataclasses.fields` and `replace`, `copy` and `pickle` work as
usual.

The garbage collector leaves messages out, and the tuples in their arrays: they are frozen, and made after whatever they
hold, so that no cycle leads through them. A long request would else be visited object by object, several times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from mainstem.kernel import untrack

T = TypeVar("T")


def make_message_class(declared: type[T]) -> type[T]:
    """The message class for a class body whose fields are `dataclasses.field`s. One with secrets has a text of its
    own, which does not show them."""
    for name, function in _SHARED_METHODS.items():
        if name != "__repr__" or name not in vars(declared):
            setattr(declared, name, function)
    make = dataclasses.dataclass(slots=True, kw_only=True, init=False, eq=False, repr=False)
    made: type[T] = make(declared)
    return made


def _initialize(self: Any, **values: Any) -> None:
    """Stands in for the constructor until the first call, which compiles it."""
    message_class = self.__class__
    message_class.__init__ = _compile_constructor(message_class)
    message_class.__init__(self, **values)


def _compile_constructor(message_class: type[Any]) -> Callable[..., None]:
    namespace: dict[str, Any] = {"untrack": untrack}
    parameters, lines = [], ["    untrack(self)"]
    for field in dataclasses.fields(message_class):
        name = field.name
        namespace[f"set_{name}"] = getattr(message_class, name).__set__
        lines.append(f"    set_{name}(self, {name})")
        if field.metadata["wire"].is_array:
            lines += [f"    if type({name}) is tuple:", f"        untrack({name})"]
        if field.default is dataclasses.MISSING:
            parameters.append(name)
        else:
            namespace[f"default_{name}"] = field.default
            parameters.append(f"{name}=default_{name}")
    signature = ", ".join(["self", "*", *parameters] if parameters else ["self"])
    exec("\n".join([f"def __init__({signature}):", *lines]), namespace)
    constructor: Callable[..., None] = namespace["__init__"]
    constructor.__qualname__ = f"{message_class.__qualname__}.__init__"
    return constructor


def _refuse_assignment(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _values(instance: Any) -> tuple[Any, ...]:
    return tuple([getattr(instance, name) for name in instance.__slots__])


def _equal(self: Any, other: object) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash(_values(self))


def _repr(self: Any) -> str:
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{self.__class__.__name__}({values})"


def _reduce(self: Any) -> tuple[Any, ...]:
    return _restore, (self.__class__, _values(self))


def _restore(message_class: type[T], values: tuple[Any, ...]) -> T:
    names = message_class.__slots__  # type: ignore[attr-defined]
    return message_class(**dict(zip(names, values, strict=True)))


_SHARED_METHODS: dict[str, Callable[..., Any]] = {
    "__init__": _initialize,
    "__setattr__": _refuse_assignment,
    "__delattr__": _refuse_deletion,
    "__eq__": _equal,
    "__hash__": _hash,
    "__repr__": _repr,
    "__reduce__": _reduce,
}
