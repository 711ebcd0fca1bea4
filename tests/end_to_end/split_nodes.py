"""`python -m tests.end_to_end.split_nodes URL…`: `mainstem split run --once` for each of several nodes.

One after the other in one process: most of a splitter's time is the start of its JVM, which then serves all of them.
"""

from __future__ import annotations

import sys

from mainstem.pipeline.errors import EXIT_DONE
from mainstem.pipeline.main import main

if __name__ == "__main__":
    for url in sys.argv[1:]:
        if code := main(["--node", url, "--once"]):
            sys.exit(code)
    sys.exit(EXIT_DONE)
