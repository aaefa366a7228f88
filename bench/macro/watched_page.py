"""The dashboard's page of a large job: 40 steps, 64 workers, 256 parts, and as many heavy keys as metrics have.

The job is made up: it answers with metrics that are made before, and change with each answer. So what is measured is
the server alone, in a separate process: ``python -m bench.macro.watched_page`` serves the page until its input ends.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, pairwise
from time import perf_counter, process_time, sleep, time
from typing import Any, Final

from msgspec import structs

import malstrom_py as mp
from bench.macro.on_ray import verdict
from bench.macro.watcher import OpenPage
from bench.micro.timing import spread
from malstrom_py.metrics import (
    EdgeMetrics,
    ExchangeMetrics,
    HeavyKey,
    HeavySlot,
    JobMetrics,
    PartMetrics,
    SnapshotMetrics,
    StepMetrics,
    WorkerMetrics,
)
from malstrom_py.workers.monitoring.dashboard import DashboardServer
from malstrom_py.workers.reports.commands import Command, EventsCommand
from malstrom_py.workers.reports.event_log import EventPage

STEPS: Final = 40
WORKERS: Final = 64
PARTS: Final = 256
HEAVY: Final = 64
PAGES: Final = 10

UPDATE_KB: Final = 50.0
SERVER_SHARE: Final = 0.05
PAINT_S: Final = 1.0

_NAME: Final = "large"
_TOKEN: Final = "watching"
_KINDS: Final = ("map", "filter", "key_by", "stateful_map", "window", "aggregate", "flat_map", "assign_timestamps")
_VERSIONS: Final = 8
_PAINT_MS: Final = """() => Object.fromEntries(
    performance.getEntriesByType("paint").map((entry) => [entry.name, entry.startTime]))"""
_FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_DRAWN_MS: Final = "(steps) => document.querySelectorAll('.node').length >= steps && performance.now()"


def large_job(seed: int) -> JobMetrics:
    """Return the metrics of the large job at some moment."""
    draw = random.Random(seed)
    kinds = ["source", "source", *(_KINDS[number % len(_KINDS)] for number in range(STEPS - 4)), "sink", "sink"]
    names = [f"{kind.replace('_', '-')}-orders-{number}" for number, kind in enumerate(kinds)]
    exchanged = [name for name, kind in zip(names, kinds, strict=True) if kind == "key_by"]
    now = time()
    return JobMetrics(
        _NAME,
        "running",
        "steady",
        at=now,
        duration_s=1e5 * draw.random(),
        steps={name: _step(kind, draw, now) for name, kind in zip(names, kinds, strict=True)},
        edges=[
            EdgeMetrics(source, "out", target, source in exchanged, _count(draw), 1e5 * draw.random())
            for source, target in _edges(names)
        ],
        parts=[
            PartMetrics(
                names[number % 2],
                f"orders-2024-{number:03d}.parquet",
                number % WORKERS,
                _count(draw),
                f"row {_count(draw):,} of row group {number}",
                _count(draw),
                _count(draw),
                now - draw.random(),
                draw.random(),
            )
            for number in range(PARTS)
        ],
        exchanges={
            name: ExchangeMetrics(_count(draw), _count(draw), 1e5 * draw.random(), 1e7 * draw.random(), 7, 1.5, 0.25)
            for name in exchanged
        },
        workers=[_worker(number, draw) for number in range(WORKERS)],
        heavy_keys=[
            HeavyKey(exchanged[number % len(exchanged)], f"customer-{_count(draw)}", draw.random() / 5, number)
            for number in range(HEAVY)
        ],
        heavy_slots=[
            HeavySlot(exchanged[number % len(exchanged)], draw.randrange(4096), draw.random() / 5, number)
            for number in range(HEAVY)
        ],
        snapshots=SnapshotMetrics(12, "0000000012", now, _count(draw), draw.random(), draw.random() / 10),
    )


def _edges(names: list[str]) -> list[tuple[str, str]]:
    """Return the edges from two sources through all steps to two sinks."""
    between = names[2:-2]
    return [
        *((source, between[0]) for source in names[:2]),
        *pairwise(between),
        *((between[-1], sink) for sink in names[-2:]),
    ]


def _step(kind: str, draw: random.Random, now: float) -> StepMetrics:
    return StepMetrics(
        kind,
        rows_in=_count(draw),
        rows_out=_count(draw),
        in_per_s=1e6 * draw.random(),
        out_per_s=1e6 * draw.random(),
        busy_s=1e4 * draw.random(),
        busy=10 * draw.random(),
        filtered=_count(draw),
        keys=_count(draw),
        state_bytes=_count(draw),
        watermark=now - 10 * draw.random(),
        lag_s=10 * draw.random(),
        place=f"orders_pipeline.py:{draw.randrange(1000)}",
    )


def _worker(number: int, draw: random.Random) -> WorkerMetrics:
    return WorkerMetrics(
        number,
        f"host-{number % 16}.example",
        10_000 + number,
        cpu_s=1e5 * draw.random(),
        cpu=2 * draw.random(),
        rss_bytes=_count(draw),
        busy_s=1e5 * draw.random(),
        waiting_s=1e4 * draw.random(),
        busy=draw.random() / 2,
        waiting=draw.random() / 2,
        rows_in=_count(draw),
        in_per_s=1e6 * draw.random(),
        keys=_count(draw),
        slots=64,
    )


def _count(draw: random.Random) -> int:
    return draw.randrange(10**9, 10**10)


class MadeUpJob:
    """A job with those metrics, and without events."""

    name = _NAME

    def __init__(self) -> None:
        self._metrics = cycle([large_job(seed) for seed in range(_VERSIONS)])

    def ask(self, command: Command) -> Any:
        """Return the next metrics, or no events."""
        if isinstance(command, EventsCommand):
            return EventPage("log", command.after, [])
        return structs.replace(next(self._metrics), at=time())


def serve() -> None:
    """Serve the page; print the port, and for each line of the input the processor time so far."""
    server = DashboardServer(mp.Dashboard(free_port(), token=_TOKEN))
    server.add(MadeUpJob())
    print(server.port, flush=True)
    for _ in sys.stdin:
        print(process_time(), flush=True)
    server.close()


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(process: subprocess.Popen[str], line: str) -> str:
    """Return the answer of ``process`` to a ``line``."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline()


