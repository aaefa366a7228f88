"""A small S3 on this machine: enough of its protocol to keep objects, conditional writes and uploads in parts included.

``drops``: so many of the next writes are done, and answered as if the server had failed, as when an answer is lost.
``heeds_conditions``: whether it looks at the condition of a write, as some that speak like S3 do not.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape


class SmallS3(ThreadingHTTPServer):
    """Serves ``objects``; ``seen``: the method and path of each request, and whether it was to write only if absent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.seen: list[tuple[str, str, bool]] = []
        self.drops = 0
        self.heeds_conditions = True

    @property
    def options(self) -> dict[str, str]:
        """What `ObjectStore` takes to reach it."""
        return {
            "endpoint": f"http://127.0.0.1:{self.server_port}",
            "allow_http": "true",
            "skip_signature": "true",
            "region": "here",
        }


@contextmanager
def small_s3() -> Iterator[SmallS3]:
    """One that runs inside."""
    server = SmallS3()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _s3(self) -> SmallS3:
        assert isinstance(self.server, SmallS3)
        return self.server

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, query = self._asked()
        absent = self.headers.get("If-None-Match") == "*"
        copied = unquote(self.headers.get("x-amz-copy-source", "")).lstrip("/")
        with self._s3.lock:
            self._s3.seen.append(("PUT", path, absent))
            if copied:
                if copied not in self._s3.objects:
                    return self._answer(404, _error("NoSuchKey"))
                self._s3.objects[path] = self._s3.objects[copied]
                return self._answer(200, _COPIED.encode())
            if "uploadId" in query:
                self._s3.uploads[query["uploadId"]][int(query["partNumber"])] = data
            elif absent and self._s3.heeds_conditions and path in self._s3.objects:
                return self._answer(412, _error("PreconditionFailed"))
            else:
                self._s3.objects[path] = data
            if self._s3.drops:
                self._s3.drops -= 1
                return self._answer(500, _error("InternalError"))
        return self._answer(200, b"", ETag=_tag(data))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, query = self._asked()
        with self._s3.lock:
            if "uploads" in query:
                upload = f"upload-{len(self._s3.uploads)}"
                self._s3.uploads[upload] = {}
                text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            elif "uploadId" in query:
                parts = self._s3.uploads.pop(query["uploadId"])
                self._s3.objects[path] = b"".join(parts[number] for number in sorted(parts))
                text = f"<CompleteMultipartUploadResult><ETag>{_tag(body)}</ETag></CompleteMultipartUploadResult>"
            elif "delete" in query:
                names = [unescape(name) for name in re.findall("<Key>(.*?)</Key>", body.decode())]
                for name in names:
                    self._s3.objects.pop(path + name, None)
                deleted = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
                text = f"<DeleteResult>{deleted}</DeleteResult>"
            else:
                return self._answer(501, _error("NotImplemented"))
        return self._answer(200, text.encode())

    def do_GET(self) -> None:
        path, query = self._asked()
        with self._s3.lock:
            if query.get("list-type") == "2":
                prefix, after = path + query.get("prefix", ""), path + query.get("start-after", "")
                found = sorted(name for name in self._s3.objects if name.startswith(prefix) and name > after)
                listed = {name.removeprefix(path): self._s3.objects[name] for name in found}
                return self._answer(200, _listing(listed))
            data = self._s3.objects.get(path)
        if data is None:
            return self._answer(404, _error("NoSuchKey"))
        if self.headers.get("If-Match", _tag(data)) != _tag(data):
            return self._answer(412, _error("PreconditionFailed"))
        known = {"ETag": _tag(data), "Last-Modified": "Sun, 22 Nov 2026 04:22:42 GMT"}
        asked = re.fullmatch("bytes=([0-9]+)-([0-9]+)", self.headers.get("Range", ""))
        if asked is None:
            return self._answer(200, data, **known)
        start, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
        if start > last:
            return self._answer(416, _error("InvalidRange"))
        known["Content-Range"] = f"bytes {start}-{last}/{len(data)}"
        return self._answer(206, data[start : last + 1], **known)

    def do_HEAD(self) -> None:
        path, _ = self._asked()
        with self._s3.lock:
            data = self._s3.objects.get(path)
        self.send_response(404 if data is None else 200)
        if data is not None:
            self.send_header("ETag", _tag(data))
            self.send_header("Last-Modified", "Sun, 22 Nov 2026 04:22:42 GMT")
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()

    def _asked(self) -> tuple[str, dict[str, str]]:
        """The path, bucket first, and the query."""
        asked = urlsplit(self.path)
        query = parse_qs(asked.query, keep_blank_values=True)
        path = unquote(asked.path).lstrip("/")
        return path if "/" in path else f"{path}/", {name: values[0] for name, values in query.items()}

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


_COPIED: Final = (
    "<CopyObjectResult><ETag>&quot;x&quot;</ETag><LastModified>2026-11-22T04:22:42.000Z</LastModified>"
    "</CopyObjectResult>"
)


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


def _listing(found: dict[str, bytes]) -> bytes:
    contents = "".join(
        f"<Contents><Key>{escape(name)}</Key><LastModified>2026-11-22T04:22:42.000Z</LastModified>"
        f"<ETag>{escape(_tag(data), {chr(34): '&quot;'})}</ETag><Size>{len(data)}</Size></Contents>"
        for name, data in found.items()
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()
