"""The sources of the benchmarks on Ray: `Endless` costs nothing, `Paced` gives a given number of rows per second.

Rule: a part is where its position says, on every worker. Rows are made when a part is opened, so that
no row travels with the job.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final, Literal

from malstrom_py.sources import Part

PARTS: Final = 4
TICK_S: Final = 0.001
"""About how far apart the stamps of a paced part are: rows that are due within it share one."""

Stamped = tuple[str, int]
"""A key, and a time of the machine's monotonic clock in ns."""


def list_parts() -> list[Part]:
    """The names of the parts."""
    return [Part(f"part-{number}") for number in range(PARTS)]


def number_of(part: Part) -> int:
    return int(part.removeprefix("part-"))


@dataclass(frozen=True, slots=True)
class Endless:
    """Gives the rows of ``make(part number)``, a list or an Arrow ``RecordBatch``, over and over. ``time``: a column of
    moments, which are later each time by as much as all rows span.
    """

    make: Callable[[int], Any]
    time: str | None = None

    def list_parts(self) -> Sequence[Part]:
        return list_parts()

    def build_part(self, part: Part, state: Any) -> EndlessPart:
        return EndlessPart(self.make(number_of(part)), state or 0, self.time)


class EndlessPart:
    def __init__(self, rows: Any, given: int, time: str | None = None) -> None:
        self._rows = rows
        self._given = given
        self._of = len(rows)
        self._time = time
        self._lasts = 0 if time is None else _span_of(rows.column(time))
        gc.collect()
        gc.freeze()  # as in the micro benchmarks: the collector never looks at the input

    def poll(self, rows_max: int) -> Any:
        start = self._given % self._of
        rows = self._rows[start : start + rows_max]
        if self._time is not None:
            rows = _later(rows, self._time, self._given // self._of * self._lasts)
        self._given += len(rows)
        return rows

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> int:
        return self._given

    def close(self) -> None:
        """Nothing is open."""


def _span_of(times: Any) -> int:
    import pyarrow.compute as pc

    ends: dict[str, int] = pc.call_function("min_max", [times]).as_py()
    return ends["max"] - ends["min"] + 1


def _later(rows: Any, time: str, shift: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    moved = pc.call_function("add", [rows.column(time), pa.scalar(shift, pa.int64())])
    return rows.set_column(rows.schema.get_field_index(time), time, moved)


@dataclass(frozen=True, slots=True)
class Paced:
    """Rows of a key and a time. First every key once, as fast as possible; from then on ``rate`` rows a second,
    all keys in turn (0: as many as are taken).

    ``stamps``: "polled", a row carries the time at which it was polled; "due", at which it was to come, so that what
    has to wait in front of a job that does not poll is waiting too. ``go_on_from`` and ``leave_in``: folders with the
    positions of the parts, for a job that resumes where another one was stopped.
    """

    keys: int
    rate: int
    stamps: Literal["polled", "due"]
    go_on_from: str | None = None
    leave_in: str | None = None

    def list_parts(self) -> Sequence[Part]:
        return list_parts()

    def build_part(self, part: Part, state: Any) -> PacedPart:
        if state is None and self.go_on_from is not None:
            state = json.loads(Path(self.go_on_from, f"{part}.json").read_text())
        position = None if self.leave_in is None else Path(self.leave_in, f"{part}.json")
        names = [f"user-{number:06d}" for number in range(number_of(part), self.keys, PARTS)]
        return PacedPart(names, self.rate / PARTS, self.stamps == "due", state or (0, 0, 0), position)


class PacedPart:
    """``state``: how many rows it has given before it was at its pace and how many ticks since; when that began."""

    def __init__(
        self, names: list[str], rate: float, due: bool, state: tuple[int, int, int], note: Path | None
    ) -> None:
        self._rows = max(1, min(len(names), round(rate * TICK_S)))
        self._tick_ns = 1_000_000_000 * self._rows / rate if rate else 0.0
        self._names = names + names[: self._rows]
        self._of = len(names)
        self._due = due
        self._filled, self._ticks, self._since_ns = state
        self._note = note

    def poll(self, rows_max: int) -> list[Stamped] | None:
        now_ns = monotonic_ns()
        if self._filled < self._of or not self._tick_ns:
            return self._unpaced(rows_max, now_ns)
        self._since_ns = self._since_ns or now_ns
        due = int((now_ns - self._since_ns) / self._tick_ns) + 1 - self._ticks
        if due <= 0:
            return None
        rows: list[Stamped] = []
        for tick in range(self._ticks, self._ticks + min(due, max(1, rows_max // self._rows))):
            stamp_ns = self._since_ns + int(tick * self._tick_ns) if self._due else now_ns
            start = tick * self._rows % self._of
            rows += zip(self._names[start : start + self._rows], repeat(stamp_ns), strict=False)
            self._ticks = tick + 1
        return rows

    def _unpaced(self, rows_max: int, now_ns: int) -> list[Stamped]:
        start = self._filled % self._of
        names = self._names[start : min(start + rows_max, self._of)]
        self._filled += len(names)
        return list(zip(names, repeat(now_ns), strict=False))

    def is_finished(self) -> bool:
        return False

    def snapshot(self) -> tuple[int, int, int]:
        return self._filled, self._ticks, self._since_ns

    def close(self) -> None:
        if self._note is not None:
            self._note.write_text(json.dumps(self.snapshot()))
