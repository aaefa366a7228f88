"""Sources whose parts the driver feeds while the job runs; they record where a part was silent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from malstrom_py.sources.base import Part
from tests.simulation.jobs.inputs import Entry, Input, Scripted, ScriptedPart
from tests.simulation.jobs.records import Record, made
from tests.simulation.jobs.seen import Seen


@dataclass(frozen=True)
class Fed(Input):
    """A source whose parts grow until they are ``ended``.

    ``more``: asked for more when a part has nothing left and has not ended. ``silences``: (part, records before) -> how
    many polls in a row have brought nothing there, since the job was started last.
    """

    kind: str = "script"
    parts: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    silences: Counter[tuple[str, int]] = field(default_factory=Counter)
    more: Callable[[Fed, str], None] | None = None

    @property
    def open(self) -> list[str]:
        """The parts that may still be fed."""
        return [part for part in self.parts if part not in self.ended]

    def feed(self, part: str, key: Any, time: int) -> None:
        """One record more."""
        self._add(part, made(self.name, part, len(self.records(part)), key, time))

    def say_nothing(self, part: str, polls: int) -> None:
        """The next ``polls`` polls after the fed records return nothing."""
        self._add(part, polls)

    def end(self) -> None:
        """No part is fed any more."""
        self.ended.update(self.parts)

    def told(self) -> Input:
        """The same as an input that had all of it from the start, with the silences that were seen."""
        parts = {}
        for part in self.parts:
            records = self.records(part)
            pairs = [(self.silences[part, at], record) for at, record in enumerate(records)]
            entries: list[Entry] = [entry for silence, record in pairs for entry in (silence, record)]
            parts[part] = (*entries, self.silences[part, len(records)])
        return Input(self.name, self.kind, parts)

    def source(self, seen: Seen) -> Any:
        """The source that a job reads."""
        return FedSource(self, seen)

    def _add(self, part: str, entry: Entry) -> None:
        assert part not in self.ended
        assert isinstance(self.parts, dict)
        self.parts[part] = (*self.parts[part], entry)


class FedSource(Scripted):
    """Reads a `Fed`."""

    def __init__(self, given: Fed, seen: Seen) -> None:
        super().__init__(given, seen)
        self.fed = given

    def list_parts(self) -> list[Part]:
        if not self.seen.kept:
            self.fed.silences.clear()  # the job starts over
        return [Part(name) for name in self.fed.parts]

    def build_part(self, part: Part, state: Any) -> FedPart:
        if (self.given.name, part) in self.seen.open_parts:
            self.seen.broken.append(f"part {part} of source {self.given.name} is read twice at the same time")
        return FedPart(self.fed, part, state, self.seen)


class FedPart(ScriptedPart):
    def __init__(self, given: Fed, part: str, state: Any, seen: Seen) -> None:
        super().__init__(given, part, state, seen)
        self._fed = given

    def poll(self, rows_max: int) -> Any:
        if self._at_the_end() and self._fed.more is not None and self._part not in self._fed.ended:
            self._fed.more(self._fed, self._part)
        self._entries = self._fed.parts[self._part]
        rows = super().poll(rows_max)
        if rows is None:
            read = sum(isinstance(entry, Record) for entry in self._entries[: self._at])
            self._fed.silences[self._part, read] += 1
        return rows

    def is_finished(self) -> bool:
        return self._part in self._fed.ended and self._at_the_end()

    def _at_the_end(self) -> bool:
        self._entries = self._fed.parts[self._part]
        return super().is_finished()
