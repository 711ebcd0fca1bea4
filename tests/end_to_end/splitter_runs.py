"""`python -m tests.end_to_end.splitter_runs "URL OPTIONS"…`: splitters one after the other, for several nodes or
several times for one.

All in one process: most of a splitter's time is the start of its JVM, which then serves all of them.
"""

from __future__ import annotations

import sys

from mainstem.pipeline.errors import EXIT_DONE
from mainstem.pipeline.main import main

if __name__ == "__main__":
    for url, *options in map(str.split, sys.argv[1:]):
        if code := main(["--node", url, *options]):
            sys.exit(code)
    sys.exit(EXIT_DONE)
