"""`split`: each record goes to the streams whose numbers the function gives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.branching import Split
from tests.unit.operators.stepping import Stepped, cut


def stepped(fn: Any, n: int = 3, on_error: Any = "fail") -> Stepped:
    return Stepped(partial(Split, n=n, fn=fn), ports=n, on_error=on_error)


@given(
    choices=st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=20),
    sizes=st.lists(st.integers(1, 5), max_size=10),
)
def test_each_stream_gets_its_records_once_and_in_order(choices: list[list[int]], sizes: list[int]) -> None:
    rows = Batch(
        list(range(len(choices))), keys=list(map(str, range(len(choices)))), timestamps=list(range(len(choices)))
    )
    step = stepped(choices.__getitem__).push(*cut(rows, sizes))
    for port in range(3):
        assert step.rows(port) == [(str(row), row, row) for row, chosen in enumerate(choices) if port in chosen]
    assert step.counters.filtered == sum(not chosen for chosen in choices)


def test_epochs_go_to_every_stream_also_those_without_records() -> None:
    step = stepped(lambda value: [0]).push(Batch([1]), Epoch(5), Epoch(MAX_EPOCH))
    assert [step.epochs(port) for port in range(3)] == [[5, MAX_EPOCH]] * 3
    assert [len(step.batches(port)) for port in range(3)] == [1, 0, 0]


@pytest.mark.parametrize("wrong", [[3], [-1], [0, 7], "01", 0, None, ["0"], [[]], [0.5]], ids=repr)
def test_what_names_no_stream_is_the_fault_of_the_function(wrong: Any) -> None:
    def choose(value: int) -> Any:
        return wrong

    with pytest.raises(OperatorError, match=r"'under-test' failed.*choose at .*test_split\.py"):
        stepped(choose).push(Batch([1]))
    step = stepped(choose, on_error="dead-letter").push(Batch([1]))
    assert [letter.value for letter in step.dead_letters] == [1]
    assert step.counters.filtered == 0
    assert step.counters.rows_out == [0, 0, 0, 1]


def test_numbers_that_come_lazily_may_raise_half_way() -> None:
    def lazily(value: int) -> Iterator[int]:
        yield 0
        if value == 2:
            raise ValueError

    step = stepped(lazily, on_error="skip").push(Batch([1, 2, 3]))
    assert step.values(0) == [1, 3]
    assert step.counters.skipped == 1
