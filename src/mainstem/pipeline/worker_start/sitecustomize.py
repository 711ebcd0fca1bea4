"""Each Python process that Spark starts beside a node, or beside a driver elsewhere, runs this before anything else
(`session.start_session` puts this directory on their path).

Spark has its workers import pyspark from a zip of sources, which each of them compiles anew: a second of processor
time per process. If the zip belongs to an installed pyspark, this module has them import the installed modules, which
are compiled already. If it hides another module of its name, it runs that one afterwards.
"""

import os
import sys

_ZIPS = os.path.join("", "pyspark", "python", "lib", "")


def _installed(entry: str) -> bool:
    """Whether this entry of the path is a zip of a pyspark whose package is on the path as well."""
    root, inside, name = entry.rpartition(os.sep + _ZIPS)
    return bool(inside) and name.endswith(".zip") and root in sys.path


_own = sys.modules[__name__]
sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(__file__) and not _installed(entry)]
del sys.modules[__name__]
try:
    __import__(__name__)
except ModuleNotFoundError as _error:
    if _error.name != __name__:
        raise
    sys.modules[__name__] = _own
