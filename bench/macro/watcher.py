"""An open page of the dashboard and a scrape per second of the metrics, as a browser and Prometheus read them; a tap.

As a program it watches from a separate process: ``python -m bench.macro.watcher PORT METRICS_PORT TOKEN JOB`` watches
the job once for each line "watched" that it reads, reads a tap of its step "sums" for each line "tapped", asks for its
state all the time for each line "queried", or for that of an ended job until the next line for each line "beside
queries", and prints as JSON what it got when the job has ended. Page and scrapes count bytes and read no JSON, so they
take next to no processor time.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from select import select
from time import monotonic, sleep
from typing import Any, Final, TypeVar

import malstrom_py as mp
from bench.macro.capturing import add
from malstrom_py import sinks, sources

UPDATE: Final = b"event: view"
OPEN_S: Final = 30.0
T = TypeVar("T")
KEYS: Final = 10_000
QUERY: Final = "select count(*) as n, sum(value) as total from sums"
_AGAIN_S: Final = 0.02
_READ: Final = 1 << 16


class OpenPage(threading.Thread):
    """A page of ``job`` that follows the stream of the dashboard at ``port`` until it ends or `close` is called.

    ``updates``: how many views it has got; ``bytes`` and ``plain_bytes``: what came after the first one, as sent and
    without compression. ``gzip``: whether it offers to take gzip, as browsers do.
    """

    def __init__(self, port: int, token: str, job: str, *, gzip: bool = True) -> None:
        super().__init__(name=f"page-{job}", daemon=True)
        self.updates = 0
        self.bytes = 0
        self.plain_bytes = 0
        self.encoding = ""
        self.first = threading.Event()
        self._closing = False
        self._port = port
        self._path = f"/api/jobs/{job}/stream?token={token}"
        self._headers = {"Accept": "text/event-stream", **({"Accept-Encoding": "gzip"} if gzip else {})}

    @property
    def bytes_per_update(self) -> float:
        """Return the bytes of a view as sent, on average."""
        return self.bytes / max(1, self.updates - 1)

    @property
    def plain_per_update(self) -> float:
        """Return the same without compression."""
        return self.plain_bytes / max(1, self.updates - 1)

    def close(self) -> None:
        """Stop after the next message."""
        self._closing = True
        self.join()

    def run(self) -> None:
        """Follow the stream, once the server is there."""
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=OPEN_S)) as connection:
            answer = answered(connection, self._path, self._headers)
            self.encoding = answer.getheader("Content-Encoding", "")
            unpack = zlib.decompressobj(31).decompress if self.encoding == "gzip" else bytes
            rest = b""
            while not self._closing and (sent := answer.read1(_READ)):
                plain = unpack(sent)
                if self.updates:
                    self.bytes += len(sent)
                    self.plain_bytes += len(plain)
                self.updates += (rest + plain).count(UPDATE)
                rest = (rest + plain)[1 - len(UPDATE) :]
                if self.updates:
                    self.first.set()


class Scraper(threading.Thread):
    """Reads the metrics at ``port`` once a second until the server ends. ``scrapes``: how often; ``bytes``: in all."""

    def __init__(self, port: int) -> None:
        super().__init__(name="scraper", daemon=True)
        self.scrapes = 0
        self.bytes = 0
        self._port = port

    def run(self) -> None:
        """Scrape, once the server is there."""
        try:
            while True:
                with closing(HTTPConnection("127.0.0.1", self._port, timeout=OPEN_S)) as connection:
                    if self.scrapes:
                        connection.request("GET", "/metrics")
                        answer = connection.getresponse()
                    else:
                        answer = answered(connection, "/metrics", {})
                    self.bytes += len(answer.read())
                    self.scrapes += 1
                sleep(1.0)
        except (OSError, HTTPException):
            """The server has ended."""


def answered(connection: HTTPConnection, path: str, headers: dict[str, str]) -> Any:
    """Return the answer to a request, repeated until the server is there and knows the job."""
    until_s = monotonic() + OPEN_S
    while True:
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            if answer.status == 200:
                return answer
            answer.read()
        except (OSError, HTTPException):
            connection.close()
        if monotonic() > until_s:
            raise TimeoutError(f"no answer from port {connection.port} within {OPEN_S:g} s")
        sleep(_AGAIN_S)


def watched(port: int, metrics_port: int, token: str, job: str) -> dict[str, int]:
    """Watch a run of ``job``, and return the counts of what was seen."""
    page, scraper = OpenPage(port, token, job), Scraper(metrics_port)
    page.start()
    scraper.start()
    page.join()
    scraper.join()
    return {"updates": page.updates, "scrapes": scraper.scrapes}


def tapped(job: str) -> dict[str, int]:
    """Read a tap of a run of ``job``, and return the counts of its records."""
    tap = _when_there(lambda: mp.JobHandle.attach(job).tap("sums"))
    return {"records shown": sum(1 for _ in tap), "records passed": tap.passed}


def queried(job: str) -> dict[str, int]:
    """Ask for the state of a run of ``job`` until it ends, and return the count of answers."""
    handle, answers = _when_there(lambda: mp.JobHandle.attach(job)), 0
    _when_there(lambda: handle.query(QUERY))  # there is no snapshot at first
    with suppress(mp.errors.JobEnded):
        while True:
            handle.query(QUERY)
            answers += 1
    return {"answers": answers}


def beside(keys: int) -> dict[str, int]:
    """Ask as `queried` does, but for the state of an own job that has ended, until there is a line to read."""
    job = mp.Job("ended")
    keyed = job.source("rows", sources.Memory([(str(key), 1) for key in range(keys)])).key_by("by", lambda row: row[0])
    keyed.stateful_map("sums", add, default=int).sink("out", sinks.Memory())
    with tempfile.TemporaryDirectory() as kept:
        handle = mp.InProcess(snapshots=mp.Snapshots(kept), progress=False).start(job, control=False)
        handle.wait()
        answers = 0
        while not select([sys.stdin], [], [], 0)[0]:
            handle.query(QUERY)
            answers += 1
    sys.stdin.readline()
    return {"answers beside": answers}


def _when_there(ask: Callable[[], T]) -> T:
    until_s = monotonic() + OPEN_S
    while True:
        try:
            return ask()
        except mp.errors.MalstromError:
            if monotonic() > until_s:
                raise
            sleep(_AGAIN_S)


def main() -> None:
    """Watch once for each line of the standard input."""
    port, metrics_port, token, job = sys.argv[1:]
    kinds: dict[str, Callable[[str], dict[str, int]]] = {"tapped": tapped, "queried": queried}
    kinds["watched"] = partial(watched, int(port), int(metrics_port), token)
    kinds["beside queries"] = lambda _: beside(KEYS)
    for line in sys.stdin:
        print(json.dumps(kinds[line.strip()](job)), flush=True)


if __name__ == "__main__":
    main()
