"""Jobs for the benchmark of snapshots: so many keys, of which so many change, and a log of what snapshots cost."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.sources.base import Part

PARTS: Final = 2

Row = tuple[str, int]


class Changing:
    """Gives all keys once, then those that change over and over, until ``run_s`` seconds after the first poll."""

    def __init__(self, keys: int, changing: int, *, run_s: float) -> None:
        self._keys = keys
        self._changing = changing
        self._run_s = run_s

    def list_parts(self) -> Sequence[Part]:
        return [Part(str(number)) for number in range(PARTS)]

    def build_part(self, part: Part, state: Any) -> _ChangingPart:
        mine = range(int(part), self._keys, PARTS)
        first = [(f"user-{number:08d}", number & 63) for number in mine]
        again = first[: max(1, self._changing // PARTS)]
        while len(again) < 1 << 14:
            again = again + again
        return _ChangingPart(first, again, state or 0, self._run_s)


class _ChangingPart:
    def __init__(self, first: list[Row], again: list[Row], at: int, run_s: float) -> None:
        self._first, self._again = first, again
        self._at = at
        self._run_s = run_s
        self._until_s = 0.0

    def poll(self, rows_max: int) -> list[Row]:
        self._until_s = self._until_s or monotonic() + self._run_s
        start = self._at
        if start < len(self._first):
            rows = self._first[start : start + rows_max]
        else:
            place = (start - len(self._first)) % (len(self._again) - rows_max)
            rows = self._again[place : place + rows_max]
        self._at += len(rows)
        return rows

    def is_finished(self) -> bool:
        return self._at >= len(self._first) and monotonic() >= self._until_s

    def snapshot(self) -> int:
        return self._at

    def close(self) -> None:
        """Nothing is open."""


class Told(logging.Handler):
    """Keeps the logged figures of snapshots, as (paused in seconds, bytes written, seconds in all)."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.snapshots: list[tuple[float, int, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "paused" in record.msg and isinstance(record.args, tuple):
            _, _, paused_s, size, took_s = record.args
            self.snapshots.append((float(str(paused_s)), int(str(size)), float(str(took_s))))

    def __enter__(self) -> Told:
        logger = logging.getLogger("malstrom_py")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("malstrom_py").removeHandler(self)


def running_sum(source: Any, name: str = "sums", *, padding: int = 0, noted: str = "") -> tuple[mp.Job, Counted]:
    """A running sum per key, beside ``padding`` bytes of state; and the sink that counts what comes, and notes in the
    file ``noted`` when the first row did.
    """
    job, counted = mp.Job(name), Counted(noted)
    stream = job.source("in", source).key_by("user", _user)
    stream.stateful_map("sum", Padded(padding)).sink("out", sinks.Callable(counted, batch=True))
    return job, counted


class Padded:
    """Adds a row to a sum that is kept beside some bytes."""

    def __init__(self, padding: int) -> None:
        self._padding = "x" * padding

    def __call__(self, key: str, row: Row, state: tuple[int, str] | None) -> tuple[int, tuple[int, str]]:
        total = row[1] + (0 if state is None else state[0])
        return total, (total, self._padding)


class Counted:
    """Counts rows, where the job runs in this process; where it does not, its file shows when the first came."""

    def __init__(self, noted: str) -> None:
        self.rows = 0
        self._noted = noted

    def __call__(self, values: Sequence[Any]) -> None:
        if self._noted and not self.rows and not Path(self._noted).exists():
            Path(self._noted).write_text(str(monotonic()))
        self.rows += len(values)


def _user(row: Row) -> str:
    return row[0]
