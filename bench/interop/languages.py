"""Client libraries and the programs that play scenarios with them, a language each: how they are fetched, built and
called.

Downloads and binaries are kept in `~/.cache/mainstem-bench/interop`, once per client and version. Versions are
written here, in `programs/go/go.mod`, and in `bench/systems/kafka_jars.py`.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import venv
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.errors import BenchError
from bench.systems import kafka_jars

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = Path(__file__).parent / "programs"
CACHE = Path.home() / ".cache" / "mainstem-bench"
BUILD_SECONDS_MAX = 600.0
JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp")
"""A small JVM that starts soon; the class path follows."""

Words = Sequence[str]


class Client(NamedTuple):
    """`built()` fetches and builds what is missing, and returns the words to which a scenario and an address are
    added. It raises CalledProcessError or BenchError."""

    name: str
    version: str
    built: Callable[[], Words]


def absent_tools() -> list[str]:
    """The tools that this machine lacks, and without which programs of their language are left out."""
    return [tool for tool in ("javac", "go", "npm") if shutil.which(tool) is None]


def clients() -> Iterator[Client]:
    """Python's, then those in Java, Go and JavaScript for which this machine has the tools."""
    absent = absent_tools()
    for name, version, program, requirements in PYTHON:
        yield Client(name, version, partial(_python, name, version, program, requirements))
    if "javac" not in absent:
        for name, main in _JAVA:
            yield Client(name, kafka_jars.VERSION, partial(_java, main))
    if "go" not in absent:
        for name, module, folder in _GO:
            yield Client(name, go_version(module), partial(_go, folder))
    if "npm" not in absent:
        for name, package, version, program in _JAVASCRIPT:
            yield Client(name, version, partial(_javascript, package, version, program))


CODECS = ("lz4", "python-snappy", "zstandard", "crc32c")
PYTHON: Sequence[tuple[str, str, str, Words]] = (
    ("confluent-kafka", "2.16.1", "confluent", ()),
    ("confluent-kafka", "2.4.0", "confluent", ()),
    ("kafka-python", "3.0.12", "kafka_python", CODECS),
    ("kafka-python", "2.2.15", "kafka_python", CODECS),
    ("kafka-python-ng", "2.2.3", "kafka_python", CODECS),
    ("aiokafka", "0.14.0", "asyncio_kafka", ("cramjam",)),
    ("aiokafka", "0.11.0", "asyncio_kafka", ("cramjam",)),
)
"""Name, version, program, what it needs besides: the newest of each, and older ones that are still met."""


def _python(name: str, version: str, program: str, requirements: Words) -> Words:
    def build(home: Path) -> None:
        venv.create(home, with_pip=True)
        wanted = [f"{name}=={version}", *requirements]
        call([str(home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted])

    home = once(f"{name}-{version}", build)
    return ["env", f"PYTHONPATH={ROOT}", str(home / "bin" / "python"), "-m", f"bench.interop.programs.{program}"]


_JAVA = (("Java clients", "Clients"), ("Kafka Streams", "Streams"))
_APPLICATIONS = ("kafka-streams", "connect-runtime", "connect-file", "connect-json")


def applications_class_path() -> str:
    """Of Kafka's clients, Streams and Connect."""
    return f"{kafka_jars.fetch(CACHE, 'kafka-applications', _APPLICATIONS)}/*"


def _java(main: str) -> Words:
    sources = sorted((PROGRAMS / "java").glob("*.java"))
    jars = applications_class_path()
    classes = once(
        f"java-{kafka_jars.VERSION}-{_digest(sources)}",
        lambda home: call(["javac", "-cp", jars, "-d", str(home), *map(str, sources)]),
    )
    return [*JAVA, f"{classes}:{jars}", main]


_GO = (
    ("franz-go", "github.com/twmb/franz-go", "franz"),
    ("Sarama", "github.com/IBM/sarama", "sarama"),
    ("kafka-go", "github.com/segmentio/kafka-go", "segmentio"),
)


def go_version(module: str) -> str:
    for line in (PROGRAMS / "go" / "go.mod").read_text().splitlines():
        if line.strip().startswith(f"{module} v"):
            return line.split()[1].removeprefix("v")
    raise BenchError(f"{PROGRAMS / 'go' / 'go.mod'} does not require {module}")


def _go(folder: str) -> Words:
    sources = [path for path in sorted((PROGRAMS / "go").rglob("*")) if path.is_file()]
    binaries = once(
        f"go-{_digest(sources)}",
        lambda home: call(["go", "build", "-o", str(home), "./..."], PROGRAMS / "go"),
    )
    return [str(binaries / folder)]


_JAVASCRIPT = (
    ("KafkaJS", "kafkajs", "2.2.4", "kafkajs"),
    ("@platformatic/kafka", "@platformatic/kafka", "1.35.0", "platformatic"),  # the newest for Node.js 20
)


def _javascript(package: str, version: str, program: str) -> Words:
    sources = sorted((PROGRAMS / "javascript").glob("*.mjs"))

    def build(home: Path) -> None:
        for source in sources:
            shutil.copy(source, home)  # modules are looked for beside the program
        call(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(home), f"{package}@{version}"])

    return ["node", str(once(f"{program}-{version}-{_digest(sources)}", build) / f"{program}.mjs")]


def once(name: str, build: Callable[[Path], None]) -> Path:
    """The directory that `build` fills, unless it did before."""
    home = CACHE / "interop" / name
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        build(home)
        (home / "complete").touch()
    return home


def _digest(files: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def call(words: Words, directory: Path | None = None) -> None:
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX)
    if done.returncode != 0:
        raise BenchError(f"`{' '.join(words)[:200]}` failed: {(done.stderr or done.stdout).strip()[-800:]}")
