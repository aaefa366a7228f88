"""Making a scenario that breaks a law smaller, atom by atom. (Values are hypothesis' business.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from malstrom_py.testing.laws.scenario import CHUNK_MAX, Move, Scenario


def shrunk(scenario: Scenario, breaks: Callable[[Scenario], bool]) -> Scenario:
    """The scenario without all that it takes not to break the law: leaving out any one thing more would mend it."""
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
            yield replace(scenario, owners=(*scenario.owners[:slot], 0, *scenario.owners[slot + 1 :]))
    for number, move in enumerate(scenario.moves):
        before, behind = scenario.moves[:number], scenario.moves[number + 1 :]
        yield replace(scenario, moves=before + behind)
        for simpler in _simpler(move):
            yield replace(scenario, moves=(*before, simpler, *behind))


def _simpler(move: Move) -> Iterator[Move]:
    """At once, in one chunk, with fewer slots."""
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
    """The scenario without one atom, and without owners of keys that are gone with it."""

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
