"""An S3 server for tests, demos and benches: moto's, on 127.0.0.1, in a process of its own.

    .venv/bin/python -m tools.s3_server --latency-ms 20

prints `ready` with its address, and takes commands on its standard input, each answered with one line: `away` (nobody
listens any more, as when a store is out), `back` (the same objects at the same address), `counts` (what was asked of it
so far, as JSON). It ends with its input, so that it does not outlive whoever started it. Objects lie in its memory.

moto compares and replaces in two steps, which S3 does in one: requests are therefore played one after the other. The
latency passes before that, for all requests at once.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tools.large_objects import LargeObjects

from mainstem.pipeline.embedded.control_group import make_group
from mainstem.pipeline.embedded.processes import NICE_MAX, take_leftovers
from mainstem.pipeline.embedded.spare_time import half_of, set_policy

if TYPE_CHECKING:
    from wsgiref.types import InputStream, StartResponse, WSGIApplication, WSGIEnvironment

    from werkzeug.serving import BaseWSGIServer

HOST = "127.0.0.1"
CREDENTIALS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
"""As `object_store.options` take them. moto takes any."""
START_SECONDS_MAX = 120.0
"""moto takes two seconds to import, and more on a machine that has other work."""
PROJECT = Path(__file__).parents[1]
IN_MEMORY = {"MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(1 << 40)}
"""Otherwise moto keeps what has 5 MiB or more in temporary files, and the kernel writes hundreds of megabytes of them
to the disk at a time, which holds up whoever syncs there."""

RECEIVED_AT_ONCE_BYTES = 64 << 10
"""Of a body. A kernel that is not preemptible copies what one call asks for in one go, into memory that it has to make
first: ten milliseconds for 16 MiB, in which nobody else has the processor, whatever this process leaves to others. A
network card brings as much as this at a time."""
RECEIVE_BUFFER_BYTES = 256 << 10
"""Of a connection, in place of up to 32 MiB: more than that is not sent in one go either."""


class Counts(NamedTuple):
    """The requests made of a server since it was started."""

    requests: dict[str, int]
    """By S3's names of operations, those that were refused included. One per request: what S3 charges for."""
    received_bytes: int
    """Bodies of requests, and below of responses."""
    sent_bytes: int

    def since(self, earlier: Counts) -> Counts:
        requests = Counter(self.requests)
        requests.subtract(earlier.requests)
        return Counts(
            dict(+requests), self.received_bytes - earlier.received_bytes, self.sent_bytes - earlier.sent_bytes
        )


class S3Server:
    """A server that runs; made by `s3_server`."""

    def __init__(self, process: subprocess.Popen[str], endpoint: str, bucket: str) -> None:
        self._process = process
        self.endpoint = endpoint
        self.bucket = bucket

    @property
    def pid(self) -> int:
        return self._process.pid

    def go_away(self) -> None:
        """From now on connections are refused, until `come_back`."""
        self._told("away")

    def come_back(self) -> None:
        self._told("back")

    def counts(self) -> Counts:
        return Counts(**json.loads(self._told("counts")))

    def _told(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"the S3 server has ended, exit code {self._process.wait()}")
        return answer


@contextmanager
def s3_server(bucket: str, latency_ms: int = 0, *, idle: bool = False, light: bool = False) -> Iterator[S3Server]:
    """A server with an empty bucket, ended with the block. `idle`: others are measured beside it, who would not meet it
    on the processor if it were on other machines; once it has started, all of its threads take what nobody else wants
    of the processor, on half of the processors, as those of a node's splitter do and in their control group, in a
    session of their own. `light`: objects that come in parts cost it little, and are not listed. Raises RuntimeError
    when it does not start."""
    command = [sys.executable, "-m", "tools.s3_server", "--bucket", bucket, "--latency-ms", str(latency_ms)]
    command += ["--light"] if light else []
    pipe = subprocess.PIPE
    environment = {**os.environ, **IN_MEMORY}
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=log,
            text=True,
            cwd=PROJECT,
            env=environment,
            start_new_session=idle,
        ) as process,
    ):
        watchdog = threading.Timer(START_SECONDS_MAX, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            ready, _, endpoint = process.stdout.readline().strip().partition(" ")
            if ready != "ready":
                process.kill()
                log.seek(0)
                raise RuntimeError(f"the S3 server did not start:\n{log.read()}")
            watchdog.cancel()
            if idle:
                _be_idle(process.pid)
            yield S3Server(process, endpoint, bucket)
        finally:
            watchdog.cancel()
            process.kill()


def _be_idle(process_id: int) -> None:
    if (group := make_group()) is not None:
        group.take(process_id)
    for thread in Path(f"/proc/{process_id}/task").iterdir():  # those to come inherit it
        take_leftovers(int(thread.name), NICE_MAX)
        if group is None:
            set_policy(int(thread.name), os.SCHED_IDLE)
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(thread.name), half_of(os.sched_getaffinity(0)))


