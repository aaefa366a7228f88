"""A source of a function: the parts of a test that need their rows by a clock, a gate, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from malstrom_py.sources.base import Part

Give = Callable[[str, int, int], Any]
"""(part, position, rows_max) -> the next rows, or None if there are none yet."""


class Polled:
    """Each part gives the rows of ``give``, and ends where ``ended(part, position)``; its position is a row count."""

    def __init__(
        self,
        give: Give,
        *,
        parts: Sequence[str] = ("0",),
        ended: Callable[[str, int], bool] = lambda part, at: False,
    ) -> None:
        self.give, self.parts, self.ended = give, parts, ended

    def list_parts(self) -> list[Part]:
        return [Part(part) for part in self.parts]

    def build_part(self, part: Part, state: Any) -> PolledPart:
        return PolledPart(self, part, state or 0)


class PolledPart:
    def __init__(self, source: Polled, part: str, at: int) -> None:
        self._source, self._part, self._at = source, part, at

    def poll(self, rows_max: int) -> Any:
        rows = self._source.give(self._part, self._at, rows_max)
        self._at += 0 if rows is None else len(rows)
        return rows

    def is_finished(self) -> bool:
        return self._source.ended(self._part, self._at)

    def snapshot(self) -> int:
        return self._at

    def close(self) -> None:
        """Nothing is open."""
