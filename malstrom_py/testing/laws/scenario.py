"""Scenarios: the input of a step and the events of a law; their runs on instances of the step, and their shrinking.

Rule: a scenario determines its run completely: the input in order, the cuts into batches, and the place of the law's
event. Two runs of one scenario differ only in what the law under test varies.

Shrinking removes atoms, cuts and moves; hypothesis shrinks the values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from malstrom_py.clock import VirtualClock
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.errors import MalstromError
from malstrom_py.testing.exact import same
from malstrom_py.testing.law_error import LawError
from malstrom_py.testing.single_step import StreamFactory
from malstrom_py.testing.tester import OperatorTester


@dataclass(frozen=True, slots=True)
class Tick:
    """The runtime's clock advances by ``seconds``."""

    seconds: int


Atom = DataMessage[Any, Any] | Epoch | Tick
"""One event of a scenario: a record, an epoch, or an advance of the clock."""


SLOTS: Final = 4
"""The number of slots of a scenario's keys."""

CHUNK_MAX: Final = 1_000
"""The size of a chunk that holds all keys."""


@dataclass(frozen=True, slots=True)
class SlotMove:
    """A move of slots: from ``until`` on, instance ``owners[slot]`` owns a slot; None: the previous owner keeps it.

    At ``at`` the cut is made (R4): slots whose owner changes are frozen, and their keys leave in chunks of at most
    ``chunk``, the first immediately and one more after each atom; each chunk is in flight for ``lag`` atoms. At
    ``until`` all have arrived. From ``at`` to ``until`` there are only rows, because epochs wait (R3).
    """

    at: int
    until: int
    owners: tuple[int | None, ...]
    chunk: int = CHUNK_MAX
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Delivery:
    """One batch of consecutive rows of one input, or one ``event``. ``first``: the place of its first atom.

    ``segment``: the number of the run of rows or of the event; it does not depend on the cuts.
    """

    segment: int
    first: int
    input: int = 0
    rows: tuple[DataMessage[Any, Any], ...] = ()
    event: Epoch | Tick | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """The input of a step: ``atoms`` in order. A batch ends before each place in ``cuts``.

    The law's event happens before atom ``at``. ``owners``: the first owner of each slot; ``moves`` happen one after the
    other (R7); ``slots``: key -> its slot. ``before`` and ``after``: key -> the instance that owns the key, of
    ``instances`` (before, after). ``inputs``: the input of each atom (epochs go to all inputs).
    """

    atoms: tuple[Atom, ...]
    inputs: tuple[int, ...] = ()
    cuts: frozenset[int] = frozenset()
    at: int = 0
    owners: tuple[int, ...] = (0,) * SLOTS
    moves: tuple[SlotMove, ...] = ()
    slots: Mapping[Any, int] = field(default_factory=dict)
    before: Mapping[Any, int] = field(default_factory=dict)
    after: Mapping[Any, int] = field(default_factory=dict)
    instances: tuple[int, int] = (1, 1)

    @property
    def keys(self) -> list[Any]:
        """The keys of all rows, in the order of their first row."""
        return list(dict.fromkeys(atom.key for atom in self.atoms if isinstance(atom, DataMessage)))

    def passed(self, place: int) -> Epoch | None:
        """Return the last epoch before atom ``place``."""
        return next((atom for atom in reversed(self.atoms[:place]) if isinstance(atom, Epoch)), None)

    def deliveries(self, start: int, end: int, cuts: Collection[int]) -> Iterator[Delivery]:
        """Yield the atoms from ``start`` up to ``end`` as batches and events."""
        rows: list[DataMessage[Any, Any]] = []
        first, input, segment, in_rows = 0, 0, -1, False
        for place, atom in enumerate(self.atoms[:end]):
            is_row = isinstance(atom, DataMessage)
            segment += not (in_rows and is_row)
            in_rows = is_row
            if place < start:
                continue
            if rows and (place in cuts or not is_row or self._input(place) != input):
                yield Delivery(segment - (not is_row), first, input, tuple(rows))
                rows = []
            if isinstance(atom, DataMessage):
                if not rows:
                    first, input = place, self._input(place)
                rows.append(atom)
            else:
                yield Delivery(segment, place, event=atom)
        if rows:
            yield Delivery(segment, first, input, tuple(rows))

    def shown(self, *, keyed: bool, timed: bool, marks: Mapping[int, str]) -> str:
        """Return the scenario as text, one atom per line, with ``marks`` before the atoms at their places."""
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
                lines.append(f"    {place:>2}  watermark {'MAX' if atom.time == MAX_EPOCH else atom.time}")
            elif atom is not None:
                lines.append(f"    {place:>2}  the clock advances by {atom.seconds} s")
        return "\n".join(lines)

    def _input(self, place: int) -> int:
        return self.inputs[place] if self.inputs else 0


