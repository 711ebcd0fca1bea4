"""Google Cloud Storage as far as obstore asks it: the documented XML API of one bucket, in memory, in threads.

The emulators on PyPI speak the JSON API, which obstore does not use for objects.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

LISTED_MAX = 4
"""Objects in one answer to a list: few, so that there are several."""


class GcsObject(NamedTuple):
    content: bytes
    generation: int
    modified: datetime

    @property
    def headers(self) -> dict[str, str]:
        return {
            "ETag": f'"{hashlib.md5(self.content).hexdigest()}"',
            "x-goog-generation": str(self.generation),
            "Last-Modified": self.modified.strftime("%a, %d %b %Y %H:%M:%S GMT"),
        }


class GcsServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, bucket: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bucket = bucket
        self.lock = threading.Lock()
        self.objects: dict[str, GcsObject] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self._generations = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, name: str, content: bytes) -> GcsObject:
        self._generations += 1
        self.objects[name] = GcsObject(content, self._generations, datetime.now(UTC))
        return self.objects[name]

    def begin_upload(self) -> str:
        self._generations += 1
        self.uploads[upload := f"upload{self._generations}"] = {}
        return upload


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GcsServer

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_PUT(self) -> None:
        name, query, body = self._asked()
        with self.server.lock:
            if "partNumber" in query:
                parts = self.server.uploads.get(query["uploadId"])
                if parts is None:
                    self._fail(404, "NoSuchUpload")
                    return
                parts[int(query["partNumber"])] = body
                self._answer(200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
                return
            wanted = self.headers.get("x-goog-if-generation-match")
            there = self.server.objects.get(name)
            if wanted is not None and int(wanted) != (there.generation if there else 0):
                self._fail(412, "PreconditionFailed")
                return
            self._answer(200, b"", self.server.put(name, body).headers)

    def do_POST(self) -> None:
        name, query, _body = self._asked()
        with self.server.lock:
            if "uploads" in query:
                upload = self.server.begin_upload()
                said = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
                self._answer(200, said.encode())
                return
            parts = self.server.uploads.pop(query["uploadId"], None)
            if parts is None:
                self._fail(404, "NoSuchUpload")
                return
            stored = self.server.put(name, b"".join(content for _, content in sorted(parts.items())))
            tag = escape(stored.headers["ETag"])
            said = f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
            self._answer(200, said.encode(), stored.headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        name, query, _body = self._asked()
        with self.server.lock:
            if not name:
                self._answer(200, self._listed(query).encode())
                return
            there = self.server.objects.get(name)
            if there is None:
                self._fail(404, "NoSuchKey")
                return
            wanted = self.headers.get("Range")
            if wanted is None:
                self._answer(200, there.content, there.headers)
                return
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            if int(first) >= len(there.content):
                self._fail(416, "InvalidRange")
                return
            piece = there.content[int(first) : int(last) + 1]
            end = int(first) + len(piece) - 1
            self._answer(206, piece, {**there.headers, "Content-Range": f"bytes {first}-{end}/{len(there.content)}"})

    def do_DELETE(self) -> None:
        name, query, _body = self._asked()
        with self.server.lock:
            if "uploadId" in query:
                found: object = self.server.uploads.pop(query["uploadId"], None)
            else:
                found = self.server.objects.pop(name, None)
            if found is None:
                self._fail(404, "NoSuchKey")
            else:
                self._answer(204, b"")

    def _listed(self, query: dict[str, str]) -> str:
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        names = [
            name for name in sorted(self.server.objects) if name.startswith(query.get("prefix", "")) and name > after
        ]
        rows = [
            f"<Contents><Key>{name}</Key><LastModified>{there.modified.isoformat()}</LastModified>"
            f"<ETag>{escape(there.headers['ETag'])}</ETag><Size>{len(there.content)}</Size></Contents>"
            for name, there in ((name, self.server.objects[name]) for name in names[:LISTED_MAX])
        ]
        if len(names) > LISTED_MAX:
            rows.append(f"<NextContinuationToken>{names[LISTED_MAX - 1]}</NextContinuationToken>")
        return f"<ListBucketResult>{''.join(rows)}</ListBucketResult>"

    def _asked(self) -> tuple[str, dict[str, str], bytes]:
        """The object's name, the query and the body."""
        parts = urlsplit(self.path)
        bucket, _, name = unquote(parts.path).removeprefix("/").partition("/")
        assert bucket == self.server.bucket, self.path
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        return name, query, self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def gcs_server(bucket: str) -> Iterator[GcsServer]:
    with GcsServer(bucket) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
