"""What the garbage collector need not visit; see the twin."""

from cpython.ref cimport PyObject

cdef extern from "Python.h":
    int is_collected "PyObject_IS_GC"(PyObject *thing) noexcept
    void gc_untrack "PyObject_GC_UnTrack"(PyObject *thing) noexcept


def untrack(thing, /):
    """Have the garbage collector leave this object out for good; nothing for one that it never visits."""
    if is_collected(<PyObject *> thing):
        gc_untrack(<PyObject *> thing)
