"""Shared by the whole suite: how long Hypothesis searches, what a failed test shows of its nodes, what a file may leave
open, and in which order workers take the files (`files_for_workers.py` hands them out).

`make test` runs five workers, each of which takes one file after the other. The files that took longest when they were
recorded come first, so that the workers end together. `pytest … --record-seconds` records anew.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.end_to_end.processes import Commands
from tests.end_to_end.splitters.one_spark import OneSpark
from tests.examples import EXAMPLES_AT_EACH_CHANGE, EXAMPLES_AT_LENGTH
from tests.files_for_workers import pytest_internalerror as pytest_internalerror
from tests.files_for_workers import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from tests.harness.free_port import claims_held
from tests.harness.serving import reports

AT_LENGTH, AT_EACH_CHANGE = "at length", "at each change"
"""How many examples Hypothesis makes up: without the tests marked `long`, a third of them, and the same ones
in every run of the same code, so that a change is judged by what it changes. New ones are looked for at length."""
for name, number in ((AT_LENGTH, EXAMPLES_AT_LENGTH), (AT_EACH_CHANGE, EXAMPLES_AT_EACH_CHANGE)):
    settings.register_profile(
        name,
        max_examples=number,
        derandomize=name == AT_EACH_CHANGE,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )

ROOT = Path(__file__).parents[1]
SECONDS_OF_FILES = Path(__file__).with_name("seconds_of_files.json")
"""File, relative to the root, → seconds that its tests took when they were recorded, all together. Only the order
counts."""
SECONDS_OF_UNKNOWN = 2.0
"""Files that were never recorded come last: most are short."""

DESCRIPTORS = Path("/proc/self/fd")
DESCRIPTORS_LEFT_MAX = 50
"""Libraries keep some for good: pools, selectors, files of the machine. Descriptors that tests leave add up over all
files of a worker, until a `select` fails that knows no descriptor above 1,023, in a test that has nothing to do with
it."""

CLOSING_SECONDS = 10
"""Clients that nobody holds any more end their threads, which close connections, after they have been collected."""

GARBAGE_THRESHOLDS = 10_000, 20, 50
"""As often as Python looks by itself, it takes a tenth of the time of tests that start no process."""

REASON_CHARACTERS_MAX = 300

_BEGAN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-seconds", action="store_true", help=f"write to tests/{SECONDS_OF_FILES.name} how long each file took"
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(AT_EACH_CHANGE if config.option.markexpr == "not long" else AT_LENGTH)
    if config.getoption("--record-seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondsOfFiles())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files for workers; who runs tests in one process gets them in the order asked for."""
    if hasattr(config, "workerinput"):
        seconds = json.loads(SECONDS_OF_FILES.read_text())
        items.sort(key=lambda item: -seconds.get(item.path.relative_to(ROOT).as_posix(), SECONDS_OF_UNKNOWN))


def pytest_collection_finish() -> None:
    """Tests and modules are there for good: whoever looks for garbage passes them by, and looks less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


class SecondsOfFiles:
    """Sums up how long the tests of each file took, wherever they ran."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.split("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        known = json.loads(SECONDS_OF_FILES.read_text()) if SECONDS_OF_FILES.exists() else {}
        known |= {file: round(seconds, 1) for file, seconds in self._seconds.items()}
        there = {file: seconds for file, seconds in sorted(known.items()) if (ROOT / file).exists()}
        SECONDS_OF_FILES.write_text(json.dumps(there, indent=1) + "\n")


@pytest.fixture(scope="module", autouse=True)
def few_descriptors_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A file closes what it opens: its last test errs where too much is open, after all fixtures of the file."""
    before = len(open_descriptors())
    claims = claims_held()
    yield
    before += claims_held() - claims  # those stay until the process ends
    deadline = time.monotonic() + CLOSING_SECONDS
    while len(open_descriptors()) - before > DESCRIPTORS_LEFT_MAX and time.monotonic() < deadline:
        gc.unfreeze()  # a node that ran in this process froze what was old then
        gc.collect()
        time.sleep(0.1)
    left = open_descriptors()
    if len(left) - before > DESCRIPTORS_LEFT_MAX:
        most = Counter(left).most_common(8)
        pytest.fail(f"{request.path.name} found {before} descriptors open and leaves {len(left)}, most of {most}")


@pytest.fixture(scope="module", autouse=True)
def no_directories_left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A file's directories go when all of it has passed, those of its fixtures as well: a disk that fills up meanwhile
    has nodes refuse what tests wait for."""
    there, failed = set(tmp_path_factory.getbasetemp().iterdir()), request.session.testsfailed
    yield
    if request.session.testsfailed == failed:
        for left in set(tmp_path_factory.getbasetemp().iterdir()) - there:
            if not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)


@pytest.fixture(scope="session")
def one_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneSpark]:
    """Shared by all files of a worker: a JVM that has started, and knows its way, splits in a fraction of the time."""
    commands = Commands(tmp_path_factory.mktemp("splitters"))
    try:
        yield OneSpark(commands, "splitters")
    finally:
        commands.close()


def open_descriptors() -> list[str]:
    """The kind of each descriptor of this process; none where the machine does not tell."""
    found = []
    for descriptor in DESCRIPTORS.iterdir() if DESCRIPTORS.exists() else ():
        with suppress(OSError):  # that by which they are listed
            found.append(re.sub(r"\d+", "N", os.readlink(descriptor)))
    return found


class FailuresAtOnce:
    """Says at once what failed, in one line each: a run that is cut off has told it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and told is not None:
            told.write_line(f"\n{report.nodeid} ({report.when}): {reason(report)}", red=True)


def reason(report: pytest.TestReport) -> str:
    """The last words of what went wrong, on one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    words = crash.message if crash is not None else str(report.longrepr)
    return " ".join(words.split())[:REASON_CHARACTERS_MAX]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_BEGAN] = time.monotonic()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the nodes of a test that failed, those included that its fixtures have ended meanwhile."""
    report = yield
    if report.failed:
        report.sections.extend(reports(item.stash[_BEGAN]))
    return report
