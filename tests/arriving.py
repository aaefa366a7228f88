"""A source whose rows arrive by a load curve, on any clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor
from typing import Any, Final

from malstrom_py.clock import Clock
from malstrom_py.sources.base import Part

KEYS: Final = 97


class Arriving:
    """A source of ``parts`` parts: ``arrived(t)`` rows have arrived after t seconds, until ``seconds`` have passed.

    Rows are numbers, dealt in turn to the parts: each is there once. ``clock`` returns the clock where a part is read.
    """

    def __init__(
        self, arrived: Callable[[float], float], seconds: float, clock: Callable[[], Clock], *, parts: int = 8
    ) -> None:
        self._arrived = arrived
        self._seconds = seconds
        self._clock = clock
        self._parts = parts
        self._from_s = clock().monotonic_s()

    def total(self) -> int:
        """Return how many rows arrive."""
        return floor(self._arrived(self._seconds) / self._parts) * self._parts

    def list_parts(self) -> Sequence[Part]:
        return [Part(str(number)) for number in range(self._parts)]

    def build_part(self, part: Part, state: Any) -> ArrivingPart:
        clock = self._clock()

        def here() -> tuple[int, bool]:
            at_s = min(clock.monotonic_s() - self._from_s, self._seconds)
            return floor(self._arrived(at_s) / self._parts), at_s >= self._seconds

        return ArrivingPart(here, int(part), self._parts, state or 0)


def check_exact(read: int, written: int, seen: Sequence[tuple[int, int]], *, parts: int = 8) -> None:
    """Check that rows were read and written once: those of each part from its first one on, without a gap.

    ``seen``: each row, and which one of its key it was; the key is the row modulo `KEYS`.
    """
    rows = sorted(row for row, _ in seen)
    assert len(rows) == read == written
    for part in range(parts):
        mine = [row for row in rows if row % parts == part]
        assert mine == list(range(part, part + parts * len(mine), parts))
    for key in range(KEYS):
        of_key = sorted(turn for row, turn in seen if row % KEYS == key)
        assert of_key == list(range(1, len(of_key) + 1))


class ArrivingPart:
    """One part: ``here`` returns how many rows have arrived, and whether that is all."""

    wait_max_s = 0.5

    def __init__(self, here: Callable[[], tuple[int, bool]], number: int, parts: int, position: int) -> None:
        self._here = here
        self._number = number
        self._parts = parts
        self._position = position

    def poll(self, rows_max: int) -> Sequence[int] | None:
        until = min(self._here()[0], self._position + rows_max)
        rows = range(self._position, until)
        self._position = until
        return [row * self._parts + self._number for row in rows] or None

    def is_finished(self) -> bool:
        rows, is_all = self._here()
        return is_all and self._position >= rows

    def lag_rows(self) -> int:
        return self._here()[0] - self._position

    def snapshot(self) -> int:
        return self._position

    def close(self) -> None:
        """Nothing is open."""
