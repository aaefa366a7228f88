"""A partitioned sink that shows what was written to each part, and where its writers were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import DataMessage


class PartSink:
    """``rows``: part -> (key, value) of each row; ``log``: what was opened and closed, at which position.

    A part is open in one place at a time, and resumes at its position.
    """

    def __init__(self, part_of: Callable[[DataMessage[Any, Any]], str] = lambda message: "part") -> None:
        self._part_of = part_of
        self.rows: dict[str, list[tuple[Any, Any]]] = {}
        self.log: list[tuple[str, str, int]] = []
        self.open: Counter[str] = Counter()

    def assign_part(self, message: DataMessage[Any, Any]) -> str:
        return self._part_of(message)

    def build_part(self, part: str, state: Any) -> PartWriter:
        self.log.append(("open", part, state or 0))
        self.open[part] += 1
        assert self.open[part] == 1, f"{part} is written in two places"
        assert len(self.rows.setdefault(part, [])) == (state or 0), "it resumes at its position"
        return PartWriter(self, part)


class PartWriter:
    def __init__(self, sink: PartSink, part: str) -> None:
        self._sink, self._part = sink, part

    def write(self, batch: Batch) -> None:
        self._sink.rows[self._part] += zip(batch.keys or [None] * len(batch), batch.values, strict=True)

    def snapshot(self) -> int:
        return len(self._sink.rows[self._part])

    def close(self) -> None:
        self._sink.log.append(("close", self._part, self.snapshot()))
        self._sink.open[self._part] -= 1
