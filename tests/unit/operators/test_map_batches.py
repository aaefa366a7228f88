"""``map_batches``: whole record batches in and out."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.batch import Batch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.columns import MapBatches
from tests.unit.operators.stepping import Stepped


def mapped(fn: Any) -> Stepped:
    return Stepped(partial(MapBatches, fn=fn))


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pc.call_function("multiply", [batch["n"], 2])})


def test_any_number_of_rows_may_come_back_on_a_plain_stream() -> None:
    assert mapped(lambda batch: batch.slice(0, 1)).push(Batch([1, 2])).batches()[0].values == [{"value": 1}]
    assert mapped(lambda batch: batch.slice(0, 0)).push(Batch([1, 2])).batches() == []


@pytest.mark.parametrize("given", [Batch([1, 2], keys=["a", "b"]), Batch([1, 2], timestamps=[1, 2])], ids=str)
def test_with_keys_or_timestamps_each_row_keeps_its_own(given: Batch) -> None:
    with pytest.raises(OperatorError, match="returned 1 rows for 2: on a stream with keys or timestamps"):
        mapped(lambda batch: batch.slice(0, 1)).push(given)


@pytest.mark.parametrize("made", [None, {"n": [1]}, pa.table({"n": [1]})], ids=["None", "dict", "Table"])
def test_what_is_no_record_batch_is_an_error_that_names_the_function(made: object) -> None:
    def wrong(batch: pa.RecordBatch) -> object:
        return made

    with pytest.raises(OperatorError, match=r"'under-test': .*wrong at .* returned a \w+: return a pyarrow.RecordB"):
        mapped(wrong).push(Batch([1]))


def test_an_error_of_the_function_names_it_and_has_it_as_cause() -> None:
    def fails(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("secret")

    with pytest.raises(OperatorError, match=r"ValueError in .*fails at") as raised:
        mapped(fails).push(Batch([1]))
    assert "secret" in str(raised.value)
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_column_of_none_takes_any_type() -> None:
    seen: list[str] = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(str(batch.schema.field("n").type))
        return batch

    mapped(look).push(Batch([{"n": None}]), Batch([{"n": 1}]), Batch([{"n": None}]))
    assert seen == ["null", "int64", "int64"]


MIXED: dict[str, list[Any]] = {
    "int and float": [1, 2.5],
    "places": [Decimal("1.5"), Decimal("0.25")],
    "large int": [1, 2**63],
    "structs": [{"a": 1}, {"a": 1, "b": 2}],
    "lists": [[1], [2.5]],
    "kinds": [True, 1],
}


@pytest.mark.parametrize("name", MIXED)
def test_what_only_widening_could_hold_is_refused_wherever_batches_are_cut(name: str) -> None:
    rows = [{"n": value} for value in MIXED[name]]
    for batches in ([Batch(rows)], [Batch([row]) for row in rows], [Batch(rows[::-1])]):
        with pytest.raises(
            OperatorError, match=r"'under-test': column 'n.*' holds .*convert them to one type in a map step"
        ):
            mapped(lambda batch: batch).push(*batches)


@pytest.mark.parametrize("rows", [[{"n": 1}, {"n": 1, "m": 2}], [{"n": 1, "m": 2}, {"n": 1}]], ids=["more", "fewer"])
def test_rows_of_different_fields_are_refused_wherever_batches_are_cut(rows: list[dict[str, int]]) -> None:
    for batches in ([Batch(list(rows))], [Batch([row]) for row in rows]):
        with pytest.raises(OperatorError, match=r"'under-test': rows have different fields \('m'\)"):
            mapped(lambda batch: batch).push(*batches)


def test_keys_of_a_dict_inside_a_value_may_be_data_and_stand_in_no_message() -> None:
    with pytest.raises(OperatorError, match="'n' holds dict and dict of other fields") as raised:
        mapped(lambda batch: batch).push(Batch([{"n": {"secret": 1}}, {"n": {"other": 1}}]))
    assert "secret" not in str(raised.value)


def test_decimals_of_one_scale_have_one_type_however_many_digits() -> None:
    rows = [{"n": Decimal("1.50")}, {"n": Decimal("123456.25")}, {"n": None}]
    seen: set[str] = set()

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.add(str(batch.schema.field("n").type))
        return batch

    step = mapped(look).push(*(Batch([row]) for row in rows))
    assert [row for batch in step.batches() for row in batch.values] == rows
    assert seen == {"decimal128(38, 2)"}


def test_two_columns_of_one_name_are_refused() -> None:
    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([batch[0], batch[0]], names=["a", "a"])

    with pytest.raises(OperatorError, match=r"twice at .* returned two columns of the same name"):
        mapped(twice).push(Batch([1]))


def test_in_a_job() -> None:
    stream = mp.Job("test").source("in", sources.Memory([{"n": n} for n in range(5)]))
    assert mp.collect(stream.map_batches("double", doubled)) == [{"n": 2 * n} for n in range(5)]
