"""A job whose keys are skewed: two heavy keys are in slots of one worker, so that one of them has to move."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.rescale.slots import slot_of
from malstrom_py.sources.base import Part

SLOTS = 1_024
LIGHT = [f"light {number}" for number in range(40)]


def heavy_keys() -> list[str]:
    """Two keys of worker 0 of two, as slots are dealt at the start."""
    keys = (f"heavy {number}" for number in count())
    slots: dict[int, str] = {}
    while len(slots) < 2:
        key = next(keys)
        if (slot := slot_of(key, SLOTS)) % 2 == 0:
            slots.setdefault(slot, key)
    return list(slots.values())


class Skewed:
    """An endless source: 40 rows every 10 ms, of which 30 have one of the heavy keys."""

    def list_parts(self) -> list[Part]:
        return [Part("0"), Part("1")]

    def build_part(self, part: Part, state: Any) -> SkewedPart:
        return SkewedPart(state or 0)


class SkewedPart:
    def __init__(self, number: int) -> None:
        self._number = number
        self._next_s = 0.0
        self._heavy = heavy_keys()

    def poll(self, rows_max: int) -> list[str] | None:
        if time.monotonic() < self._next_s:
            return None
        self._next_s = time.monotonic() + 0.01
        return list(self._rows())

    def _rows(self) -> Iterator[str]:
        for _ in range(40):
            self._number += 1
            yield LIGHT[self._number // 4 % 40] if self._number % 4 == 0 else self._heavy[self._number // 8 % 2]

    def snapshot(self) -> int:
        return self._number

    def is_finished(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""


def skewed(name: str, out: sinks.Memory) -> mp.Job:
    """Counts by key: the outputs of each key are 1, 2, 3 and so on."""
    job = mp.Job(name, slots=SLOTS)
    job.source("rows", Skewed()).key_by("key", lambda key: key).count("n").sink("out", out)
    return job