@contextmanager
def pages(port: int, count: int) -> Iterator[list[OpenPage]]:
    """Open so many pages, and wait until each shows the job."""
    opened = [OpenPage(port, _TOKEN, _NAME) for _ in range(count)]
    for page in opened:
        page.start()
    try:
        if not all(page.first.wait(10.0) for page in opened):
            raise TimeoutError("a page shows nothing within 10 s")
        yield opened
    finally:
        for page in opened:
            page.close()


def measure_page(seconds: float, reps: int) -> None:
    """Print the figures of the page."""
    print(f"a page of {STEPS} steps, {WORKERS} workers, {PARTS} parts:")
    program = [sys.executable, "-m", "bench.macro.watched_page"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            port = int(process.stdout.readline())
            with pages(port, 1) as opened:
                sleep(3.5)
            page = opened[0]
            kilobytes = page.bytes_per_update / 1e3
            sent = f"{page.encoding or 'not compressed'}; {page.plain_per_update / 1e3:.1f} KB without compression"
            print(f"  an update: {kilobytes:.1f} KB as sent ({verdict(kilobytes, UPDATE_KB, at_least=False)}; {sent})")
            shares = {count: [_share(process, port, count, seconds) for _ in range(reps)] for count in (0, 1, PAGES)}
            for count, found in shares.items():
                share = spread(found)
                judged = f" ({verdict(share.median, SERVER_SHARE, at_least=False)})" if count else ""
                what = f"{count} open page{'' if count == 1 else 's'}"
                print(f"  the server, {what}: {share.show(4)} of a core{judged}", flush=True)
            _first_paint(f"http://127.0.0.1:{port}/jobs/{_NAME}?token={_TOKEN}", reps)
        finally:
            process.stdin.close()


def _share(process: subprocess.Popen[str], port: int, count: int, seconds: float) -> float:
    with pages(port, count):
        cpu_s, began_s = float(ask(process, "cpu")), perf_counter()
        sleep(seconds)
        return (float(ask(process, "cpu")) - cpu_s) / (perf_counter() - began_s)


def _first_paint(address: str, reps: int) -> None:
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if name and (found := shutil.which(name))), "")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = ""
    if not program:
        print("  first paint: not measured, for Chromium or Playwright is missing")
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_FLAGS)
        painted = [_painted(browser.new_context, address) for _ in range(reps)]
        version = browser.version
        browser.close()
    paint, content, drawn = (spread([times[which] for times in painted]) for which in range(3))
    print(
        f"  first paint in Chromium {version}: {paint.show()} s ({verdict(paint.median, PAINT_S, at_least=False)}), "
        f"of content {content.show()} s; all steps are drawn after {drawn.show()} s"
    )


def _painted(new_context: Callable[[], Any], address: str) -> tuple[float, float, float]:
    """Return when a new visitor sees something, something of content, and all steps, in seconds."""
    context = new_context()
    page = context.new_page()
    page.goto(address)
    drawn_ms = page.wait_for_function(_DRAWN_MS, arg=STEPS).json_value()
    paint = page.evaluate(_PAINT_MS)
    context.close()
    return paint["first-paint"] / 1e3, paint["first-contentful-paint"] / 1e3, drawn_ms / 1e3


if __name__ == "__main__":
    serve()
