"""The laws of state: it can be stored, sent, moved, and restored at any scale, in full or by deltas.

Chains: a new instance is installed wherever something has been written, and goes through the rest.

Deltas: barriers happen at the cuts of the input. Some snapshots are never committed, and keys move between barriers, so
that the step must track every kind of change.

Migration: keys move as in a rescale, at any place and repeatedly, and the output does not change. Rows of slots in
flight are held, in order, while other rows continue (R5). Epochs and the clock wait for all slots (R3). An instance
that receives a slot has passed the epoch of the cut, and no later one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from malstrom_py.codec import Codec
from malstrom_py.data.messages import Epoch
from malstrom_py.errors import CodecError, MalstromError
from malstrom_py.state.ahead_of_barrier import AheadOfBarrier
from malstrom_py.state.artefact import entries_in
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.testing.exact import same
from malstrom_py.testing.laws.output_laws import REKEYING
from malstrom_py.testing.laws.scenario import (
    SLOTS,
    Broken,
    Delivery,
    Scenario,
    ScenarioRun,
    SlotMove,
    StepUnderTest,
    baseline,
)
from malstrom_py.testing.tester import OperatorTester, Persisted, chain_of


def round_trip(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that encoding and decoding restores each key's state and timers, at rest and in flight."""
    play = ScenarioRun(subject, scenario, cuts=scenario.cuts)
    instance = play.build()
    held = False
    for delivery in scenario.deliveries(0, len(scenario.atoms), scenario.cuts):
        play.deliver(delivery, [instance])
        for step, state in instance.states.items():
            for key in sorted(state.keys(), key=repr):
                held = True
                _compare(step, key, state, instance, broken, {delivery.first: "after this batch, or event"})
    return held


def _compare(
    step: str, key: Any, state: KeyedState, instance: OperatorTester, broken: Broken, marks: dict[int, str]
) -> None:
    codec = instance.codec
    row = [key, state.values.get(key), [state.timers.times(key), state.clock_timers.times(key), _until(state, key)]]
    ways: list[tuple[str, Callable[[], Any]]] = [
        ("at rest", lambda: codec.decode_at_rest(codec.encode_rows_at_rest([row], step=step), step=step)[0]),
        ("in flight", lambda: _sent(codec, step, row)),
    ]
    for where, way in ways:
        try:
            back = way()
        except CodecError as error:
            raise broken(f"  {error}", marks, why=f"it cannot be encoded {where}") from None
        if not same(list(back), row):
            what = f"  step {step!r}, {where}, as [key, state, [timers, timers by the clock, until]]:"
            raise broken(f"{what}\n    expected  {row}\n    got       {list(back)}", marks)


def _sent(codec: Codec, step: str, row: list[Any]) -> list[Any]:
    """Encode and decode ``row`` (a key, its state and its times) in flight."""
    key, value, times = row
    sent = codec.encode_states_in_flight([key], [value], {key: times}, step=step)
    (key,), (value,), woken = codec.decode_in_flight(sent, step=step)
    return [key, value, woken[key]]


def _until(state: KeyedState, key: Any) -> int | None:
    return None if state.expiry is None else state.expiry.until.get(key)