Sent = tuple[Any, Any, int | None]
"""An output record: key, value, timestamp."""


class Trace:
    """The output records in order, per segment of the input and per output (and per key, if ``keyed``)."""

    def __init__(self, *, keyed: bool) -> None:
        self._keyed = keyed
        self.records: dict[int, dict[tuple[str, Any], list[Sent]]] = {}

    def add(self, segment: int, output: str, records: Sequence[Sent]) -> None:
        """Add ``records`` of ``output`` during ``segment``."""
        for record in records:
            group = (output, record[0] if self._keyed else None)
            self.records.setdefault(segment, {}).setdefault(group, []).append(record)

    def of_key(self, key: Any) -> Trace:
        """Return the part of the trace with ``key``."""
        trace = Trace(keyed=self._keyed)
        for segment, groups in self.records.items():
            kept = {group: records for group, records in groups.items() if group[1] == key}
            if kept:
                trace.records[segment] = kept
        return trace

    def __len__(self) -> int:
        return sum(len(records) for groups in self.records.values() for records in groups.values())


DEAD_LETTERS = "dead letters"


class _Unencoded(OperatorTester):
    """A tester that only watches values for changes: a separate law checks the encoding.

    It warns of nothing: small random streams say little of whether a function forgets ``return``.
    """

    encodes = False

    def __init__(self, factory: StreamFactory, **options: Any) -> None:
        super().__init__(factory, **options)
        for name, operator in self._runner.operators.items():
            operator.context.warned.add(name)


@dataclass(frozen=True)
class StepUnderTest:
    """The step that laws check, and the form of its input streams. ``on_disk``: all its state is put on disk."""

    factory: StreamFactory
    keyed: bool = False
    timed: bool = False
    inputs: int = 1
    types: tuple[type, ...] = ()
    on_disk: bool = False

    def build(self, clock: VirtualClock | None = None, *, watched: bool = False) -> OperatorTester:
        """Call the factory for a new instance; instances share only what the factory shares."""
        made = _Unencoded(
            self.factory,
            keyed=self.keyed,
            timed=self.timed,
            inputs=self.inputs,
            types=self.types,
            clock=clock,
            checks=watched,
        )
        return made.keep_on_disk() if self.on_disk else made

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of the steps that the factory makes."""
        return frozenset(step.kind for step in self.build().single.steps)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of the output streams in a trace."""
        return tuple(f"output {number}" for number in range(len(self.build().single.outputs)))

    @property
    def generates(self) -> bool:
        """Whether the step makes epochs, as ``generate_epochs`` does."""
        return "generate_epochs" in self.kinds


Owner = Callable[[Any], int | None]
"""Key -> the number of the instance that processes its rows; None: they are left out."""


def first_instance(key: Any) -> int:
    """Return 0: one instance owns all keys."""
    return 0


