"""A scenario: what goes into a step, in order, how it is cut into batches, and where something happens to the step.

Rule: a scenario says everything. Two runs of one scenario differ only in what the law under test makes different.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from malstrom_py.messages import MAX_EPOCH, DataMessage, Epoch


@dataclass(frozen=True, slots=True)
class Tick:
    """The runtime's clock goes on by ``seconds``."""

    seconds: int


Atom = DataMessage[Any, Any] | Epoch | Tick
"""One thing that happens to a step: a record comes, an epoch, or the clock goes on."""


SLOTS: Final = 4
"""Into so many slots the keys of a scenario fall."""

CHUNK_MAX: Final = 1_000
"""The size of a chunk that takes all keys there are."""


@dataclass(frozen=True, slots=True)
class Move:
    """From ``until`` on the instance ``owners[slot]`` has a slot; None: the one that had it.

    At ``at`` the cut is made (R4): slots whose owner changes are frozen, and their keys leave in chunks of at most
    ``chunk``, the first at once and one more behind each atom; each chunk is under way for ``lag`` atoms. At ``until``
    all have arrived. From ``at`` to ``until`` there are rows only, for epochs wait (R3).
    """

    at: int
    until: int
    owners: tuple[int | None, ...]
    chunk: int = CHUNK_MAX
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of one input that come as one batch, or one ``event``. ``first``: the place of its first atom.

    ``segment`` counts the runs of rows and the events, however the rows are cut.
    """

    segment: int
    first: int
    input: int = 0
    rows: tuple[DataMessage[Any, Any], ...] = ()
    event: Epoch | Tick | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """``atoms`` come in order. A batch ends before each atom that stands in ``cuts``.

    Before atom ``at`` the law's event happens. ``owners``: which instance has each slot at first; ``moves`` come one
    after the other (R7); ``slots``: key -> its slot. ``before`` and ``after``: key -> the instance that has it, of
    ``instances`` (before, after). ``inputs``: the input that each atom comes on (epochs come on all).
    """

    atoms: tuple[Atom, ...]
    inputs: tuple[int, ...] = ()
    cuts: frozenset[int] = frozenset()
    at: int = 0
    owners: tuple[int, ...] = (0,) * SLOTS
    moves: tuple[Move, ...] = ()
    slots: Mapping[Any, int] = field(default_factory=dict)
    before: Mapping[Any, int] = field(default_factory=dict)
    after: Mapping[Any, int] = field(default_factory=dict)
    instances: tuple[int, int] = (1, 1)

    @property
    def keys(self) -> list[Any]:
        """The keys of all rows, in order of appearance."""
        return list(dict.fromkeys(atom.key for atom in self.atoms if isinstance(atom, DataMessage)))

    def passed(self, place: int) -> Epoch | None:
        """The last epoch before atom ``place``."""
        return next((atom for atom in reversed(self.atoms[:place]) if isinstance(atom, Epoch)), None)

    def pieces(self, start: int, end: int, cuts: Collection[int]) -> Iterator[Piece]:
        """The atoms from ``start`` up to ``end`` as batches and events."""
        rows: list[DataMessage[Any, Any]] = []
        first, input, segment, in_rows = 0, 0, -1, False
        for place, atom in enumerate(self.atoms[:end]):
            is_row = isinstance(atom, DataMessage)
            segment += not (in_rows and is_row)
            in_rows = is_row
            if place < start:
                continue
            if rows and (place in cuts or not is_row or self._input(place) != input):
                yield Piece(segment - (not is_row), first, input, tuple(rows))
                rows = []
            if isinstance(atom, DataMessage):
                if not rows:
                    first, input = place, self._input(place)
                rows.append(atom)
            else:
                yield Piece(segment, place, event=atom)
        if rows:
            yield Piece(segment, first, input, tuple(rows))

    def shown(self, *, keyed: bool, timed: bool, marks: Mapping[int, str]) -> str:
        """The scenario for people, one atom per line, with ``marks`` before the atoms at these places."""
        form = [name for name, there in (("key", keyed), ("value", True), ("timestamp", timed)) if there]
        lines = [f"  input ({', '.join(form)}):"]
        for place, atom in enumerate([*self.atoms, None]):
            if place in marks:
                lines.append(f"       -- {marks[place]}")
            if isinstance(atom, DataMessage):
                row = tuple(getattr(atom, name) for name in form)
                where = f"  (input {self._input(place)})" if any(self.inputs) else ""
                lines.append(f"    {place:>2}  {row[0] if len(row) == 1 else row!r}{where}")
            elif isinstance(atom, Epoch):
                lines.append(f"    {place:>2}  epoch {'MAX' if atom.time == MAX_EPOCH else atom.time}")
            elif atom is not None:
                lines.append(f"    {place:>2}  the clock goes on by {atom.seconds} s")
        return "\n".join(lines)

    def _input(self, place: int) -> int:
        return self.inputs[place] if self.inputs else 0


Sent = tuple[Any, Any, int | None]
"""A record that came out: key, value, timestamp."""


class Trace:
    """What came out: per segment of the input and per output (and per key, if ``keyed``), the records in order."""

    def __init__(self, *, keyed: bool) -> None:
        self._keyed = keyed
        self.records: dict[int, dict[tuple[str, Any], list[Sent]]] = {}

    def add(self, segment: int, output: str, records: Sequence[Sent]) -> None:
        """``records`` came out of ``output`` during ``segment``."""
        for record in records:
            group = (output, record[0] if self._keyed else None)
            self.records.setdefault(segment, {}).setdefault(group, []).append(record)

    def of_key(self, key: Any) -> Trace:
        """What came out under ``key``."""
        trace = Trace(keyed=self._keyed)
        for segment, groups in self.records.items():
            kept = {group: records for group, records in groups.items() if group[1] == key}
            if kept:
                trace.records[segment] = kept
        return trace

    def __len__(self) -> int:
        return sum(len(records) for groups in self.records.values() for records in groups.values())
