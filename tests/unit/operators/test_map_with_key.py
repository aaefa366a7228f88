"""`map_with_key`: the key in the value, by a function or as a field of that name."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sources, windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import PlanError
from malstrom_py.operators.columns import KeyAsField
from malstrom_py.windows import WINDOW_RESULT, WindowResult
from tests.unit.operators.stepping import Stepped


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"n": 1}, {"n": 1, "key": "a"}),
        ({"key": 7, "n": 1}, {"key": "a", "n": 1}),
        (Point(3), {"x": 3, "key": "a"}),
        (WindowResult(0, 10, 5), {"start": 0, "end": 10, "value": 5, "update": False, "key": "a"}),
        (None, {"value": None, "key": "a"}),
        ([4], {"value": [4], "key": "a"}),
    ],
    ids=repr,
)
def test_a_value_becomes_a_dict_of_its_fields_and_the_key(value: Any, named: Any) -> None:
    given = Batch([value], keys=["a"], timestamps=[9])
    assert Stepped(partial(KeyAsField, name="key")).push(given).rows() == [("a", named, 9)]
    assert given.values == [value]


def columns_of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_columns_stay_columns() -> None:
    keys, times = pa.array(["a", "b"]), pa.array([1, 2])
    given = ColumnBatch(columns_of(n=[5, 6], key=[0, 0]), key_column=keys, time_column=times)
    (sent,) = Stepped(partial(KeyAsField, name="key")).push(given).batches()
    assert isinstance(sent, ColumnBatch)
    assert not sent.rows_made
    assert sent.columns.to_pydict() == {"n": [5, 6], "key": ["a", "b"]}
    assert (sent.keys, sent.timestamps) == (["a", "b"], [1, 2])
    assert given.columns.to_pydict() == {"n": [5, 6], "key": [0, 0]}


def test_columns_of_window_results_become_their_fields_and_the_key() -> None:
    results = columns_of(start=[0], end=[10], value=[3], update=[False])
    given = ColumnBatch(results, key_column=pa.array([7]), form=WINDOW_RESULT)
    (sent,) = Stepped(partial(KeyAsField, name="auction")).push(given).batches()
    assert isinstance(sent, ColumnBatch)
    assert sent.values == [{"start": 0, "end": 10, "value": 3, "update": False, "auction": 7}]


def test_keys_that_are_no_column_are_put_into_rows() -> None:
    given = ColumnBatch(columns_of(n=[5, 6]), keys=[("a", 1), "b"])
    assert Stepped(partial(KeyAsField, name="key")).push(given).values() == [
        {"n": 5, "key": ("a", 1)},
        {"n": 6, "key": "b"},
    ]


def test_a_windows_result_can_be_keyed_by_its_end_and_still_names_its_key() -> None:
    timed = mp.Job("hot").source("bids", sources.Memory([("x", 1), ("y", 2), ("x", 3)]))
    on_time, _ = timed.assign_timestamps("at", lambda bid: bid[1]).generate_epochs(
        "epochs", mp.limit_out_of_orderness(0)
    )
    counts = on_time.key_by("item", lambda bid: bid[0]).window("tens", windows.tumbling(10)).count()
    named = counts.map_with_key("named", "item").key_by("end", "end")
    assert sorted((row["value"], row["item"]) for row in mp.collect(named)) == [(1, "y"), (2, "x")]


def test_a_field_takes_no_policy_and_a_stream_without_keys_has_no_such_step() -> None:
    stream = mp.Job("job").source("in", sources.Memory([1]))
    keyed: Any = stream.key_by("key", lambda n: n)
    with pytest.raises(PlanError, match="step 'named': the name of a field takes whole batches"):
        keyed.map_with_key("named", "key", on_error="skip")
    with pytest.raises(PlanError, match="key_by"):
        stream.map_with_key("named", "key")  # type: ignore[attr-defined]
