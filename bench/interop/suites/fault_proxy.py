"""Toxiproxy between a suite and the nodes: the suite tells it which connections to delay, cut or refuse."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.errors import BenchError
from bench.interop import languages
from bench.systems.system import free_ports

VERSION = "2.5.0"
SERVER = f"github.com/Shopify/toxiproxy/v2/cmd/server@v{VERSION}"
START_SECONDS_MAX = 20.0
_POLL_SECONDS = 0.05


class FaultProxy:
    """Runs while it is entered. `proxied`: by name the port of 127.0.0.1 to listen on, and the address behind it."""

    def __init__(self, proxied: Mapping[str, tuple[int, str]]) -> None:
        self._proxied = proxied
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        """Raises BenchError, as when somebody else has one of the ports."""
        proxies = [
            {"name": name, "listen": f"127.0.0.1:{port}", "upstream": address, "enabled": True}
            for name, (port, address) in self._proxied.items()
        ]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            json.dump(proxies, config)
            config.flush()
            command = [str(_server()), "-host", "127.0.0.1", "-port", str(self._port), "-config", config.name]
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                self._await_proxies()
            except BaseException:
                self._end()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        self._end()

    def _await_proxies(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while set(self._listening()) != set(self._proxied):
            if time.monotonic() > deadline or self._process.poll() is not None:
                ports = [port for port, _ in self._proxied.values()]
                raise BenchError(f"toxiproxy does not listen on all of the ports {ports} of 127.0.0.1: are they taken?")
            time.sleep(_POLL_SECONDS)

    def _listening(self) -> Mapping[str, object]:
        try:
            with urllib.request.urlopen(f"{self.url}/proxies", timeout=5) as answer:
                found: Mapping[str, object] = json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            return {}
        return found

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


def _server() -> Path:
    def build(home: Path) -> None:
        languages.call(["env", f"GOBIN={home}", "go", "install", SERVER], home)

    return languages.once(f"toxiproxy-{VERSION}", build) / "server"