class ScenarioRun:
    """One run of a scenario on instances that share a clock. ``trace``: the output."""

    def __init__(
        self, subject: StepUnderTest, scenario: Scenario, *, cuts: Collection[int] = (), keyed: bool | None = None
    ) -> None:
        self.subject = subject
        self.scenario = scenario
        self.clock = VirtualClock()
        self.trace = Trace(keyed=subject.keyed if keyed is None else keyed)
        self._cuts = cuts
        self._segment = 0

    def build(self, *, watched: bool = False) -> OperatorTester:
        """Make an instance on the clock of this run."""
        return self.subject.build(self.clock, watched=watched)

    def run(
        self, instances: list[OperatorTester], start: int = 0, end: int | None = None, *, owner: Owner = first_instance
    ) -> None:
        """Process atoms ``start`` to ``end``: rows on the instance that owns their key, events on all instances."""
        end = len(self.scenario.atoms) if end is None else end
        for delivery in self.scenario.deliveries(start, end, self._cuts):
            self.take(delivery, instances, owner=owner)

    def take(self, delivery: Delivery, instances: list[OperatorTester], *, owner: Owner = first_instance) -> None:
        """Deliver one batch or event to the instances, and record the output."""
        self._segment = delivery.segment
        self.deliver(delivery, instances, owner=owner)
        self.note(instances)

    def note(self, instances: Iterable[OperatorTester]) -> None:
        """Record the output of the instances under the segment of the last delivery."""
        for instance in instances:
            for output, records in received(instance).items():
                self.trace.add(self._segment, output, records)

    def deliver(self, delivery: Delivery, instances: list[OperatorTester], *, owner: Owner = first_instance) -> None:
        """Deliver one batch or event to the instances."""
        if isinstance(delivery.event, Tick):
            self.clock.advance(delivery.event.seconds)
        for number, instance in enumerate(instances):
            if delivery.event is None:
                rows = [row for row in delivery.rows if owner(row.key) == number]
                if not rows:
                    continue
                self.send(delivery, rows, instance)
            elif not isinstance(delivery.event, Tick):
                instance.send_local(delivery.event)
            instance.step()

    def send(self, delivery: Delivery, rows: Sequence[DataMessage[Any, Any]], instance: OperatorTester) -> None:
        """Give rows of a delivery to an instance: copies, so that a step that changes values affects no other run."""
        instance.send_local(copy.deepcopy(rows), input=delivery.input)


def received(instance: OperatorTester) -> dict[str, list[Sent]]:
    """Return the output records of an instance since the last call, by output."""
    found: dict[str, list[Sent]] = {}
    for output in range(len(instance.single.outputs)):
        found[f"output {output}"] = _records(instance.receive_local(output))
    letters = [letter for _, letter, _ in _records(instance.receive_dead_letters())]
    found[DEAD_LETTERS] = [(letter.key, letter, letter.timestamp) for letter in letters]
    return found


def _records(messages: Iterable[Any]) -> list[Sent]:
    return [(m.key, m.value, m.timestamp) for m in messages if isinstance(m, DataMessage)]


def baseline(subject: StepUnderTest, scenario: Scenario, *, cuts: Collection[int], keyed: bool | None = None) -> Trace:
    """Return the output of one undisturbed instance."""
    play = ScenarioRun(subject, scenario, cuts=cuts, keyed=keyed)
    play.run([play.build()])
    return play.trace


def difference(expected: Trace, got: Trace) -> str | None:
    """Return the first difference between two traces as text, or None."""
    for segment in sorted(expected.records.keys() | got.records.keys()):
        wanted, found = expected.records.get(segment, {}), got.records.get(segment, {})
        for group in dict.fromkeys([*wanted, *found]):
            if not same(wanted.get(group, []), found.get(group, [])):
                return (
                    f"  {group[0]}{'' if group[1] is None else f', key {group[1]!r}'}, as (key, value, timestamp):\n"
                    f"    expected  {wanted.get(group, [])}\n"
                    f"    got       {found.get(group, [])}"
                )
    return None


