"""Object stores on this machine, for tests: S3 as moto's server plays it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.free_port import free_port
from tests.patience import PATIENCE_SECONDS

BUCKET = "mainstem-tests"


class Server(NamedTuple):
    """`options`: what the store's configuration has to say besides."""

    endpoint: str
    options: dict[str, str]
    bucket: str = BUCKET

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.endpoint.removeprefix("http://").partition(":")
        return host, int(port)


S3_OPTIONS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}


@contextmanager
def s3_server() -> Iterator[Server]:
    """moto's server in a process of its own, with an empty bucket."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    with _process([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], f"{endpoint}/moto-api/"):
        _request(f"{endpoint}/{BUCKET}", "PUT")
        yield Server(endpoint, S3_OPTIONS)


def _request(url: str, method: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, data=body, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        content: bytes = answer.read()
        return content


@contextmanager
def _process(command: list[str], url: str, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """A server that is ready once the URL answers."""
    with TemporaryDirectory() as directory:
        output = Path(directory) / "output"
        with (
            output.open("wb") as log,
            subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})}
            ) as process,
        ):
            try:
                _wait_for(url, process, output)
                yield
            finally:
                process.kill()


def _wait_for(url: str, process: subprocess.Popen[bytes], output: Path) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            _request(url, "GET")
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            assert process.poll() is None, f"the server ended: {output.read_text()}"
            assert time.monotonic() < ends, f"the server does not answer at {url}: {output.read_text()}"
            time.sleep(0.05)
        else:
            return
