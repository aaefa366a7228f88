"""A source whose polls wait: contracts poll without a pause, and what a thread reads ahead needs time to arrive."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from malstrom_py.sources.base import Part, PartitionedSource, SourcePart

PATIENCE_S: Final = 60.0


class PatientSource:
    """Reads ``source``, of which each part has ``rows`` rows. A poll waits for one of them, and not after the last."""

    def __init__(self, source: PartitionedSource[Any], rows: int, rows_before: Any) -> None:
        self._source = source
        self._rows = rows
        self._rows_before = rows_before

    def list_parts(self) -> Sequence[Part]:
        return self._source.list_parts()

    def build_part(self, part: Part, state: Any) -> PatientPart:
        before = 0 if state is None else self._rows_before(state)
        return PatientPart(self._source.build_part(part, state), self._rows - before)


class PatientPart:
    """A part with ``rows`` rows still to come."""

    def __init__(self, part: SourcePart[Any], rows: int) -> None:
        self._part = part
        self._rows = rows

    def poll(self, rows_max: int) -> Any:
        ends = time.monotonic() + PATIENCE_S
        while self._rows > 0:
            try:
                polled: Any = self._part.poll(rows_max)
            except Exception:
                self._rows -= 1
                raise
            if polled is not None and len(polled):
                self._rows -= len(polled)
                return polled
            if time.monotonic() > ends:
                raise TimeoutError(f"{self._rows} rows are missing after {PATIENCE_S} s")
            time.sleep(0.001)
        return None

    def is_finished(self) -> bool:
        return self._part.is_finished()

    def snapshot(self) -> Any:
        return self._part.snapshot()

    def close(self) -> None:
        self._part.close()


def read(part: SourcePart[Any], rows: int) -> list[Any]:
    """Return the next ``rows`` rows of a part."""
    patient = PatientPart(part, rows)
    found: list[Any] = []
    while len(found) < rows:
        found += patient.poll(rows - len(found))
    return found


def wait_for_error(part: SourcePart[Any]) -> None:
    """Poll until the part raises."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        part.poll(1000)
        time.sleep(0.001)
    raise TimeoutError("the part raised nothing")
