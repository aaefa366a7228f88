"""What only other processes show about a partitioner."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from malstrom_py import partitioners
from malstrom_py.testing import LawError
from malstrom_py.testing.contracts import check_partitioner


class ByHash:
    def bind(self, slots: int, *, step: str = "") -> ByHash:
        self.slots = slots
        return self

    def slot_of(self, key: Any) -> int:
        return hash(key) % self.slots

    def slots_of(self, keys: Any) -> list[int]:
        return list(map(self.slot_of, keys))

    def slots_of_arrow(self, keys: Any) -> Any:
        return self.slots_of(keys.to_pylist())


class ByChecksum(ByHash):
    def slot_of(self, key: Any) -> int:
        return zlib.crc32(str(key).encode()) % self.slots


@pytest.mark.long("partitioner1")
@pytest.mark.parametrize("partitioner", [partitioners.stable_hash, partitioners.index])
def test_f3_ours_give_the_same_slots_in_every_process(partitioner: Any) -> None:
    check_partitioner(partitioner)


def test_one_of_your_own_may_be_stable_too() -> None:
    check_partitioner(ByChecksum(), ["ant", "bee"])


def test_f3_what_depends_on_the_hash_of_python_is_found() -> None:
    with pytest.raises(LawError, match="hash\\(\\) gives another") as caught:
        check_partitioner(ByHash(), ["ant", "bee", "cow"])
    assert caught.value.law == "stable slots"
