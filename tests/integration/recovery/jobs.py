"""Jobs that keep each record's origin, and the checks of their output files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.sources.base import Part

KEYS = 23

Row = tuple[str, int]
"""A record: its part, and its number within the part."""


class Numbered:
    """``parts`` parts of ``rows`` records each; at most ``at_once`` come from one poll."""

    def __init__(self, parts: int, rows: int, at_once: int = 50) -> None:
        self._parts = parts
        self._rows = rows
        self._at_once = at_once

    def list_parts(self) -> Sequence[Part]:
        return [Part(f"part-{number}") for number in range(self._parts)]

    def build_part(self, part: Part, state: Any) -> _NumberedPart:
        return _NumberedPart(part, self._rows, self._at_once, state or 0)


class _NumberedPart:
    def __init__(self, part: str, rows: int, at_once: int, at: int) -> None:
        self._part = part
        self._rows = rows
        self._at_once = at_once
        self._at = at

    def poll(self, rows_max: int) -> list[Row]:
        until = min(self._rows, self._at + min(rows_max, self._at_once))
        rows = [(self._part, number) for number in range(self._at, until)]
        self._at = until
        return rows

    def is_finished(self) -> bool:
        return self._at >= self._rows

    def snapshot(self) -> int:
        return self._at

    def close(self) -> None:
        """Do nothing."""


def key_of(row: Row) -> int:
    """Return the key by which the records of all parts are counted together."""
    return row[1] % KEYS


def nth(key: int, row: Row, seen: int) -> tuple[dict[str, Any], int]:
    """Return the record with its number within its key."""
    return {"part": row[0], "number": row[1], "key": key, "nth": seen + 1}, seen + 1


def numbered(
    out: str, *, parts: int = 4, rows: int = 2_000, each: Callable[[Row], Row] = lambda row: row, at_once: int = 50
) -> mp.Job:
    """Counts the records of each key, and writes each with its count to files of JSON lines in ``out``."""
    job = mp.Job("numbered")
    read = job.source("in", Numbered(parts, rows, at_once)).map("each", each)
    counted = read.key_by("key", key_of).stateful_map("count", nth, default=int)
    counted.sink("out", sinks.Files(out, format="json"))
    return job


def check_written(out: Path, *, parts: int = 4, rows: int = 2_000) -> None:
    """Assert that every record is in the output once, counted once, and in order within its part and key."""
    written = [
        json.loads(line) for path in sorted(out.glob("*.json*")) for line in path.read_text().splitlines() if line
    ]
    came = [(row["part"], row["number"]) for row in written]
    assert len(came) == len(set(came)), "records were written twice"
    assert set(came) == {(f"part-{part}", number) for part in range(parts) for number in range(rows)}
    counts: dict[int, list[int]] = defaultdict(list)
    numbers: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for row in written:
        counts[row["key"]].append(row["nth"])
        numbers[row["part"], row["key"]].append((row["nth"], row["number"]))
    for key, nth in counts.items():
        assert sorted(nth) == list(range(1, len(nth) + 1)), f"key {key} was not counted once for each record"
    for seen in numbers.values():
        in_order = [number for _, number in sorted(seen)]
        assert in_order == sorted(in_order), "records of one part and key were reordered"
