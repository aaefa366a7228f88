"""Makes tests/vectors/upgrade-0.1: a job with state of every kind, stopped in the middle. All later versions resume it.

Run ``python -m tests.vectors.upgrade_job FOLDER`` to make it elsewhere. After a version has been released, its folder
never changes: the next version gets another folder, and `tests/integration/test_upgrade.py` resumes each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import malstrom_py as mp
from malstrom_py import agg, sinks, windows
from malstrom_py.sources.base import Part

FOLDERS: Final = Path(__file__).parent
ROWS: Final = 60
STOPS_AT: Final = 40
PARTS: Final = 3
SECOND: Final = 1000
START: Final = 1_700_000_000_000


def row(part: int, index: int) -> dict[str, Any]:
    """Return one reading, up to three seconds out of order. A key is in one part, so its order is always the same."""
    number = index * PARTS + part
    return {
        "key": f"k{part}-{index % 4}",
        "value": number * 37 % 101,
        "weight": number % 13 / 4,
        "price": Decimal(number % 17) / 4,
        "at": START + number * SECOND // 2 - number % 4 * SECOND,
        "seen": datetime(2026, 11, 28, tzinfo=UTC) + timedelta(seconds=number % 29),
    }


class Readings:
    """Parts of ``ROWS`` readings each, as rows or as columns; none after ``limit`` of them, though more are to come."""

    def __init__(self, limit: int, *, columns: bool) -> None:
        self._limit = limit
        self._columns = columns

    def list_parts(self) -> Sequence[Part]:
        return [Part(str(part)) for part in range(PARTS)]

    def build_part(self, part: Part, state: Any) -> _Part:
        return _Part(int(part), state or 0, self._limit, columns=self._columns)


class _Part:
    def __init__(self, part: int, position: int, limit: int, *, columns: bool) -> None:
        self._part, self._position, self._limit, self._columns = part, position, limit, columns

    def poll(self, rows_max: int) -> Any:
        until = min(self._position + min(rows_max, 16), self._limit)
        rows = [row(self._part, index) for index in range(self._position, until)]
        self._position = until
        if not self._columns or not rows:
            return rows or None
        return pa.RecordBatch.from_pylist([{n: r[n] for n in ("key", "value", "weight", "at")} for r in rows])

    def is_finished(self) -> bool:
        return self._position >= ROWS

    def snapshot(self) -> int:
        return self._position

    def close(self) -> None:
        """Do nothing: no resource is open."""


class Reminder(mp.KeyedLogic[str, dict[str, Any], Any, Any]):
    """Sends the time seven seconds after each reading of a key, and counts what it was sent."""

    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        output.set_timer(message.key, message.timestamp + 7 * SECOND)
        return (key_state or 0) + 1

    def on_timer(self, key: str, time: int, key_state: int | None, output: Any) -> int | None:
        output.emit(key, time, time)
        return key_state


def plain(value: Any) -> Any:
    """Return a window's result as a tuple, so that the stored lines do not depend on how the class prints itself."""
    return (value.start, value.end, value.value) if isinstance(value, windows.WindowResult) else value


def upgrade_job(limit: int, out: list[str]) -> mp.Job:
    """Return the job; ``out`` gets a line for each result. Its steps and their order are part of the stored format."""
    job = mp.Job("upgrade", slots=64)
    lines = []

    def line(name: str, stream: Any) -> None:
        lines.append(stream.map_with_key(f"{name}-line", lambda key, value: f"{name} {key} {plain(value)!r}"))

    def timed(name: str, columns: bool) -> Any:
        stream = job.source(name, Readings(limit, columns=columns)).assign_timestamps(f"{name}-at", "at")
        on_time, _ = stream.generate_epochs(f"{name}-epochs", mp.limit_out_of_orderness(timedelta(seconds=3)))
        return on_time.key_by(f"{name}-key", "key")

    rows = timed("rows", columns=False)
    line(
        "map", rows.stateful_map("map", lambda k, v, s: ((s + v["price"], v["seen"]), s + v["price"]), default=Decimal)
    )
    line("running", rows.aggregate("running", n=agg.count(), mean=agg.mean("weight"), best=agg.max("seen")))
    line("distinct", rows.map("value", lambda r: r["value"] % 23).distinct("distinct"))
    line("top", rows.top_n("top", 3, by="value"))
    line("ttl", rows.ttl_map("ttl", lambda k, v, s: (s + 1, s + 1), ttl=timedelta(hours=1), default=int))
    line("fold", rows.fold("fold", lambda last, r: (*last, r["weight"])[-4:], default=tuple))
    line("reminder", rows.stateful_op("reminder", Reminder()))
    line(
        "tumbling",
        rows.window("tumbling", windows.tumbling(timedelta(seconds=10))).aggregate(n=agg.count(), s=agg.sum("price")),
    )
    line("session", rows.window("session", windows.session(timedelta(seconds=4))).collect())
    line("count", rows.window("by-count", windows.count(5)).sum("value"))
    pairs = rows.join_interval("pairs", rows, lower=timedelta(0), upper=timedelta(seconds=4))
    line("pairs", pairs.map("values", lambda pair: (pair.left["value"], pair.right["value"])))

    columns = timed("columns", columns=True)
    line("c-running", columns.aggregate("c-running", n=agg.count(), s=agg.sum("value"), m=agg.mean("weight")))
    line("c-distinct", columns.distinct("c-distinct", by="value"))
    line("c-top", columns.top_n("c-top", 2, by="value"))
    line(
        "c-sliding",
        columns.window("c-sliding", windows.sliding(timedelta(seconds=9), timedelta(seconds=3))).aggregate(
            n=agg.count(), s=agg.sum("value")
        ),
    )
    lines[0].union("all", *lines[1:]).sink("out", sinks.Callable(out.append))
    return job


def make(folder: Path) -> None:
    """Run the job on two workers until it has read all that it gets, stop it, and keep what it has sent."""
    out: list[str] = []
    runtime = mp.InProcess(workers=2, snapshots=mp.Snapshots(str(folder / "snapshots"), interval_s=0.2, keep=2))
    handle = runtime.start(upgrade_job(STOPS_AT, out))
    for step in ("map", "c-top"):
        while sum(line.startswith(f"{step} ") for line in out) < PARTS * STOPS_AT:
            time.sleep(0.1)
    time.sleep(0.5)  # snapshots that hold a chain of changes
    handle.stop()
    (folder / "sent.json").write_text(json.dumps(sorted(out), indent=0))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
