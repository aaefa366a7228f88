"""Laws about what a step sends: the same each time, however its input is cut, key by key, and in event time."""

from __future__ import annotations

from functools import partial
from operator import eq

from malstrom_py.messages import MIN_EPOCH, DataMessage, Epoch
from malstrom_py.testing.law_error import LawError
from malstrom_py.testing.laws.play import Broken, Play, Subject, baseline, difference, received
from malstrom_py.testing.laws.scenario import Scenario
from malstrom_py.testing.watch import NO_MUTATION

REKEYING = frozenset(("key_by", "key_local"))
"""Kinds of steps behind which records have other keys."""


def determinism(subject: Subject, scenario: Scenario, broken: Broken) -> bool:
    """Two fresh instances give the same, record by record."""
    first = baseline(subject, scenario, cuts=scenario.cuts, keyed=False)
    second = baseline(subject, scenario, cuts=scenario.cuts, keyed=False)
    found = difference(first, second)
    if found:
        raise broken(found, why="a second run gives something else")
    return len(first) > 0


def no_mutation(subject: Subject, scenario: Scenario, broken: Broken) -> bool:
    """Neither what came in nor what was sent is changed afterwards."""
    play = Play(subject, scenario, cuts=scenario.cuts)
    try:
        play.run([play.build(watched=True)])
    except LawError as error:
        if error.law != NO_MUTATION:
            raise
        raise broken(error.case, why=error.what.partition(", but ")[2]) from None
    return True


def epoch_order(subject: Subject, scenario: Scenario, broken: Broken) -> bool:
    """No record at or below an epoch passed on; epochs never go back, nor ahead of the input's."""
    play = Play(subject, scenario, cuts=scenario.cuts)
    instance = play.build()
    passed = [MIN_EPOCH] * len(instance.lone.outputs)
    promised = MIN_EPOCH
    for piece in scenario.pieces(0, len(scenario.atoms), scenario.cuts):
        marks = {piece.first: "here"}
        if isinstance(piece.event, Epoch):
            promised = piece.event.time
        play.deliver(piece, [instance])
        for output in range(len(passed)):
            for message in instance.receive_local(output):
                last = passed[output]
                if isinstance(message, DataMessage) and message.timestamp is not None and message.timestamp <= last:
                    raise broken(f"  output {output}: {message} came behind epoch {last}", marks)
                if not isinstance(message, Epoch):
                    continue
                if message.time <= last or (message.time > promised and not subject.generates):
                    raise broken(f"  output {output}: {message} behind epoch {last}, the input at {promised}", marks)
                passed[output] = message.time
    return any(epoch > MIN_EPOCH for epoch in passed)


def key_kept(subject: Subject, scenario: Scenario, broken: Broken) -> bool:
    """A record's outputs have its key; outputs of timers and epochs have keys that were there."""
    if not subject.keyed or subject.kinds & REKEYING:
        return False
    play = Play(subject, scenario)
    instance = play.build()
    seen: set[object] = set()
    for piece in scenario.pieces(0, len(scenario.atoms), range(len(scenario.atoms))):
        marks = {piece.first: "here"}
        play.deliver(piece, [instance])
        keys = {row.key for row in piece.rows}
        seen |= keys
        for output, records in received(instance).items():
            for key, value, _ in records:
                if key not in (keys or seen):
                    raise broken(f"  {output}: value {value!r} came out under key {key!r}", marks)
    return bool(seen)


def batch_split(subject: Subject, scenario: Scenario, broken: Broken) -> bool:
    """Any cutting of the input gives the same output per key."""
    expected = baseline(subject, scenario, cuts=())
    rows = [place for place, atom in enumerate(scenario.atoms) if isinstance(atom, DataMessage)]
    for cuts in (scenario.cuts, frozenset(rows)):
        found = difference(expected, baseline(subject, scenario, cuts=cuts))
        if found:
            raise broken(
                f"{found}\n  (expected: with the rows between two events in one batch)",
                {place: "a batch ends here" for place in sorted(cuts) if place and place in rows},
            )
    return len(rows) > 1


def key_isolation(subject: Subject, scenario: Scenario, broken: Broken) -> bool:
    """What comes out for a key depends on its own records only."""
    if not subject.keyed or subject.kinds & REKEYING:
        return False
    together = baseline(subject, scenario, cuts=scenario.cuts, keyed=True)
    for key in scenario.keys:
        play = Play(subject, scenario, cuts=scenario.cuts)
        play.run([play.build()], only=partial(eq, key))
        found = difference(play.trace.of_key(key), together.of_key(key))
        if found:
            raise broken(f"{found}\n  (expected: with the records of key {key!r} alone)")
    return len(scenario.keys) > 1
