"""Making a scenario that breaks a law smaller, atom by atom. (Values are hypothesis' business.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from malstrom_py.testing.laws.scenario import Scenario


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
    for key in scenario.moved:
        yield replace(scenario, moved=scenario.moved - {key})


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
        back=moved(scenario.back),
    )
    keys = set(smaller.keys)
    return replace(
        smaller,
        moved=frozenset(scenario.moved & keys),
        before={key: owner for key, owner in scenario.before.items() if key in keys},
        after={key: owner for key, owner in scenario.after.items() if key in keys},
    )
