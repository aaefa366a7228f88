"""The law of migration: keys move as in a rescale, at any point and again and again, and nothing else comes out.

Rule: keys wait here for what they wait for in a rescale. Rows of slots under way are kept, in order, while the others
go on (R5); epochs and the clock wait for all slots (R3); who gets a slot has passed the epoch of the cut, and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from malstrom_py.errors import MalstromError
from malstrom_py.testing.laws.output_laws import REKEYING
from malstrom_py.testing.laws.play import Broken, Play, Subject, baseline, difference
from malstrom_py.testing.laws.scenario import SLOTS, Move, Piece, Scenario
from malstrom_py.testing.tester import OperatorTester


def migration(subject: Subject, scenario: Scenario, broken: Broken) -> bool:
    """Moving slots between instances, in chunks, back and on to others, changes nothing that comes out."""
    places = {place for move in scenario.moves for place in range(move.at, move.until + 1)}
    cuts = scenario.cuts | places
    expected = baseline(subject, scenario, cuts=cuts)
    play = Play(subject, scenario, cuts=cuts)
    run = _SlotsMove(play, broken) if subject.keyed else _PartMoves(play, broken)
    try:
        run.to_the_end()
    except MalstromError as error:
        raise broken.because(error, run.marks) from error
    found = difference(expected, play.trace)
    if found:
        raise broken(f"{found}\n  (expected: without a move)", run.marks)
    return run.held


@dataclass
class _Chunk:
    """Keys that leave and arrive together, at these places of the scenario."""

    keys: Sequence[Any]
    leaves: int
    arrives: int
    states: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class _Way:
    """What goes from one instance to another in one move. ``found``: the keys that have state."""

    giver: OperatorTester
    taker: OperatorTester
    keys: Sequence[Any]
    found: set[Any]
    chunks: Sequence[_Chunk]


class _Run:
    """One run of a scenario and its moves. ``marks`` tell of them; ``held``: whether there was anything to move."""

    def __init__(self, play: Play, broken: Broken) -> None:
        self.play = play
        self.scenario = play.scenario
        self.broken = broken
        self.marks: dict[int, str] = {}
        self.held = False
        self.owners = self.scenario.owners
        # Who has no slot at first joins when it gets one, and is gone with the last that was given to those behind it.
        self.resident = 1 + max(self.owners)
        self.instances = [play.build() for _ in range(self.resident)]

    def to_the_end(self) -> None:
        """All of the scenario."""
        place = 0
        for move in self.scenario.moves:
            self.go_on(place, move.at)
            self.move(move)
            place = move.until
        self.go_on(place, len(self.scenario.atoms))

    def go_on(self, start: int, end: int) -> None:
        """Play what stands between two moves."""
        raise NotImplementedError

    def move(self, move: Move) -> None:
        """Do one move, with the rows that come in the meantime."""
        raise NotImplementedError

    def mark(self, place: int, what: str) -> None:
        """Tell what happens before an atom."""
        before = f"{self.marks[place]}\n       -- " if place in self.marks else ""
        self.marks[place] = before + what

    def carry(self, ways: Sequence[_Way], place: int) -> None:
        """R4: what is due leaves by `Collect`, then what is due arrives by `Acquire`: also where there is nothing."""
        for way in ways:
            for chunk in way.chunks:
                if chunk.leaves == place and chunk.keys:
                    chunk.states = way.giver.collect(chunk.keys)
                    self.play.note([way.giver])
        for way in ways:
            for chunk in way.chunks:
                if chunk.arrives == place:
                    way.taker.acquire(chunk.states)
                    self.play.note([way.taker])

    def arrived(self, ways: Sequence[_Way]) -> None:
        """All that had state has it still, but elsewhere."""
        for way in ways:
            keys = set(way.keys)
            left = way.giver.interrogate(keys.__contains__)
            if left:
                raise self.broken(f"  Collect left {left}", self.marks, why="Collect did not remove what it gave away")
            if keys and way.giver.collect(way.keys):
                raise self.broken("", self.marks, why="Collect gave state of keys that have none")
            there = way.taker.interrogate(keys.__contains__)
            if there != way.found:
                said = f"  before {way.found}, after {there}"
                raise self.broken(said, self.marks, why="other keys have state after Acquire than before")
            self.held = self.held or bool(way.found)


class _SlotsMove(_Run):
    """Slots of a keyed step move."""

    def __init__(self, play: Play, broken: Broken) -> None:
        super().__init__(play, broken)
        # Where keys are made anew behind the input nothing is known of their slots: all move together.
        self._slots = {} if play.subject.kinds & REKEYING else self.scenario.slots

    def slot(self, key: Any) -> int:
        """The slot of a key."""
        return self._slots.get(key, 0)

    def owner(self, key: Any) -> int:
        """The instance that has a key."""
        return self.owners[self.slot(key)]

    def go_on(self, start: int, end: int) -> None:
        self.play.run(self.instances, start, end, owner=self.owner)

    def move(self, move: Move) -> None:
        owners = tuple(was if now is None else now for was, now in zip(self.owners, move.owners, strict=True))
        slots: dict[tuple[int, int], set[int]] = {}
        for slot, way in enumerate(zip(self.owners, owners, strict=True)):
            slots.setdefault(way, set()).add(slot)
        self._join(max(owners), move.at)
        ways = [self._way(move, *way, slots[way]) for way in slots if way[0] != way[1]]
        changed = set().union(*(some for (giver, taker), some in slots.items() if giver != taker))
        waiting: list[Piece] = []
        for place in range(move.at, move.until):
            self.carry(ways, place)
            for piece in self.scenario.pieces(place, place + 1, ()):
                if any(self.slot(row.key) in changed for row in piece.rows):
                    waiting.append(piece)
                else:
                    self.play.take(piece, self.instances, owner=self.owner)
        self.carry(ways, move.until)
        self.arrived(ways)
        self.owners = owners
        for piece in waiting:
            self.play.take(piece, self.instances, owner=self.owner)
        del self.instances[max(self.resident, 1 + max(self.owners)) :]

    def _join(self, last: int, place: int) -> None:
        """R3: a joiner passes the epoch of the cut before anything else."""
        while len(self.instances) <= last:
            joiner = self.play.build()
            self.instances.append(joiner)
            epoch = self.scenario.passed(place)
            if epoch is not None:
                joiner.send_local(epoch).step()
                self.play.note([joiner])

    def _way(self, move: Move, giver: int, taker: int, slots: set[int]) -> _Way:
        """R4: find what has state, and divide the keys of these slots into chunks, one at least."""
        found = self.instances[giver].interrogate(lambda key: self.slot(key) in slots)
        strangers = {key for key in found if self.slot(key) not in slots}
        if strangers:
            why = "keys were reported that did not pass"
            raise self.broken(f"  Interrogate gave {strangers}", self.marks, why=why)
        known = [key for key in self.scenario.keys if self.slot(key) in slots]
        keys = list(dict.fromkeys([*known, *sorted(found, key=repr)]))
        self._tell(move, f"instance {giver}", taker, keys)
        chunks = [
            _Chunk(keys[start : start + move.chunk], min(place, move.until), min(place + move.lag, move.until))
            for place, start in enumerate(range(0, max(1, len(keys)), move.chunk), move.at)
        ]
        return _Way(self.instances[giver], self.instances[taker], keys, found, chunks)

    def _tell(self, move: Move, giver: str, taker: int, keys: list[Any]) -> None:
        what = f"the keys {keys}" if keys else "slots without keys"
        one_by_one = f", {move.chunk} at a time" if len(keys) > move.chunk else ""
        if move.until == move.at:
            self.mark(move.at, f"{what} move from {giver} to {taker}{one_by_one}")
        else:
            self.mark(move.at, f"{what} leave {giver} for {taker}{one_by_one}")
            self.mark(move.until, f"{what} have arrived at instance {taker}, and rows that came for them are let in")


class _PartMoves(_Run):
    """The source part of an unkeyed step moves (R2), and with it what steps keep for it."""

    def __init__(self, play: Play, broken: Broken) -> None:
        super().__init__(play, broken)
        self.instances = [play.build(), play.build()]

    def go_on(self, start: int, end: int) -> None:
        self.play.run([self.instances[self.owners[0]]], start, end)

    def move(self, move: Move) -> None:
        owner = self.owners[0] if move.owners[0] is None else min(1, move.owners[0])
        if owner != self.owners[0]:
            self.mark(move.at, f"the source part moves from instance {self.owners[0]} to {owner}")
            giver, taker = self.instances[self.owners[0]], self.instances[owner]
            states = giver.release_parts()
            taker.take_parts(states)
            # Behind an exchange there may be keyed state, which would be reached over it: here it moves as well.
            found = giver.interrogate()
            keys = sorted(found, key=repr)
            ways = [_Way(giver, taker, keys, found, [_Chunk(keys, move.at, move.at)])]
            self.carry(ways, move.at)
            self.arrived(ways)
            self.held = self.held or any(states.values())
            self.owners = (owner,) * SLOTS
        self.go_on(move.at, move.until)
