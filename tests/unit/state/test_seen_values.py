"""`SeenValues` is the dict of sets that rows make, of any values."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.state import seen_values
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.seen_values import SeenValues

_NEAR = [None, 0, 1, 2, 3, -5, 1 << 20]
_FAR = [*_NEAR, 1 << 31, -(1 << 31), (1 << 31) - 1, 1 - (1 << 31), 1 << 32, (1 << 63) - 1, -(1 << 63)]


def _fold(oracle: dict[Any, set[Any]], keys: list[Any], values: list[Any]) -> list[int]:
    first = list[int]()
    for row, (key, value) in enumerate(zip(keys, values, strict=True)):
        seen = oracle.setdefault(key, set())
        if value not in seen:
            seen.add(value)
            first.append(row)
    return first


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("values", [_NEAR, _FAR, [None], [None, "a", "b", ""], [*range(-300, 300)]])
def test_batches_and_what_leaves_are_as_in_a_dict(
    values: list[Any], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen_values, "_COMPACT_FROM", 64)
    random = Random(seed)
    seen, oracle = SeenValues(), dict[Any, set[Any]]()
    kind = pa.large_string() if "a" in values else pa.int64()
    for turn in range(12):
        keys = [random.randrange(1000) if seed % 2 else random.randrange(5) for _ in range(random.choice([0, 1, 300]))]
        shift = 0 if kind != pa.int64() or values is _FAR else random.choice([0, 0, 0, 1 << 33])
        column = [
            value if value is None or not shift else value + shift for value in random.choices(values, k=len(keys))
        ]
        if turn % 3 == 0:
            column = [None] * len(keys)
        first = _fold(oracle, keys, column)
        assert seen.add(pa.array(keys, pa.int64()), pa.array(column, kind)).tolist() == first
        assert set(seen.changed_keys()) == {keys[row] for row in first}
        leave = random.sample(list(oracle), len(oracle) * (turn % 4 == 3) // 2)
        assert seen.take(leave) == [oracle.pop(key) for key in leave]
        assert dict(seen) == oracle
        assert list(seen) == list(oracle)
        assert len(seen) == len(oracle)
    again = SeenValues()
    again.set_many(list(seen), seen.values())
    assert dict(again) == oracle


def test_values_far_from_the_first_integer_get_ids_once() -> None:
    seen = SeenValues()
    assert seen.add(pa.array(["a", "a", "b"]), pa.array([7, None, 7])).tolist() == [0, 1, 2]
    assert seen.add(pa.array(["a", "a", "a"]), pa.array([7, 1 << 60, None])).tolist() == [1]
    assert dict(seen) == {"a": {7, None, 1 << 60}, "b": {7}}


def test_values_of_another_kind_change_nothing() -> None:
    seen = SeenValues()
    seen.add(pa.array(["a"]), pa.array([7]))
    with pytest.raises(NotColumnar):
        seen.add(pa.array(["b"]), pa.array(["7"]))
    assert dict(seen) == {"a": {7}}
