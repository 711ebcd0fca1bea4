"""kcat, librdkafka's command line: an older librdkafka than confluent-kafka's, and another way to use it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable

from tests.clients.drivers.message import Headers, Message, Received
from tests.harness.patience import PATIENCE_SECONDS

_VALUE_END = b"<|value ends|>"
_KEY_END = b"<|key ends|>"

_HEAD = re.compile(rb"(\d+) (-?\d+) (-?\d+) (-?\d+) ([^\n]*)\n")


def run(bootstrap: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run kcat to its end; the exit code is the caller's to judge."""
    program = shutil.which("kcat")
    assert program is not None, "these tests need kcat: apt-get install kcat"
    return subprocess.run(
        [program, "-b", bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def output(bootstrap: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """The output of kcat. Raises AssertionError with its complaint."""
    done = run(bootstrap, *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def can_send(message: Message) -> bool:
    """It splits its input at delimiters, so a null value, a header or a timestamp of one message cannot be
    said, and an empty key counts as none."""
    return message.value is not None and message.value != b"" and message.key != b"" and not message.headers


def produce(bootstrap: str, topic: str, messages: Iterable[Message], compression: str = "none") -> None:
    """Send to partition 0 and wait for every acknowledgement."""
    lines = bytearray()
    for message in messages:
        assert can_send(message)
        assert message.value is not None
        if message.key is not None:
            lines += message.key + _KEY_END
        lines += message.value + _VALUE_END
    output(
        bootstrap, "-P", "-t", topic, "-p", "0", "-z", compression, "-X", "linger.ms=20",
        "-K", _KEY_END.decode(), "-D", _VALUE_END.decode(), stdin=bytes(lines),
    )  # fmt: skip


def consume(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Received]:
    """The next `count` messages from `offset` on."""
    return parse(
        output(
            bootstrap, "-C", "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count), "-q",
            "-X", "fetch.wait.max.ms=100", "-f", r"%o %T %K %S %h\n%k%s\n",
        )
    )  # fmt: skip


def parse(printed: bytes) -> list[Received]:
    """Messages out of `%o %T %K %S %h\\n%k%s\\n`, where the lengths say how to read on."""
    found, position = [], 0
    while position < len(printed):
        head = _HEAD.match(printed, position)
        assert head is not None, printed[position : position + 200]
        offset, timestamp_ms, key_length, value_length = (int(number) for number in head.groups()[:4])
        key, position = _sized(printed, head.end(), key_length)
        value, position = _sized(printed, position, value_length)
        assert printed[position : position + 1] == b"\n"
        position += 1
        found.append(Received(offset, value, key, _headers(head[5]), timestamp_ms))
    return found


def _sized(printed: bytes, position: int, length: int) -> tuple[bytes | None, int]:
    if length < 0:
        return None, position
    return printed[position : position + length], position + length


def _headers(text: bytes) -> Headers:
    pairs = (item.partition(b"=") for item in text.split(b",") if item)
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)
