"""The oracle sees every wrong protocol: here in its recorded run; `make mutants` searches again."""

from __future__ import annotations

import inspect
import re

import pytest

from tests.simulation.protocol_model import (
    wrong_coordinators,
    wrong_copies,
    wrong_regions,
    wrong_senders,
    wrong_sources,
)
from tests.simulation.protocol_model.mutants import MUTANTS, RECORDED, SEEDS, Mutant
from tests.simulation.protocol_model.setups import Machines

MODULES = (wrong_regions, wrong_senders, wrong_sources, wrong_coordinators, wrong_copies)
BASES = {"Region", "Switch", "Coordinator"}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_catches(name: str) -> None:
    said = MUTANTS[name].caught(RECORDED[name])
    assert said is not None, f"search again: python -m tests.simulation.protocol_model.mutants {name}"


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.scenario is not None])
def test_the_right_protocol_passes_the_same_scenario(name: str) -> None:
    assert Mutant(Machines(), MUTANTS[name].scenario).caught(RECORDED[name]) is None


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.ahead])
def test_the_right_protocol_passes_the_same_seed_with_state_ahead(name: str) -> None:
    assert Mutant(Machines(), ahead=True).caught(RECORDED[name]) is None


def test_every_wrong_protocol_is_in_the_list_and_on_record() -> None:
    written = {
        name
        for module in MODULES
        for name, thing in vars(module).items()
        if getattr(thing, "__module__", "") == module.__name__ and (inspect.isclass(thing) or inspect.isfunction(thing))
    }
    assert written - BASES == set(MUTANTS) == set(RECORDED)
    assert max(RECORDED.values()) < SEEDS


def test_every_rule_of_the_protocol_is_broken_by_one() -> None:
    text = "\n".join(inspect.getsource(module) for module in MODULES)
    broken = set(re.findall(r'"""(?:[A-Z]\d+, )?([A-Z]\d+)(?:, [A-Z]\d+)?: ', text))
    assert broken >= {"F1", "F2", *(f"T{n}" for n in range(1, 7)), *(f"R{n}" for n in range(1, 11)), "R12", "S6"}
