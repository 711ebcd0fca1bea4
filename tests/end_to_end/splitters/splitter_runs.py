"""`python -m tests.end_to_end.splitters.splitter_runs`: reads a line "URL OPTIONS" from its standard input, runs a
splitter with these, answers its exit code in a line, and reads the next; `one_spark.py` asks it.

All in one process: most of a splitter's time is the start of its JVM, of its session and of its Python workers, which
then serve all of them, and which begins while the first of them still waits for its lease. A splitter that ends
otherwise than well ends its session, too, and the next one starts another. How sessions begin and end is told by the
splitters that are processes of their own. The answers have standard output for themselves; whatever else is printed
goes to the log.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from pathlib import Path

from pyspark.sql import SparkSession

from mainstem.pipeline import main as application
from mainstem.pipeline.errors import EXIT_DONE
from mainstem.pipeline.spark import session
from mainstem.pipeline.spark.java import Java, require_java


class KeptSession:
    """Stands in for `session_of`, and for `stop_session`, which leaves it as it is."""

    def __init__(self, local_dir: Path) -> None:
        """`local_dir`: Spark's scratch space, which outlives each of the splitters."""
        self._local_dir = local_dir
        self._start, self._stop = application.session_of, session.stop_session
        self._starting = threading.Lock()
        self._spark: SparkSession | None = None
        self._asked: tuple[object, ...] = ()
        """The settings that the session was started with."""

    def session_of(self, options: argparse.Namespace, java: Java, local_dir: Path) -> SparkSession:
        """The one that is there, if it is as asked."""
        asked = options.master, options.driver_memory, *options.conf
        with self._starting:
            if self._spark is None or self._asked != asked:
                self.stop()
                self._spark, self._asked = self._start(options, java, self._local_dir), asked
            return self._spark

    def begin(self, options: argparse.Namespace) -> None:
        """In a thread of its own: whoever asks for the session waits for it."""
        arguments = options, require_java(), self._local_dir
        threading.Thread(target=self.session_of, args=arguments, name="session", daemon=True).start()

    def stop(self) -> None:
        if self._spark is not None:
            self._stop(self._spark)
        self._spark = None


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="splitters-", ignore_cleanup_errors=True) as local_dir:
        kept = KeptSession(Path(local_dir))
        application.session_of = kept.session_of
        session.stop_session = lambda spark: None
        for line in sys.stdin:
            url, *options = line.split()
            arguments = ["--node", url, *options]
            kept.begin(application.parse(arguments))
            code = application.main(arguments)
            if code != EXIT_DONE:
                kept.stop()
            print(code, file=answers)


if __name__ == "__main__":
    main()
