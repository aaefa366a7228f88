"""Partitioners: the default, by index, and a user's own."""

from __future__ import annotations

import pickle
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from malstrom_py.errors import CodecError, OperatorError, PlanError
from malstrom_py.rescale.partitioners import Index, Own, Partitioner, StableHash, partitioner_of
from malstrom_py.rescale.slots import slots_of
from tests.ids import shown

KEYS: list[Any] = ["a", "b", 1, None, ("a", 1)]


def by_length(key: Any) -> int:
    return len(key)


def test_f3_the_default_is_the_stable_hash() -> None:
    finder = partitioner_of(None, "s").bind(1024, step="s")
    assert finder.slots_of(KEYS) == slots_of(KEYS, 1024)
    assert [finder.slot_of(key) for key in KEYS] == slots_of(KEYS, 1024)


def test_index_deals_successive_integers_evenly() -> None:
    finder = Index().bind(8)
    assert finder.slots_of(list(range(-2, 10))) == [6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    assert set(Counter(finder.slots_of(list(range(1000, 1000 + 8 * 5)))).values()) == {5}


def test_f4_index_takes_any_number_that_equals_an_integer() -> None:
    keys = [1, True, 1.0, Decimal("1.0"), np.int64(1), np.float32(1)]
    assert Index().bind(8).slots_of(keys) == [1] * len(keys)
    assert Index().bind(8).slots_of([-(2**63), 2**63 - 1]) == [0, 7]


@pytest.mark.parametrize("key", ["a", 0.5, None, 2**63, -(2**63) - 1, (1,), Decimal("1E+1000000"), float("inf")])
def test_index_refuses_all_other_keys_naming_the_step(key: Any) -> None:
    finder = Index().bind(8, step="lane")
    for call in (lambda: finder.slot_of(key), lambda: finder.slots_of([1, key])):
        with pytest.raises(CodecError, match=r"^step 'lane': partitioners.index takes integers") as raised:
            call()
        assert (raised.value.step, raised.value.type_name) == ("lane", type(key).__name__)


def test_f4_index_on_a_column_agrees_with_rows() -> None:
    finder = Index().bind(7)
    values = [*range(-20, 20), 2**50]
    for kind in (pa.int64(), pa.float64(), pa.decimal128(25, 1)):
        assert finder.slots_of_arrow(pa.array(values).cast(kind)).to_pylist() == finder.slots_of(values)
    with pytest.raises(CodecError, match="NoneType"):
        finder.slots_of_arrow(pa.array([1, None]))


def test_a_function_of_the_user_says_the_slot() -> None:
    finder = partitioner_of(by_length, "s").bind(16)
    assert finder.slots_of(["a", "abc", "a"]) == [1, 3, 1]
    assert finder.slot_of("ab") == 2
    assert finder.slots_of_arrow(pa.array(["a", "abc"])).to_pylist() == [1, 3]


def test_a_class_may_be_the_function() -> None:
    assert partitioner_of(int, "s").bind(16).slots_of(["3", "11"]) == [3, 11]
    to_int8: Any = np.int8
    assert partitioner_of(to_int8, "s").bind(16).slots_of([3, 11]) == [3, 11]


def test_a_function_of_the_user_is_asked_once_per_distinct_key() -> None:
    asked = []

    def ask(key: Any) -> int:
        asked.append(key)
        return 0

    finder = Own(ask).bind(4)
    finder.slots_of(["a", "b", "a"])
    finder.slots_of(["b"])
    assert asked == ["a", "b"]


@pytest.mark.parametrize("slot", [16, -1, 10**30])
def test_a_slot_out_of_range_is_an_error_that_names_the_function(slot: int) -> None:
    finder = Own(lambda key: slot).bind(16, step="lane")
    with pytest.raises(OperatorError, match=r"^step 'lane': the partitioner .*<lambda> at .*\.py") as raised:
        finder.slots_of(["a"])
    assert f"returned {slot} for a key, but slots go from 0 to 15" in str(raised.value)
    assert (raised.value.step, raised.value.key) == ("lane", "a")


class NoIndex:
    """A value whose conversion to an int fails."""

    def __index__(self) -> int:
        raise ValueError("no index")


@pytest.mark.parametrize("wrong", [lambda key: None, lambda key: 1.0, lambda key: NoIndex(), lambda key: key.missing])
def test_a_function_that_fails_or_returns_no_integer_is_an_error_with_its_cause(wrong: Any) -> None:
    with pytest.raises(
        OperatorError, match=r"failed|returned (NoneType|float|NoIndex) for a key, but a slot is an int"
    ) as raised:
        Own(wrong).bind(16).slot_of("a")
    assert raised.value.__cause__ is not None


@pytest.mark.parametrize("partitioner", [StableHash(), Index(), Own(by_length)], ids=shown)
def test_f4_every_partitioner_refuses_illegal_keys(partitioner: Partitioner) -> None:
    finder = partitioner.bind(16, step="lane")
    for call in (
        lambda: finder.slot_of([1]),
        lambda: finder.slots_of([[1]]),
        lambda: finder.slots_of_arrow(pa.array([[1]])),
    ):
        with pytest.raises(CodecError, match=r"^step 'lane': a key is of type list"):
            call()
    with pytest.raises(PlanError):
        partitioner.bind(0)


def test_a_partitioner_can_be_sent_and_compared() -> None:
    for partitioner in (StableHash(), Index(), Own(by_length)):
        assert isinstance(partitioner, Partitioner)
        assert pickle.loads(pickle.dumps(partitioner)) == partitioner
        assert partitioner_of(partitioner, "s") is partitioner


@pytest.mark.parametrize("given", [5, "index", StableHash])
def test_anything_else_is_no_partitioner(given: Any) -> None:
    with pytest.raises(PlanError, match=r"^step 'lane': partitioner must be partitioners.stable_hash, "):
        partitioner_of(given, "lane")
