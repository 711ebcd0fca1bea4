"""`python -m tests.end_to_end.splitter_runs`: reads a line "URL OPTIONS" from its standard input, runs a splitter with
these, answers its exit code in a line, and reads the next; `one_spark.py` asks it.

All in one process: most of a splitter's time is the start of its JVM, which then serves all of them. The answers have
standard output for themselves; whatever else is printed goes to the log.
"""

from __future__ import annotations

import os
import sys

from mainstem.pipeline.main import main

if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        url, *options = line.split()
        print(main(["--node", url, *options]), file=answers)
