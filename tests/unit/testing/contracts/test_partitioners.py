"""The contract of partitioners catches faults. (Tests with other processes are in tests/integration.)"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from malstrom_py import partitioners
from malstrom_py.testing import LawError
from malstrom_py.testing.contracts import check_partitioner


def first_letter(key: str) -> int:
    return 0 if not key else ord(key[0]) % 1


@pytest.mark.parametrize("partitioner", [partitioners.stable_hash, partitioners.index])
def test_ours_keep_the_contract(partitioner: Any) -> None:
    check_partitioner(partitioner, processes=False)


def test_a_function_that_keeps_the_contract_passes() -> None:
    check_partitioner(first_letter, ["", "ant", "bee"], processes=False)


class ByType:
    """Distinguishes 1 from 1.0, which are equal keys in Python."""

    def bind(self, slots: int, *, step: str = "") -> ByType:
        self.slots = slots
        return self

    def slot_of(self, key: Any) -> int:
        return int(isinstance(key, float)) % self.slots

    def slots_of(self, keys: Any) -> list[int]:
        return list(map(self.slot_of, keys))

    def slots_of_arrow(self, keys: Any) -> Any:
        return self.slots_of(keys.to_pylist())


class Counting(ByType):
    """Returns the next slot each time."""

    def __init__(self) -> None:
        self.numbers = itertools.count()

    def slot_of(self, key: Any) -> int:
        return next(self.numbers) % self.slots


class Apart(ByType):
    """Returns other slots for many keys than one by one."""

    def slots_of(self, keys: Any) -> list[int]:
        return [(self.slot_of(key) + 1) % self.slots for key in keys]


class Halves(ByType):
    def slot_of(self, key: Any) -> Any:
        return 0.5


@pytest.mark.parametrize(
    ("partitioner", "clause"),
    [
        (lambda key: 1024, "slots in range"),
        (lambda key: key.missing, "slots in range"),
        (Halves(), "slots in range"),
        (ByType(), "equal keys, equal slots"),
        (Counting(), "stable slots"),
        (Apart(), "stable slots"),
    ],
)
def test_a_partitioner_that_breaks_a_clause_is_named_by_it(partitioner: Any, clause: str) -> None:
    with pytest.raises(LawError) as caught:
        check_partitioner(partitioner, processes=False)
    assert caught.value.law == clause