@dataclass(frozen=True, slots=True)
class Broken:
    """Makes the `LawError` of one law and one scenario."""

    law: str
    promise: str
    subject: StepUnderTest
    scenario: Scenario

    def __call__(self, detail: str, marks: Mapping[int, str] | None = None, *, why: str = "") -> LawError:
        """Return the error. ``why``: the observed fault, in a few words; ``detail``: expected and actual output."""
        shown = self.scenario.shown(keyed=self.subject.keyed, timed=self.subject.timed, marks=marks or {})
        what = f"{self.promise}{f', but {why}' if why else ''}"
        return LawError(self.law, what, case=f"{shown}\n{detail}" if detail else shown)

    def unless_same(
        self, expected: Trace, got: Trace, marks: Mapping[int, str] | None = None, *, where: str = "", why: str = ""
    ) -> None:
        """Raise the error if the traces differ. ``where``: the circumstances of the ``expected`` one."""
        found = difference(expected, got)
        if found:
            raise self(f"{found}\n  (expected: {where})" if where else found, marks, why=why)

    def because(self, error: MalstromError, marks: Mapping[int, str]) -> LawError:
        """Return the error for an exception that an undisturbed step does not raise."""
        return self(f"  {type(error).__name__}: {error}", marks, why="it raised")


def shrunk(scenario: Scenario, breaks: Callable[[Scenario], bool]) -> Scenario:
    """Shrink a scenario until removing any further part would no longer break the law."""
    found = True
    while found:
        found = False
        for smaller in _smaller(scenario):
            if breaks(smaller):
                scenario, found = smaller, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for place in range(len(scenario.atoms) - 1):
        yield _without(scenario, place)
    for cut in sorted(scenario.cuts):
        yield replace(scenario, cuts=scenario.cuts - {cut})
    for slot, owner in enumerate(scenario.owners):
        if owner:
            owners = (*scenario.owners[:slot], 0, *scenario.owners[slot + 1 :])
            yield replace(scenario, owners=owners)
            yield replace(scenario, owners=owners, moves=tuple(_mirrored(move, slot) for move in scenario.moves))
    for number, move in enumerate(scenario.moves):
        before, after = scenario.moves[:number], scenario.moves[number + 1 :]
        yield replace(scenario, moves=before + after)
        for simpler in _simpler(move):
            yield replace(scenario, moves=(*before, simpler, *after))


def _mirrored(move: SlotMove, slot: int) -> SlotMove:
    """Return the move with instances 0 and 1 exchanged for one slot."""
    owner = move.owners[slot]
    return replace(
        move, owners=(*move.owners[:slot], 1 - owner if owner in (0, 1) else owner, *move.owners[slot + 1 :])
    )


def _simpler(move: SlotMove) -> Iterator[SlotMove]:
    """Yield simpler moves: without duration, in one chunk, with fewer slots."""
    if move.until > move.at:
        yield replace(move, until=move.at)
        yield replace(move, until=move.until - 1)
    if move.lag:
        yield replace(move, lag=0)
    if move.chunk < CHUNK_MAX:
        yield replace(move, chunk=CHUNK_MAX)
    for slot, owner in enumerate(move.owners):
        if owner is not None:
            yield replace(move, owners=(*move.owners[:slot], None, *move.owners[slot + 1 :]))


def _without(scenario: Scenario, place: int) -> Scenario:
    """Return the scenario without one atom, and without the owners of keys that occur only there."""

    def moved(other: int) -> int:
        return other - (other > place)

    inputs = scenario.inputs
    smaller = replace(
        scenario,
        atoms=scenario.atoms[:place] + scenario.atoms[place + 1 :],
        inputs=inputs[:place] + inputs[place + 1 :],
        cuts=frozenset(moved(cut) for cut in scenario.cuts if cut != place),
        at=moved(scenario.at),
        moves=tuple(replace(move, at=moved(move.at), until=moved(move.until)) for move in scenario.moves),
    )
    keys = set(smaller.keys)
    return replace(
        smaller,
        slots={key: slot for key, slot in scenario.slots.items() if key in keys},
        before={key: owner for key, owner in scenario.before.items() if key in keys},
        after={key: owner for key, owner in scenario.after.items() if key in keys},
    )
