"""Jobs that run until a test stops them, and requests to the servers that show them."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.clock import SystemClock
from malstrom_py.sources import Part

PATIENCE_S = 60.0
TOKEN = "a-token"


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(is_so: Callable[[], object], what: str) -> None:
    """Wait until ``is_so()``."""
    clock = SystemClock()
    until_s = clock.monotonic_s() + PATIENCE_S
    while not is_so():
        assert clock.monotonic_s() < until_s, f"not within {PATIENCE_S:g} s: {what}"
        clock.sleep_s(0.05)


ROWS_PER_S = 1_000
"""How fast each part of `a_job` grows."""


class Growing:
    """A part that grows by `ROWS_PER_S`, and knows how far it has been read."""

    def __init__(self, position: int) -> None:
        self._clock = SystemClock()
        self._position = position
        self._began_s = self._clock.monotonic_s() - position / ROWS_PER_S

    def poll(self, rows_max: int) -> list[int]:
        rows = range(self._position, self._position + min(rows_max, self.lag_rows()))
        self._position += len(rows)
        return list(rows)

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> int:
        return self._position

    def lag_rows(self) -> int:
        return int((self._clock.monotonic_s() - self._began_s) * ROWS_PER_S) - self._position

    def lag_bytes(self) -> int:
        return 8 * self.lag_rows()

    def close(self) -> None:
        """Nothing is open."""


class Numbers:
    """A source of four such parts."""

    def list_parts(self) -> list[Part]:
        return [Part(name) for name in "abcd"]

    def build_part(self, part: Part, state: Any) -> Growing:
        return Growing(state or 0)


def a_job(name: str) -> mp.Job:
    """Return a job that does not end by itself, with one heavy key."""
    job = mp.Job(name)
    timed = job.source("numbers", Numbers()).assign_timestamps("at", int, unit="ms")
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(1000))
    odd = on_time.filter("odd", lambda n: n % 2)
    keyed = odd.key_by("key", lambda n: 7 if n % 3 else n % 500)
    keyed.count("seen").sink("out", sinks.Callable(lambda rows: None, batch=True))
    return job


class Server:
    """The dashboard at ``port``, as a client sees it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, token: str | None = TOKEN) -> Any:
        """Return the JSON at ``path``."""
        return self._answer(urllib.request.Request(self._at(path), headers=self._headers(token)))

    def post(self, path: str, body: object, token: str | None = TOKEN) -> Any:
        """Post ``body``, and return the JSON of the answer."""
        data = json.dumps(body).encode()
        return self._answer(urllib.request.Request(self._at(path), data, self._headers(token), method="POST"))

    def status(self, path: str, **how: Any) -> int:
        """Return the status of the answer to a request that is refused."""
        try:
            self.post(path, how.pop("body"), **how) if "body" in how else self.get(path, **how)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    def view(self, job: str) -> Any:
        """Return what the page of ``job`` shows."""
        return self.get(f"/api/jobs/{job}")["view"]

    def _at(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @staticmethod
    def _headers(token: str | None) -> dict[str, str]:
        return {} if token is None else {"X-Malstrom-Token": token}

    @staticmethod
    def _answer(request: urllib.request.Request) -> Any:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)


@pytest.fixture
def server() -> Server:
    return Server(free_port())


@pytest.fixture
def shown(server: Server, tmp_path: Path) -> mp.Dashboard:
    """The options of the dashboard that ``server`` talks to."""
    return mp.Dashboard(port=server.port, token=TOKEN, history=tmp_path / "history")