def on_disk(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that a step gives the same output if its state is on disk between any two batches, or events."""
    if not subject.keyed:
        return False
    expected = baseline(subject, scenario, cuts=scenario.cuts)
    play = ScenarioRun(replace(subject, on_disk=True), scenario, cuts=scenario.cuts)
    instance, held = play.build(), False
    try:
        for delivery in scenario.deliveries(0, len(scenario.atoms), scenario.cuts):
            play.take(delivery, [instance])
            held = held or any(state.cold is not None for state in instance.states.values())
    except MalstromError as error:
        raise broken.because(error, {}) from error
    broken.unless_same(expected, play.trace, {}, where="with all state in memory")
    return held


def snapshot(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that a barrier does not change the output, and that a new instance restored from it continues."""
    at = scenario.at
    cuts = scenario.cuts | {at}
    expected = baseline(subject, scenario, cuts=cuts)
    for restored in (False, True):
        play = ScenarioRun(subject, scenario, cuts=cuts)
        marks = {at: "a barrier, and a new instance is restored from it" if restored else "a barrier"}
        instance = play.build()
        try:
            play.run([instance], 0, at)
            persisted = instance.barrier()
            held = _holds_state(instance) or bool(persisted.states and not subject.keyed)
            if restored:
                instance = play.build()
                instance.restore(persisted)
            play.run([instance], at)
        except MalstromError as error:
            raise broken.because(error, marks) from error
        broken.unless_same(expected, play.trace, marks, where="without it")
    return held


def scale(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that the persisted state of N instances restores on M."""
    # If the step changes keys, the owners of the new keys are unknown.
    if not subject.keyed or subject.kinds & REKEYING:
        return False
    at, (before, after) = scenario.at, scenario.instances
    cuts = scenario.cuts | {at}
    marks = {at: f"{before} instances {scenario.before} are restored on {after} {scenario.after}"}
    expected = baseline(subject, scenario, cuts=cuts)
    play = ScenarioRun(subject, scenario, cuts=cuts)
    try:
        givers = [play.build() for _ in range(before)]
        play.run(givers, 0, at, owner=scenario.before.__getitem__)
        held = any(map(_holds_state, givers))
        persisted = [giver.barrier() for giver in givers]
        takers = [play.build() for _ in range(after)]
        for number, taker in enumerate(takers):
            for one in persisted:
                taker.restore(one, partial(_owns, scenario, number))
        play.run(takers, at, owner=scenario.after.__getitem__)
    except MalstromError as error:
        raise broken.because(error, marks) from error
    broken.unless_same(expected, play.trace, marks, where="on one instance throughout")
    return held and (before, after) != (1, 1)


def _owns(scenario: Scenario, instance: int, key: Any) -> bool:
    return scenario.after.get(key, 0) == instance


def _holds_state(instance: OperatorTester) -> bool:
    return any(state.keys() for state in instance.states.values())


def deltas(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that a chain of deltas equals the full state, and that the chains of N instances restore on M."""
    if not subject.keyed or subject.kinds & REKEYING:
        return False
    return _DeltaRun(subject, scenario, broken).holds()


class _DeltaRun:
    """One run of the law of deltas: barriers at the cuts before ``scenario.at``, then restored instances continue."""

    def __init__(self, subject: StepUnderTest, scenario: Scenario, broken: Broken) -> None:
        self._scenario = scenario
        self._broken = broken
        self._cuts = scenario.cuts | {scenario.at}
        self._expected = baseline(subject, scenario, cuts=self._cuts)
        self._play = ScenarioRun(subject, scenario, cuts=self._cuts)
        self._shift = 0
        self._marks: dict[int, str] = {}

    def holds(self) -> bool:
        """Run, and return whether there was state to test. `LawError` if the law is broken."""
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
        where = "on one instance throughout"
        self._broken.unless_same(self._expected, self._play.trace, self._marks, where=where)
        return any(tested)

    def _slot(self, key: Any) -> int:
        return self._scenario.slots.get(key, 0)

    def _slots_of(self, keys: Sequence[Any]) -> list[int]:
        return list(map(self._slot, keys))

    def _owner(self, key: Any) -> int:
        return (self._scenario.before.get(key, 0) + self._shift) % self._scenario.instances[0]

    def _persisted(self, givers: list[OperatorTester]) -> list[list[Persisted]]:
        """Run up to ``scenario.at``; return the persisted state of each of ``givers`` at the committed snapshots."""
        committed: list[list[Persisted]] = [[] for _ in givers]
        at, parent, start = self._scenario.at, None, 0
        places = [*sorted(place for place in self._scenario.cuts if place < at), at]
        for number, place in enumerate(places):
            name = f"snapshot-{number}"
            packing = [one for giver in givers for one in giver.pack_ahead(name, parent=parent)]
            _pack(packing, 1 + number % 4)
            self._play.run(givers, start, place, owner=self._owner)
            start = place
            _pack(packing, number % 3)
            if number % 3 == 1:
                self._shift_keys(givers)
            made = [giver.barrier(name, parent=parent) for giver in givers]
            lost = number % 3 == 2 and place < at
            keys = ", after a move of all keys" if number % 3 == 1 else ""
            self._marks[place] = f"a packed barrier{keys}{', whose snapshot is never committed' if lost else ''}"
            if not lost:
                parent = name
                for mine, one in zip(committed, made, strict=True):
                    mine.append(one)
        self._marks[at] += f"; {len(givers)} instances are restored on {self._scenario.instances[1]}"
        return committed

    def _shift_keys(self, givers: list[OperatorTester]) -> None:
        """Move all keys to the next instance; with a single instance, they leave it and return."""
        taken = [giver.collect(sorted(giver.interrogate(), key=repr)) for giver in givers]
        for number, states in enumerate(taken):
            givers[(number + 1) % len(givers)].acquire(states)
        self._play.note(givers)
        self._shift += 1

    def _compare(self, giver: OperatorTester, committed: list[Persisted]) -> bool:
        """Compare the deltas of ``giver`` with its full state; return whether there were deltas."""
        full, partly = giver.barrier("in-full"), False
        for step in giver.tracked:
            chain = chain_of(committed, step)
            expected = _entries(giver, step, [full.states[step]])
            got = _entries(giver, step, chain)
            _compare_entries(step, expected, got, self._broken, self._marks, why="a change was not tracked")
            partly = partly or (len(chain) > 1 and bool(expected or got))
        return partly


def _pack(packing: Sequence[AheadOfBarrier], steps: int) -> None:
    """Pack the next keys of each, up to ``steps`` times, and what changes between them."""
    for one in packing:
        for _ in range(steps):
            one.keep_small()
            if one.under_way:
                one.next()


def installed(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that a step installed from a chain of artefacts continues as the one that wrote the chain.

    Two runs: in one an instance goes through; in the other a new instance is installed before each cut and after each
    epoch, from the chain that the instances before it have written, and continues that chain. Output and state are the
    same.
    """
    if not subject.keyed or subject.kinds & REKEYING:
        return False
    epochs = {place + 1 for place, atom in enumerate(scenario.atoms[:-1]) if isinstance(atom, Epoch)}
    places = sorted({*scenario.cuts, scenario.at, *epochs} - {0, len(scenario.atoms)})
    through, again = (ScenarioRun(subject, scenario, cuts=places) for _ in range(2))
    kept, new = (play.build().track(_in_one_slot) for play in (through, again))
    chain: list[Persisted] = []
    marks: dict[int, str] = {}
    tested, start, parent = False, 0, None
    try:
        for number, place in enumerate(places):
            through.run([kept], start, place)
            again.run([new], start, place)
            start, name = place, f"snapshot-{number}"
            kept.barrier(name, parent=parent)
            chain.append(new.barrier(name, parent=parent))
            new = again.build().track(_in_one_slot)
            new.install(chain, (0,))
            new.continue_chain(name)
            parent, marks[place] = name, "a new instance is installed from the chain"
            tested = _same_states(kept, new, broken, marks) or tested
        through.run([kept], start)
        again.run([new], start)
    except MalstromError as error:
        raise broken.because(error, marks) from error
    broken.unless_same(through.trace, again.trace, marks, where="on one instance throughout")
    return tested


def _in_one_slot(keys: Sequence[Any]) -> list[int]:
    return [0] * len(keys)


def _same_states(kept: OperatorTester, new: OperatorTester, broken: Broken, marks: dict[int, str]) -> bool:
    """Compare the whole state of two instances; return whether there is any. `LawError` if it differs."""
    kept.interrogate()
    held = bool(new.interrogate())  # which some steps need to take up what was installed
    for step, state in kept.states.items():  # by snapshots, because a barrier would be in the chain
        expected, got = (_entries(kept, step, [one.snapshot()]) for one in (state, new.states[step]))
        _compare_entries(step, expected, got, broken, marks, why="it continues with another state")
    return held


def _entries(instance: OperatorTester, step: str, chain: Sequence[bytes]) -> dict[Any, tuple[Any, list[Any]]]:
    """Return key -> (state, its times) of a chain of artefacts."""
    return {entry.key: (entry.value, list(entry.times)) for entry in entries_in(chain, instance.codec, step=step)}


def _compare_entries(
    step: str, expected: dict[Any, Any], got: dict[Any, Any], broken: Broken, marks: dict[int, str], *, why: str
) -> None:
    for key in sorted(expected.keys() | got.keys(), key=repr):
        wanted, found = expected.get(key, "no state"), got.get(key, "no state")
        if not same(wanted, found):
            what = f"  step {step!r}, key {key!r}, as (state, its times):"
            raise broken(
                f"{what}\n    expected  {wanted}\n    got       {found}\n  (expected: in full)", marks, why=why
            )


def migration(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that moving slots between instances, in chunks and repeatedly, does not change the output."""
    places = {place for move in scenario.moves for place in range(move.at, move.until + 1)}
    cuts = scenario.cuts | places
    expected = baseline(subject, scenario, cuts=cuts)
    play = ScenarioRun(subject, scenario, cuts=cuts)
    run = _SlotMoves(play, broken) if subject.keyed else _PartMoves(play, broken)
    try:
        run.to_the_end()
    except MalstromError as error:
        raise broken.because(error, run.marks) from error
    broken.unless_same(expected, play.trace, run.marks, where="without a move")
    return run.held


@dataclass
class _Chunk:
    """Keys that leave and arrive together, at two places of the scenario."""

    keys: Sequence[Any]
    leaves: int
    arrives: int
    states: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class _Transfer:
    """The keys that one move transfers from one instance to another. ``found``: the keys with state."""

    giver: OperatorTester
    taker: OperatorTester
    keys: Sequence[Any]
    found: set[Any]
    chunks: Sequence[_Chunk]


class _MigrationRun:
    """One run of a scenario with its moves. ``marks``: their descriptions; ``held``: whether state was moved."""

    def __init__(self, play: ScenarioRun, broken: Broken) -> None:
        self.play = play
        self.scenario = play.scenario
        self.broken = broken
        self.marks: dict[int, str] = {}
        self.held = False
        self.owners = self.scenario.owners
        # Later instances join when they get a slot, and are removed when they and all later ones have none.
        self.resident = 1 + max(self.owners)
        self.instances = [play.build() for _ in range(self.resident)]

    def to_the_end(self) -> None:
        """Run the whole scenario."""
        place = 0
        for move in self.scenario.moves:
            self.go_on(place, move.at)
            self.move(move)
            place = move.until
        self.go_on(place, len(self.scenario.atoms))

    def go_on(self, start: int, end: int) -> None:
        """Process the atoms between two moves."""
        raise NotImplementedError

    def move(self, move: SlotMove) -> None:
        """Do one move, and process the rows during the move."""
        raise NotImplementedError

    def mark(self, place: int, what: str) -> None:
        """Describe what happens before an atom."""
        before = f"{self.marks[place]}\n       -- " if place in self.marks else ""
        self.marks[place] = before + what

    def carry(self, ways: Sequence[_Transfer], place: int) -> None:
        """R4: due chunks leave by `Collect`, then due chunks arrive by `Acquire`, also empty ones."""
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

    def arrived(self, ways: Sequence[_Transfer]) -> None:
        """Check that the moved keys have their state on the new instance, and only there."""
        for way in ways:
            keys = set(way.keys)
            left = way.giver.interrogate(keys.__contains__)
            if left:
                raise self.broken(f"  Collect left {left}", self.marks, why="Collect did not remove the state it gave")
            if keys and way.giver.collect(way.keys):
                raise self.broken("", self.marks, why="Collect gave state of keys that have none")
            there = way.taker.interrogate(keys.__contains__)
            if there != way.found:
                detail = f"  before {way.found}, after {there}"
                raise self.broken(detail, self.marks, why="other keys have state after Acquire than before")
            self.held = self.held or bool(way.found)


class _SlotMoves(_MigrationRun):
    """A run in which slots of a keyed step move."""

    def __init__(self, play: ScenarioRun, broken: Broken) -> None:
        super().__init__(play, broken)
        # If the step changes keys, the slots of the new keys are unknown: all move together.
        self._slots = {} if play.subject.kinds & REKEYING else self.scenario.slots

    def slot(self, key: Any) -> int:
        """Return the slot of a key."""
        return self._slots.get(key, 0)

    def owner(self, key: Any) -> int:
        """Return the instance that owns a key."""
        return self.owners[self.slot(key)]

    def go_on(self, start: int, end: int) -> None:
        self.play.run(self.instances, start, end, owner=self.owner)

    def move(self, move: SlotMove) -> None:
        owners = tuple(was if now is None else now for was, now in zip(self.owners, move.owners, strict=True))
        slots: dict[tuple[int, int], set[int]] = {}
        for slot, way in enumerate(zip(self.owners, owners, strict=True)):
            slots.setdefault(way, set()).add(slot)
        self._join(max(owners), move.at)
        ways = [self._way(move, *way, slots[way]) for way in slots if way[0] != way[1]]
        changed = set().union(*(some for (giver, taker), some in slots.items() if giver != taker))
        waiting: list[Delivery] = []
        for place in range(move.at, move.until):
            self.carry(ways, place)
            for delivery in self.scenario.deliveries(place, place + 1, ()):
                if any(self.slot(row.key) in changed for row in delivery.rows):
                    waiting.append(delivery)
                else:
                    self.play.take(delivery, self.instances, owner=self.owner)
        self.carry(ways, move.until)
        self.arrived(ways)
        self.owners = owners
        for delivery in waiting:
            self.play.take(delivery, self.instances, owner=self.owner)
        del self.instances[max(self.resident, 1 + max(self.owners)) :]

    def _join(self, last: int, place: int) -> None:
        """R3: a joining instance first passes the epoch of the cut."""
        while len(self.instances) <= last:
            joiner = self.play.build()
            self.instances.append(joiner)
            epoch = self.scenario.passed(place)
            if epoch is not None:
                joiner.send_local(epoch).step()
                self.play.note([joiner])

    def _way(self, move: SlotMove, giver: int, taker: int, slots: set[int]) -> _Transfer:
        """R4: find the keys with state, and divide the keys of the slots into chunks, at least one."""
        found = self.instances[giver].interrogate(lambda key: self.slot(key) in slots)
        strangers = {key for key in found if self.slot(key) not in slots}
        if strangers:
            why = "Interrogate reported keys that the predicate excludes"
            raise self.broken(f"  Interrogate gave {strangers}", self.marks, why=why)
        known = [key for key in self.scenario.keys if self.slot(key) in slots]
        keys = list(dict.fromkeys([*known, *sorted(found, key=repr)]))
        self._describe(move, f"instance {giver}", taker, keys)
        chunks = [
            _Chunk(keys[start : start + move.chunk], min(place, move.until), min(place + move.lag, move.until))
            for place, start in enumerate(range(0, max(1, len(keys)), move.chunk), move.at)
        ]
        return _Transfer(self.instances[giver], self.instances[taker], keys, found, chunks)

    def _describe(self, move: SlotMove, giver: str, taker: int, keys: list[Any]) -> None:
        what = f"the keys {keys}" if keys else "slots without keys"
        one_by_one = f", {move.chunk} at a time" if len(keys) > move.chunk else ""
        if move.until == move.at:
            self.mark(move.at, f"{what} move from {giver} to {taker}{one_by_one}")
        else:
            self.mark(move.at, f"{what} leave {giver} for {taker}{one_by_one}")
            self.mark(move.until, f"{what} have arrived at instance {taker}, which processes the held rows")


class _PartMoves(_MigrationRun):
    """A run in which the source part of an unkeyed step moves (R2), with the state that steps keep for the part."""

    def __init__(self, play: ScenarioRun, broken: Broken) -> None:
        super().__init__(play, broken)
        self.instances = [play.build(), play.build()]

    def go_on(self, start: int, end: int) -> None:
        self.play.run([self.instances[self.owners[0]]], start, end)

    def move(self, move: SlotMove) -> None:
        owner = self.owners[0] if move.owners[0] is None else min(1, move.owners[0])
        if owner != self.owners[0]:
            self.mark(move.at, f"the source part moves from instance {self.owners[0]} to {owner}")
            giver, taker = self.instances[self.owners[0]], self.instances[owner]
            states = giver.release_parts()
            taker.take_parts(states)
            # Keyed state after an exchange would be reached through the exchange; here it moves as well.
            found = giver.interrogate()
            keys = sorted(found, key=repr)
            ways = [_Transfer(giver, taker, keys, found, [_Chunk(keys, move.at, move.at)])]
            self.carry(ways, move.at)
            self.arrived(ways)
            self.held = self.held or any(states.values())
            self.owners = (owner,) * SLOTS
        self.go_on(move.at, move.until)