def operation_of(method: str, query: str) -> str:
    """S3's name for a request of an object or a bucket, as far as Mainstem sends such."""
    keys = {part.partition("=")[0] for part in query.split("&")}
    if method == "GET":
        return "ListObjectsV2" if "list-type" in keys else "GetObject"
    if method == "HEAD":
        return "HeadObject"
    if method == "DELETE":
        return "AbortMultipartUpload" if "uploadId" in keys else "DeleteObject"
    if method == "PUT":
        return "UploadPart" if "partNumber" in keys else "PutObject"
    if "uploads" in keys:
        return "CreateMultipartUpload"
    if "delete" in keys:
        return "DeleteObjects"
    return "CompleteMultipartUpload" if "uploadId" in keys else method


def received(source: InputStream, size: int) -> bytes:
    """The body of a request, or what came of it."""
    pieces: list[bytes] = []
    left = size
    while left and (piece := source.read(min(left, RECEIVED_AT_ONCE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


class Counted:
    """A WSGI application around another one: counts requests, takes time, and plays them one after the other."""

    def __init__(self, application: WSGIApplication, latency_seconds: float) -> None:
        self._application = application
        self._latency_seconds = latency_seconds
        self._turn = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._received_bytes = 0
        self._sent_bytes = 0

    def counts(self) -> Counts:
        with self._turn:
            return Counts(dict(self._requests), self._received_bytes, self._sent_bytes)

    def forget(self) -> None:
        """Begin to count anew."""
        with self._turn:
            self._requests.clear()
            self._received_bytes = self._sent_bytes = 0

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        size = int(environ.get("CONTENT_LENGTH") or 0)
        body = received(environ["wsgi.input"], size)
        if len(body) < size:  # whoever sent it is gone: moto would keep what there is of it
            start_response("400 Bad Request", [("Content-Length", "0")])
            return []
        if size:
            environ["wsgi.input"] = io.BytesIO(body)
        time.sleep(self._latency_seconds)
        with self._turn:
            pieces = self._application(environ, start_response)
            try:
                content = b"".join(pieces)
            finally:
                if close := getattr(pieces, "close", None):
                    close()
            self._requests[operation_of(environ["REQUEST_METHOD"], environ.get("QUERY_STRING", ""))] += 1
            self._received_bytes += size
            self._sent_bytes += len(content)
        return [content]


class Listener:
    """A port at which an application is served, or not. The port stays the same."""

    def __init__(self, application: WSGIApplication, port: int) -> None:
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quiet(WSGIRequestHandler):
            protocol_version = "HTTP/1.0"  # a connection per request: none outlives the listener

            def log(self, type: str, message: str, *args: object) -> None:
                if type == "error":
                    super().log(type, message, *args)

        def make(port: int) -> BaseWSGIServer:
            return make_server(HOST, port, application, threaded=True, request_handler=Quiet)

        self._make = make
        self._server = make(port)
        self._limit_buffers()
        self.port = int(self._server.server_address[1])
        self._thread = self._served()

    def close(self) -> None:
        """Nobody listens any more. Requests under way are answered."""
        self._server.shutdown()
        self._thread.join()  # closes its socket at its end

    def open(self) -> None:
        self._server = self._make(self.port)
        self._limit_buffers()
        self._thread = self._served()

    def _limit_buffers(self) -> None:
        """Connections have what their listener has."""
        self._server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)

    def _served(self) -> threading.Thread:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        return thread


def main() -> None:
    parser = argparse.ArgumentParser(description="moto's S3 on 127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--latency-ms", type=int, default=0, help="what each request takes at the least")
    parser.add_argument("--bucket", default="mainstem", help="a bucket that is made at the start")
    parser.add_argument("--light", action="store_true", help="play uploads in parts without moto, see large_objects.py")
    options = parser.parse_args()

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    s3: WSGIApplication = DomainDispatcherApplication(create_backend_app)
    application = Counted(LargeObjects(s3) if options.light else s3, options.latency_ms / 1000)
    listener = Listener(application, options.port)
    endpoint = f"http://{HOST}:{listener.port}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{options.bucket}", method="PUT")).close()
    application.forget()
    print(f"ready {endpoint}", flush=True)
    is_away = False
    for line in sys.stdin:
        command = line.strip()
        if command == "away" and not is_away:
            listener.close()
        elif command == "back" and is_away:
            listener.open()
        if command in ("away", "back"):
            is_away = command == "away"
            print(command, flush=True)
        elif command == "counts":
            print(json.dumps(application.counts()._asdict()), flush=True)
        else:
            print("what? it takes away, back and counts", flush=True)
    if not is_away:
        listener.close()


if __name__ == "__main__":
    main()
