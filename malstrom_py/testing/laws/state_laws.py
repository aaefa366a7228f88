"""Laws about the state of a step: it can be stored, sent, and restored at any scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from malstrom_py.codec import Codec
from malstrom_py.errors import CodecError, MalstromError
from malstrom_py.state import KeyedState
from malstrom_py.testing.exact import same
from malstrom_py.testing.laws.output_laws import REKEYING
from malstrom_py.testing.laws.play import Broken, Play, Subject, baseline, difference
from malstrom_py.testing.laws.scenario import Scenario
from malstrom_py.testing.tester import OperatorTester


def round_trip(subject: Subject, scenario: Scenario, broken: Broken) -> bool:
    """Each key's state, and its timers, come back as they were, at rest and in flight."""
    play = Play(subject, scenario, cuts=scenario.cuts)
    instance = play.build()
    held = False
    for piece in scenario.pieces(0, len(scenario.atoms), scenario.cuts):
        play.deliver(piece, [instance])
        for step, state in instance.states.items():
            for key in sorted(state.keys(), key=repr):
                held = True
                _compare(step, key, state, instance, broken, {piece.first: "after this batch, or event"})
    return held


def _compare(
    step: str, key: Any, state: KeyedState, instance: OperatorTester, broken: Broken, marks: dict[int, str]
) -> None:
    codec = instance.codec
    row = [key, state.values.get(key), state.timers.times(key)]
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
            what = f"  step {step!r}, {where}, as [key, state, timers]:"
            raise broken(f"{what}\n    expected  {row}\n    got       {list(back)}", marks)


def _sent(codec: Codec, step: str, row: list[Any]) -> list[Any]:
    """What arrives of ``row``: a key, its state and its timers."""
    key, value, times = row
    sent = codec.encode_states_in_flight([key], [value], {key: times} if times else {}, step=step)
    (key,), (value,), woken = codec.decode_in_flight(sent, step=step)
    return [key, value, woken.get(key, [])]


def snapshot(subject: Subject, scenario: Scenario, broken: Broken) -> bool:
    """A barrier changes nothing, and a fresh instance restored from it goes on as if nothing had happened."""
    at = scenario.at
    cuts = scenario.cuts | {at}
    expected = baseline(subject, scenario, cuts=cuts)
    for restored in (False, True):
        play = Play(subject, scenario, cuts=cuts)
        marks = {at: "a barrier, and a fresh instance is restored from it" if restored else "a barrier"}
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
        found = difference(expected, play.trace)
        if found:
            raise broken(f"{found}\n  (expected: without it)", marks)
    return held


def scale(subject: Subject, scenario: Scenario, broken: Broken) -> bool:
    """What N instances persisted restores on M."""
    # Where keys are made anew behind the input nothing is known of who owns them.
    if not subject.keyed or subject.kinds & REKEYING:
        return False
    at, (before, after) = scenario.at, scenario.instances
    cuts = scenario.cuts | {at}
    marks = {at: f"{before} instances {scenario.before} are restored on {after} {scenario.after}"}
    expected = baseline(subject, scenario, cuts=cuts)
    play = Play(subject, scenario, cuts=cuts)
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
    found = difference(expected, play.trace)
    if found:
        raise broken(f"{found}\n  (expected: on one instance throughout)", marks)
    return held and (before, after) != (1, 1)


def _owns(scenario: Scenario, instance: int, key: Any) -> bool:
    return scenario.after.get(key, 0) == instance


def _holds_state(instance: OperatorTester) -> bool:
    return any(state.keys() for state in instance.states.values())
