"""``python -m bench.micro.memory``: a job over more data than the memory it may take.

A generator makes ``--gb`` of records, dicts with a text each, which run through a keyed step into a sink. The job
runs in a separate process, whose largest resident size is compared with 300 MB.

With ``--windows`` a long run over windows, which differ in their keys, and its largest resident size after a tenth of
the run and at its end.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import malstrom_py as mp
from bench.micro import machine
from bench.micro.timing import WrongResult
from malstrom_py import agg, sinks, windows
from malstrom_py.data.batch import Batch
from malstrom_py.sinks.files import Files
from malstrom_py.sources.generator import Generator
from malstrom_py.worker_context import WorkerInfo

BUDGET_MB: Final = 300.0
TEXT_BYTES: Final = 960
RECORD_BYTES: Final = TEXT_BYTES + len("user-0000") + 8
"""What a record says: its text, its user, its number as an int64. What Python needs for it is not counted."""

USERS: Final = 10_000
PARTS: Final = 2
_TEXT: Final = "".join(chr(ord("a") + number * 7 % 26) for number in range(TEXT_BYTES * 2))

Record = dict[str, Any]


def records(count: int) -> Generator[Record]:
    """``count`` records in ``PARTS`` parts; each has a separate text."""
    per_part = count // PARTS

    def make(part: int, start: int) -> Iterator[Record]:
        for number in range(start, per_part):
            cut = number % TEXT_BYTES
            text = f"{number:016d}{_TEXT[cut : cut + TEXT_BYTES - 16]}"
            yield {"user": f"user-{number % USERS:04d}", "number": number, "text": text}

    return Generator(make, parts=PARTS)


def number_of_user(user: str, record: Record, seen: int | None) -> tuple[Record, int]:
    """Adds to each record how many its user has had."""
    seen = (seen or 0) + 1
    return {**record, "seen": seen}, seen


class Weigh:
    """A sink that counts records and the bytes they say."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0

    def build(self, worker: WorkerInfo) -> Weigh:
        return self

    def write(self, batch: Batch) -> None:
        self.rows += len(batch)
        self.bytes += sum([len(value["text"]) + len(value["user"]) + 8 for value in batch.values])

    def close(self) -> None:
        """Nothing is open."""


def run_job(count: int, parquet: bool) -> dict[str, float]:
    """Run the job here. Returns rows, bytes, seconds and the largest resident size in MB."""
    job, weigh = mp.Job("memory"), Weigh()
    keyed: mp.KeyedStreamBuilder[str, Record] = job.source("records", records(count)).key_by("user", "user")
    numbered = keyed.stateful_map("number", number_of_user)
    started = perf_counter()
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as folder:
        if parquet:
            numbered.sink("files", Files(folder))
        numbered.sink("weigh", weigh)
        mp.run(job, progress=False)
        seconds = perf_counter() - started
        if parquet:
            check_files(Path(folder), weigh.rows)
    return {"rows": weigh.rows, "bytes": weigh.bytes, "seconds": seconds, "rss_mb": peak_mb()}


def check_files(folder: Path, rows: int) -> None:
    """`WrongResult` unless the files in ``folder`` hold ``rows`` rows, by what their footers say."""
    import pyarrow.parquet as pq

    written = sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
    if written != rows:
        raise WrongResult(f"the parquet files hold {written} rows of {rows}")


