"""The law of deltas: what is persisted in full once, and then where it changed, is all there is, at any scale.

Rule: barriers come wherever the input is cut. Some snapshots are never committed, and in between keys move, so that
each way in which state changes has to be noted by the step that keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from malstrom_py.errors import MalstromError
from malstrom_py.snapshot.keyed_image import entries_in
from malstrom_py.testing.exact import same
from malstrom_py.testing.laws.output_laws import REKEYING
from malstrom_py.testing.laws.play import Broken, Play, Subject, baseline, difference
from malstrom_py.testing.laws.scenario import SLOTS, Scenario
from malstrom_py.testing.persistence import Persisted, chain_of
from malstrom_py.testing.tester import OperatorTester


def deltas(subject: Subject, scenario: Scenario, broken: Broken) -> bool:
    """A chain of what changed says what there is, and what N instances persisted so restores on M."""
    if not subject.keyed or subject.kinds & REKEYING:
        return False
    return _Run(subject, scenario, broken).holds()


class _Run:
    """One run: barriers at the cuts before ``scenario.at``, then other instances go on."""

    def __init__(self, subject: Subject, scenario: Scenario, broken: Broken) -> None:
        self._scenario = scenario
        self._broken = broken
        self._cuts = scenario.cuts | {scenario.at}
        self._expected = baseline(subject, scenario, cuts=self._cuts)
        self._play = Play(subject, scenario, cuts=self._cuts)
        self._turned = 0
        self._marks: dict[int, str] = {}

    def holds(self) -> bool:
        """Whether there was anything to be held against the law; `LawError` where it is broken."""
        scenario, (before, after) = self._scenario, self._scenario.instances
        try:
            givers = [self._play.build().track(self._slots_of) for _ in range(before)]
            committed = self._persisted(givers)
            tested = [self._compare(giver, one) for giver, one in zip(givers, committed, strict=True)]
            takers = [self._play.build() for _ in range(after)]
            for number, taker in enumerate(takers):
                for one in committed:
                    taker.install(one, range(number, SLOTS, after))
            self._play.run(takers, scenario.at, owner=lambda key: self._slot(key) % after)
        except MalstromError as error:
            raise self._broken.because(error, self._marks) from error
        found = difference(self._expected, self._play.trace)
        if found:
            raise self._broken(f"{found}\n  (expected: on one instance throughout)", self._marks)
        return any(tested)

    def _slot(self, key: Any) -> int:
        return self._scenario.slots.get(key, 0)

    def _slots_of(self, keys: Sequence[Any]) -> list[int]:
        return list(map(self._slot, keys))

    def _owner(self, key: Any) -> int:
        return (self._scenario.before.get(key, 0) + self._turned) % self._scenario.instances[0]

    def _persisted(self, givers: list[OperatorTester]) -> list[list[Persisted]]:
        """What each of ``givers`` has persisted for the snapshots that were committed."""
        committed: list[list[Persisted]] = [[] for _ in givers]
        at, parent, start = self._scenario.at, None, 0
        places = [*sorted(place for place in self._scenario.cuts if place < at), at]
        for number, place in enumerate(places):
            self._play.run(givers, start, place, owner=self._owner)
            start = place
            if number % 3 == 1:
                self._turn(givers)
            name = f"snapshot-{number}"
            made = [giver.barrier(name, parent=parent) for giver in givers]
            lost = number % 3 == 2 and place < at
            keys = ", behind a move of all keys" if number % 3 == 1 else ""
            self._marks[place] = f"a barrier{keys}{', whose snapshot is never committed' if lost else ''}"
            if not lost:
                parent = name
                for mine, one in zip(committed, made, strict=True):
                    mine.append(one)
        self._marks[at] += f"; {len(givers)} instances are restored on {self._scenario.instances[1]}"
        return committed

    def _turn(self, givers: list[OperatorTester]) -> None:
        """All keys move on by one instance; with one, they leave it and come back."""
        taken = [giver.collect(sorted(giver.interrogate(), key=repr)) for giver in givers]
        for number, states in enumerate(taken):
            givers[(number + 1) % len(givers)].acquire(states)
        self._play.note(givers)
        self._turned += 1

    def _compare(self, giver: OperatorTester, committed: list[Persisted]) -> bool:
        """What ``giver`` persisted bit by bit must be what it persists in full. Whether there was a bit of it."""
        full, partly = giver.barrier("in-full"), False
        for step in giver.tracked:
            chain = chain_of(committed, step)
            expected, got = (
                {entry.key: (entry.value, list(entry.times)) for entry in entries_in(data, giver.codec, step=step)}
                for data in ([full.states[step]], chain)
            )
            for key in sorted(expected.keys() | got.keys(), key=repr):
                wanted, found = expected.get(key, "no state"), got.get(key, "no state")
                if not same(wanted, found):
                    what = f"  step {step!r}, key {key!r}, as (state, timers):"
                    why = "a change was not noted"
                    detail = f"{what}\n    expected  {wanted}\n    got       {found}\n  (expected: in full)"
                    raise self._broken(detail, self._marks, why=why)
            partly = partly or (len(chain) > 1 and bool(expected or got))
        return partly
