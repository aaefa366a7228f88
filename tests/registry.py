"""A schema registry over HTTP, as Confluent's interface has it: schemas by id, subjects with versions."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class Registry:
    """What a registry has. ``failures``: how many of the next requests it answers with 500."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.failures = 0
        self.asked: list[str] = []
        self.logins: list[str | None] = []
        self.url = ""
        self.redirects_to = ""
        """Where requests are redirected to, but for those that begin there."""

    def add(self, subject: str, body: dict[str, Any]) -> int:
        """Return the id of a schema, from 1; the same body has the same id."""
        if body not in self.schemas:
            self.schemas.append(body)
        number = self.schemas.index(body) + 1
        if number not in self.subjects.setdefault(subject, []):
            self.subjects[subject].append(number)
        return number

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return the status and the body of an answer."""
        self.asked.append(f"{method} {path}")
        path = path.removeprefix("/below")
        if path.startswith("/busy/"):
            return 429, {"error_code": 42901, "message": "Too many requests"}
        if path.startswith("/cut/"):
            return 200, {}
        if path.startswith("/other/"):
            return 404, "not a registry"
        if self.failures:
            self.failures -= 1
            return 500, {"error_code": 50001, "message": "Error in the backend"}
        if method == "POST" and (found := re.fullmatch(r"/subjects/(.+)/versions", path)):
            if unquote(found[1]) == "strict":
                return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
            return 200, {"id": self.add(unquote(found[1]), body)}
        if (found := re.fullmatch(r"/schemas/ids/(\d+)", path)) and int(found[1]) <= len(self.schemas):
            return 200, self.schemas[int(found[1]) - 1]
        if found := re.fullmatch(r"/subjects/(.+)/versions/(\d+)", path):
            return 200, self.schemas[self.subjects[unquote(found[1])][int(found[2]) - 1] - 1]
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def running() -> Iterator[Registry]:
    """Serve a registry on a port of this machine."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.respond("GET", None)

        def do_POST(self) -> None:
            self.respond("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def respond(self, method: str, body: Any) -> None:
            registry.logins.append(self.headers.get("Authorization"))
            status, answer = registry.answer(method, self.path, body)
            if registry.redirects_to and not self.path.startswith("/below"):
                status = 302
            self.send_response(status)
            self.send_header("Location", f"{registry.redirects_to}{self.path}")
            if self.path.startswith("/cut/"):
                self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        registry.url = f"http://127.0.0.1:{server.server_port}"
        yield registry
        server.shutdown()
        thread.join()
