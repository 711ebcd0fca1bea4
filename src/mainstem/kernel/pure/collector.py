"""Objects that the garbage collector need not visit.

The collector looks for cycles of objects that hold each other. It visits every object that could be part of one, again
and again while that lives: a hundred thousand objects for ten milliseconds. An object that cannot be part of a cycle
(whatever it holds was there before it, and it never changes) is freed with the last reference to it, whether or not it
is visited. Here only the compiled twin can do something about it: the interpreter has no such call for Python code.
"""

from __future__ import annotations


def untrack(thing: object, /) -> None:
    """Have the garbage collector leave this object out for good, if that is possible; nothing for one that it never
    visits. The caller answers for it that the object is in no cycle, now and later.

    Instances of classes, tuples, dictionaries, sets and deques only: functions, bound methods and views cannot be freed
    unless the collector visits them, and the process dies."""
