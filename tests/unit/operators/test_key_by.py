"""`key_by`: gives each record a key; the source region ends here."""

from __future__ import annotations

from functools import partial

import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Epoch, PartFinished, PartOpened
from malstrom_py.errors import OperatorError
from malstrom_py.operators.key_by import KeyBy
from malstrom_py.validation import field_getter
from tests.unit.operators.stepping import Stepped


def test_records_get_their_key_and_lose_their_part() -> None:
    step = Stepped(partial(KeyBy, fn=lambda n: n % 2)).push(Batch([1, 2], timestamps=[10, 20], part="p"))
    assert step.rows() == [(1, 1, 10), (0, 2, 20)]
    assert step.batches()[0].part is None


def test_a_former_key_is_replaced() -> None:
    step = Stepped(partial(KeyBy, fn=str)).push(Batch([1, 2], keys=["a", "b"]))
    assert step.rows() == [("1", 1, None), ("2", 2, None)]


def test_none_is_a_legal_key() -> None:
    assert Stepped(partial(KeyBy, fn=lambda _: None)).push(Batch([1])).batches()[0].keys == [None]


def test_a_column_name_looks_the_column_up() -> None:
    step = Stepped(partial(KeyBy, fn=field_getter("shop", "by-shop"))).push(Batch([{"shop": "a"}, {"shop": "b"}]))
    assert [key for key, _, _ in step.rows()] == ["a", "b"]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(OperatorError, match="column 'shop'") as caught:
        Stepped(partial(KeyBy, fn=field_getter("shop", "by-shop"))).push(Batch([{"store": "a"}]))
    assert isinstance(caught.value.__cause__, KeyError)


def test_epochs_pass_and_parts_do_not() -> None:
    step = Stepped(partial(KeyBy, fn=str)).push(PartOpened("p"), Epoch(5), PartFinished("p"), Epoch(MAX_EPOCH))
    assert step.messages() == [Epoch(5), Epoch(MAX_EPOCH)]


def test_dead_letters_stay_in_the_source_region_with_their_parts() -> None:
    step = Stepped(partial(KeyBy, fn=lambda n: 1 // n), on_error="dead-letter")
    step.push(PartOpened("p"), Batch([0], part="p"), PartFinished("p"), Epoch(MAX_EPOCH))
    opened, letters, finished, end = step.messages(port=1)
    assert (opened, finished, end) == (PartOpened("p"), PartFinished("p"), Epoch(MAX_EPOCH))
    assert isinstance(letters, Batch)
    assert letters.part == "p"