def peak_mb() -> float:
    """The largest resident size of this process so far, in 10^6 bytes.

    getrusage also counts what the parent held when it started this process, so where the system reports the size of
    this program alone, that is taken.
    """
    status = Path("/proc/self/status")
    if status.is_file() and (found := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return int(found[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


WINDOW_ROWS: Final = 200
"""The rows of a window of ten units, half of them of keys that come in no other window."""

GROWTH_MB: Final = 20.0
"""By how much the largest resident size may grow from a tenth of the run to its end."""

WINDOWS: Final[dict[str, Callable[[Any], Any]]] = {
    "tumbling": lambda keyed: keyed.window("step", windows.tumbling(10)).aggregate(n=agg.count(), total=agg.sum()),
    "sliding": lambda keyed: keyed.window("step", windows.sliding(60, 10)).sum(),
    "session": lambda keyed: keyed.window("step", windows.session(5)).count(),
    "count with a ttl": lambda keyed: keyed.count("step", ttl=100),
}


def run_windows(kind: str, count: int) -> dict[str, float]:
    """Run ``count`` windows of a kind here. Returns the rows, results, and largest resident sizes in MB."""

    def make(part: int, start: int) -> Iterator[tuple[int, int]]:
        for number in range(start, count * WINDOW_ROWS):
            window = number // WINDOW_ROWS
            yield 10 * window + number % 10, (window + 10 if number % 2 else number % 20) * 1_000 + number % WINDOW_ROWS

    sizes: list[float] = []
    results = 0

    def weigh(batch: Any) -> None:
        nonlocal results
        results += 1
        if results % 1_000 == 0:
            sizes.append(peak_mb())

    job = mp.Job("windows")
    timed = job.source("rows", Generator(make)).assign_timestamps("at", lambda row: row[0])
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(20))
    keyed = on_time.key_by("key", lambda row: row[1]).map("one", lambda row: 1)
    WINDOWS[kind](keyed).sink("out", sinks.Callable(weigh))
    result = mp.run(job, progress=False)
    return {"rows": result.read, "results": results, "tenth_mb": sizes[len(sizes) // 10], "rss_mb": peak_mb()}


def report_windows(kind: str, count: int) -> str:
    """One run in a separate process, as a line."""
    found = _in_a_process("--child", kind, "--windows", str(count))
    grown = found["rss_mb"] - found["tenth_mb"]
    return (
        f"{kind}: {count:,} windows, {found['rows']:,.0f} rows, {found['results']:,.0f} results, largest resident size "
        f"{found['tenth_mb']:.0f} MB after a tenth, {found['rss_mb']:.0f} MB at the end, budget for growth < "
        f"{GROWTH_MB:.0f} MB, {'hit' if grown < GROWTH_MB else 'MISS'}"
    )


def run_apart(count: int, *, parquet: bool) -> dict[str, float]:
    """`run_job` in a separate process."""
    return _in_a_process("--child", "records", "--rows", str(count), *(["--parquet"] if parquet else []))


def _in_a_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.micro.memory", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the job failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def report(sink: str, found: dict[str, float], count: int) -> str:
    """One run as a line. `WrongResult` if records were lost."""
    expected = count // PARTS * PARTS
    if (found["rows"], found["bytes"]) != (expected, expected * RECORD_BYTES):
        raise WrongResult(f"{found['rows']:.0f} rows with {found['bytes']:.0f} bytes came through of {expected}")
    rss, rows, seconds = found["rss_mb"], found["rows"], found["seconds"]
    hit = "hit" if rss < BUDGET_MB else "MISS"
    return (
        f"{sink}: {rows:,.0f} rows, {found['bytes'] / 1e9:.2f} GB, {seconds:.1f} s, {rows / seconds:,.0f} rows/s, "
        f"largest resident size {rss:.0f} MB, budget < {BUDGET_MB:.0f} MB, {hit}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.micro.memory", description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0, help="10^9 bytes of records")
    parser.add_argument("--parquet", action="store_true", help="the parquet sink only, instead of both")
    parser.add_argument("--rows", type=int, help="this many rows instead of --gb")
    parser.add_argument("--windows", type=int, help="run this many windows of each kind instead")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    count = asked.rows or int(asked.gb * 1e9 / RECORD_BYTES)
    count = -(-count // PARTS) * PARTS
    if asked.child in WINDOWS:
        print(json.dumps(run_windows(asked.child, asked.windows)))
        return 0
    if asked.child:
        print(json.dumps(run_job(count, asked.parquet)))
        return 0
    print(machine.describe())
    if asked.windows:
        for kind in WINDOWS:
            print(report_windows(kind, asked.windows), flush=True)
        return 0
    try:
        for parquet in (True,) if asked.parquet else (False, True):
            sink = "parquet files" if parquet else "counting sink"
            print(report(sink, run_apart(count, parquet=parquet), count), flush=True)
    except WrongResult as error:
        print(f"WRONG RESULT: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
