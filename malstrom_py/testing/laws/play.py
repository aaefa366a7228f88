"""Playing a scenario to one or several instances of a step, and comparing what comes out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from malstrom_py.errors import MalstromError
from malstrom_py.messages import DataMessage
from malstrom_py.testing.exact import same
from malstrom_py.testing.law_error import LawError
from malstrom_py.testing.laws.scenario import Piece, Scenario, Sent, Tick, Trace
from malstrom_py.testing.lone_step import StreamFactory
from malstrom_py.testing.tester import OperatorTester
from malstrom_py.virtual_clock import VirtualClock

DEAD_LETTERS = "dead letters"


class _Unchecked(OperatorTester):
    """With the watch on values only: what can be encoded is a law of its own."""

    def _check_output(self, batch: Any, step: str) -> None:
        return

    def _check_states(self) -> None:
        return

    def _check_held(self) -> None:
        return


@dataclass(frozen=True)
class Subject:
    """The step that laws are held against, and the streams that it takes."""

    factory: StreamFactory
    keyed: bool = False
    timed: bool = False
    inputs: int = 1
    types: tuple[type, ...] = ()

    def build(self, clock: VirtualClock | None = None, *, watched: bool = False) -> OperatorTester:
        """A new instance: the factory is called anew, so that instances share no more than it lets them."""
        return _Unchecked(
            self.factory,
            keyed=self.keyed,
            timed=self.timed,
            inputs=self.inputs,
            types=self.types,
            clock=clock,
            checks=watched,
        )

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of the steps that the factory makes."""
        return frozenset(step.kind for step in self.build().lone.steps)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The streams that the factory returns, by the names that a trace has for them."""
        return tuple(f"output {number}" for number in range(len(self.build().lone.outputs)))

    @property
    def generates(self) -> bool:
        """Whether the step makes epochs of its own, as ``generate_epochs`` does."""
        return "generate_epochs" in self.kinds


class Play:
    """One run of a scenario over instances that share a clock. ``trace`` is what came out."""

    def __init__(
        self, subject: Subject, scenario: Scenario, *, cuts: Collection[int] = (), keyed: bool | None = None
    ) -> None:
        self.subject = subject
        self.scenario = scenario
        self.clock = VirtualClock()
        self.trace = Trace(keyed=subject.keyed if keyed is None else keyed)
        self._cuts = cuts
        self._segment = 0

    def build(self, *, watched: bool = False) -> OperatorTester:
        """A new instance on this play's clock."""
        return self.subject.build(self.clock, watched=watched)

    def run(
        self,
        instances: list[OperatorTester],
        start: int = 0,
        end: int | None = None,
        *,
        owner: Callable[[Any], int] = lambda key: 0,
        only: Callable[[Any], bool] = lambda key: True,
    ) -> None:
        """Play atoms ``start`` to ``end``: rows to the instance that owns their key, events to all."""
        end = len(self.scenario.atoms) if end is None else end
        for piece in self.scenario.pieces(start, end, self._cuts):
            self.take(piece, instances, owner=owner, only=only)

    def take(
        self,
        piece: Piece,
        instances: list[OperatorTester],
        *,
        owner: Callable[[Any], int] = lambda key: 0,
        only: Callable[[Any], bool] = lambda key: True,
    ) -> None:
        """Give one piece to the instances, and note what comes out."""
        self._segment = piece.segment
        self.deliver(piece, instances, owner=owner, only=only)
        self.note(instances)

    def note(self, instances: Iterable[OperatorTester]) -> None:
        """What comes out now belongs to the piece that was taken last."""
        for instance in instances:
            for output, records in received(instance).items():
                self.trace.add(self._segment, output, records)

    def deliver(
        self,
        piece: Piece,
        instances: list[OperatorTester],
        *,
        owner: Callable[[Any], int] = lambda key: 0,
        only: Callable[[Any], bool] = lambda key: True,
    ) -> None:
        """Give one piece to the instances."""
        if isinstance(piece.event, Tick):
            self.clock.advance(piece.event.seconds)
        for number, instance in enumerate(instances):
            if piece.event is None:
                rows = [row for row in piece.rows if only(row.key) and owner(row.key) == number]
                if not rows:
                    continue
                # Each play has values of its own, so that a step that changes them spoils no other play.
                instance.send_local(copy.deepcopy(rows), input=piece.input)
            elif not isinstance(piece.event, Tick):
                instance.send_local(piece.event)
            instance.step()


def received(instance: OperatorTester) -> dict[str, list[Sent]]:
    """The records that have come out of an instance since it was last asked, by output."""
    found: dict[str, list[Sent]] = {}
    for output in range(len(instance.lone.outputs)):
        found[f"output {output}"] = _records(instance.receive_local(output))
    letters = [letter for _, letter, _ in _records(instance.receive_dead_letters())]
    found[DEAD_LETTERS] = [(letter.key, letter, letter.timestamp) for letter in letters]
    return found


def _records(messages: Iterable[Any]) -> list[Sent]:
    return [(m.key, m.value, m.timestamp) for m in messages if isinstance(m, DataMessage)]


def baseline(subject: Subject, scenario: Scenario, *, cuts: Collection[int], keyed: bool | None = None) -> Trace:
    """What one undisturbed instance makes of a scenario."""
    play = Play(subject, scenario, cuts=cuts, keyed=keyed)
    play.run([play.build()])
    return play.trace


def difference(expected: Trace, got: Trace) -> str | None:
    """The first difference between two traces, for people; None if there is none."""
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
    """Makes the `LawError` of one law over one scenario."""

    law: str
    promise: str
    subject: Subject
    scenario: Scenario

    def __call__(self, detail: str, marks: Mapping[int, str] | None = None, *, why: str = "") -> LawError:
        """The error. ``why``: what was found instead, in a few words; ``detail``: expected against got."""
        shown = self.scenario.shown(keyed=self.subject.keyed, timed=self.subject.timed, marks=marks or {})
        what = f"{self.promise}{f', but {why}' if why else ''}"
        return LawError(self.law, what, case=f"{shown}\n{detail}" if detail else shown)

    def because(self, error: MalstromError, marks: Mapping[int, str]) -> LawError:
        """The same because something raised that did not when nothing happened to the step."""
        return self(f"  {type(error).__name__}: {error}", marks, why="it raised")
