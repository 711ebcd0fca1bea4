"""Objects that come in parts, in front of moto's S3: for benches, in which the store's processor time is not the point.

moto takes eight milliseconds of the processor per megabyte of an upload in parts, four times what whoever uploads it
takes. Here the parts are kept as they came. Everything else is moto's: it never hears of these objects, so that they
are not listed, and nothing guards their names.
"""

from __future__ import annotations

import re
import uuid
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_KEY = re.compile(r"<Key>([^<]+)</Key>")


class LargeObjects:
    """A WSGI application around another one. Requests come one after the other, their bodies in memory."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self._uploads: dict[str, dict[int, bytes]] = {}
        """By their ids: parts by their numbers."""
        self._objects: dict[str, list[bytes]] = {}
        """By their paths, the bucket's name first."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        upload = query.get("uploadId", [""])[0]
        if method == "POST" and "uploads" in query:
            upload = uuid.uuid4().hex
            self._uploads[upload] = {}
            return _answer(start_response, "200 OK", _xml("InitiateMultipartUpload", f"<UploadId>{upload}</UploadId>"))
        if upload and upload not in self._uploads:
            return _answer(start_response, "404 Not Found", b"<Error><Code>NoSuchUpload</Code></Error>")
        if method == "PUT" and upload:
            self._uploads[upload][int(query["partNumber"][0])] = environ["wsgi.input"].read()
            return _answer(start_response, "200 OK", tag=uuid.uuid4().hex)
        if method == "POST" and upload:
            self._objects[path] = [part for _number, part in sorted(self._uploads.pop(upload).items())]
            return _answer(start_response, "200 OK", _xml("CompleteMultipartUpload", "<ETag>&quot;1&quot;</ETag>"))
        if method == "DELETE" and upload:
            del self._uploads[upload]
            return _answer(start_response, "204 No Content")
        if method in ("GET", "HEAD") and path in self._objects:
            return self._read(method, self._objects[path], environ.get("HTTP_RANGE", ""), start_response)
        if method == "DELETE":
            self._objects.pop(path, None)
        elif method == "POST" and "delete" in query:
            asked = environ["wsgi.input"].read()
            environ["wsgi.input"].seek(0)
            for key in _KEY.findall(asked.decode()):
                self._objects.pop(f"{path.rstrip('/')}/{key}", None)
        return self._application(environ, start_response)

    def _read(self, method: str, parts: list[bytes], asked: str, start_response: StartResponse) -> Iterable[bytes]:
        ends = list(accumulate(map(len, parts)))
        first, last = 0, ends[-1] - 1
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
        if found:
            first, last = int(found[1]), min(last, int(found[2] or last))
        if first > last:
            return _answer(start_response, "416 Range Not Satisfiable", b"<Error><Code>InvalidRange</Code></Error>")
        content: list[bytes] = []
        at = bisect_right(ends, first)
        while method == "GET" and at < len(parts) and ends[at] - len(parts[at]) <= last:
            begins = ends[at] - len(parts[at])
            content.append(parts[at][max(0, first - begins) : last + 1 - begins])
            at += 1
        headers = [
            ("Content-Length", str(last + 1 - first)),
            ("ETag", '"1"'),
            ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
        ]
        if found:
            headers.append(("Content-Range", f"bytes {first}-{last}/{ends[-1]}"))
        start_response("206 Partial Content" if found else "200 OK", headers)
        return content


def _xml(name: str, content: str) -> bytes:
    return f'<?xml version="1.0"?><{name}Result><Bucket>b</Bucket><Key>k</Key>{content}</{name}Result>'.encode()


def _answer(start_response: StartResponse, status: str, body: bytes = b"", tag: str = "") -> Iterable[bytes]:
    start_response(status, [("Content-Length", str(len(body))), *([("ETag", f'"{tag}"')] if tag else [])])
    return [body]
