"""A source whose parts appear while a job runs, for tests in threads of one process and on Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from malstrom_py.sources.base import Part

ROWS = 40


class FolderPart:
    """Reads (part, number) up to `ROWS`, a few at a time."""

    def __init__(self, part: Part, position: int) -> None:
        self._part = part
        self._next = position

    def poll(self, rows_max: int) -> list[tuple[str, int]] | None:
        first, self._next = self._next, min(ROWS, self._next + min(rows_max, 3))
        return [(str(self._part), number) for number in range(first, self._next)] or None

    def is_finished(self) -> bool:
        return self._next >= ROWS

    def snapshot(self) -> int:
        return self._next

    def close(self) -> None:
        """Nothing is open."""


class GrowingFolder:
    """The files of ``folder``, each a part. It writes down what it acknowledges, one line per call."""

    lists_again_every_s = 0.02

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder.with_suffix(".acknowledged")

    def list_parts(self) -> Sequence[Part]:
        return [Part(path.name) for path in sorted(self._folder.iterdir())]

    def new_part_position(self, part: Part) -> int:
        return 10

    def build_part(self, part: Part, state: Any) -> FolderPart:
        return FolderPart(part, 0 if state is None else state)

    def acknowledge(self, job: str, positions: Mapping[Part, Any]) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{job} {sorted(positions.items())}\n")

    @property
    def acknowledged(self) -> list[str]:
        """The positions of each call, so far."""
        return self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []


def expected(first: Sequence[str], new: Sequence[str]) -> list[tuple[str, int]]:
    """The rows of the parts that were there when a job started, and of those that have appeared since."""
    rows = [(part, number) for part in first for number in range(ROWS)]
    return sorted(rows + [(part, number) for part in new for number in range(10, ROWS)])
