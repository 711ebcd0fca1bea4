"""The demo's node: `mainstem serve` as a child process that can be killed and started again in its place."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections import deque
from pathlib import Path
from typing import Any

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0
HTTP_SECONDS_MAX = 10.0
LOG_LINES_KEPT = 30
"""Shown when something goes wrong."""

_TIER = re.compile(r'^mainstem_fetch_bytes_total\{tier="(\w+)"\} (\d+)', re.MULTILINE)
_REQUESTS = re.compile(r'^mainstem_object_store_requests_total\{.*outcome="(\w+)"\} (\d+)', re.MULTILINE)


class NodeFailed(Exception):
    """The node did not start, answer or stop; the message ends with its last log lines."""


class NodeProcess:
    """One node on two directories, or on one and a shared store. Ports are picked at the first start and kept for the
    next ones."""

    def __init__(self, directory: Path, settings: dict[str, object], store: str = "") -> None:
        """`store`: the URL of a shared store; empty: the node has a queue store of its own."""
        self.write_dir = directory / "disk1"
        self._store_dir = store or str(directory / "disk2")
        self._settings = dict(settings)
        self._process: subprocess.Popen[str] | None = None
        self._log: deque[str] = deque(maxlen=LOG_LINES_KEPT)
        self.addresses = {"kafka": "127.0.0.1:0", "http": "127.0.0.1:0", "rpc": "127.0.0.1:0"}

    @property
    def directories(self) -> tuple[str, ...]:
        """Options that name the node's two directories, for `serve` and for commands that need no node."""
        return ("--write-dir", str(self.write_dir), "--store-dir", self._store_dir)

    @property
    def settings(self) -> tuple[str, ...]:
        """Options that give its settings to a command that needs no node."""
        return tuple(f"--set={key}={value}" for key, value in self._settings.items())

    def set(self, key: str, value: object) -> None:
        """Change a setting, in force from the next start on."""
        self._settings[key] = value

    def start(self) -> float:
        """Start and wait for the ready line; returns the seconds it took. Raises NodeFailed."""
        command = [
            sys.executable,
            "-m",
            "mainstem.cli.main",
            "serve",
            "--listen",
            self.addresses["kafka"],
            "--http",
            self.addresses["http"],
            "--rpc",
            self.addresses["rpc"],
            *self.directories,
            *self.settings,
        ]
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._process = process
        threading.Thread(target=self._keep_log, args=(process,), daemon=True).start()
        watchdog = threading.Timer(START_SECONDS_MAX, process.kill)
        watchdog.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        watchdog.cancel()
        fields = dict(field.split("=", 1) for field in line.split()[1:])
        if not line.startswith("ready ") or not self.addresses.keys() <= fields.keys():
            raise NodeFailed(f"the node did not start\n{self.log_tail()}")
        self.addresses = {name: fields[name] for name in self.addresses}
        return time.monotonic() - started

    def kill(self) -> int:
        """SIGKILL: no goodbye, nothing flushed. The exit code, -9."""
        assert self._process is not None
        self._process.kill()
        return self._process.wait()

    def stop(self) -> None:
        """SIGTERM and a clean end. Raises NodeFailed when it takes too long or fails."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            problem = f"the node did not stop within {STOP_SECONDS_MAX:.0f} s"
            raise NodeFailed(f"{problem}\n{self.log_tail()}") from None
        if code != 0:
            raise NodeFailed(f"the node ended with exit code {code}\n{self.log_tail()}")

    def end(self) -> None:
        """Make sure that nothing is left running."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def view(self, path: str) -> Any:
        """The JSON of a console path. Raises NodeFailed."""
        return json.loads(self._get(path))

    def bytes_by_tier(self) -> dict[str, int]:
        """Bytes of batches read since the node started, by the tier that served them."""
        return {tier: int(count) for tier, count in _TIER.findall(self._get("/metrics"))}

    def object_store_requests(self, outcome: str) -> int:
        """Requests to the object store that ended so since the node started."""
        return sum(int(count) for found, count in _REQUESTS.findall(self._get("/metrics")) if found == outcome)

    def metric(self, name: str) -> float:
        """A metric without labels. Raises NodeFailed."""
        found = re.search(rf"^{name} (\S+)", self._get("/metrics"), re.MULTILINE)
        if found is None:
            raise NodeFailed(f"the node has no metric {name}")
        return float(found[1])

    def _get(self, path: str) -> str:
        url = f"http://{self.addresses['http']}{path}"
        try:
            with urllib.request.urlopen(url, timeout=HTTP_SECONDS_MAX) as response:
                return str(response.read().decode())
        except OSError as error:
            raise NodeFailed(f"{url}: {error}\n{self.log_tail()}") from error

    def _keep_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._log.append(line.rstrip())

    def log_tail(self) -> str:
        """The node's last log lines, for people who look for a reason."""
        return "\n".join(f"    {line}" for line in self._log)
