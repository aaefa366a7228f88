"""Steps that compute their function on columns give what they give row by row: values, types, errors and warnings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import CodecError, InternalError, OperatorError
from malstrom_py.operators import compiled
from malstrom_py.operators.aggregate import Distinct, TopN
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.batch_sizing import SMALL_IN_A_ROW
from malstrom_py.operators.branching import Branch, Split
from malstrom_py.operators.compiled import CompiledFunction
from malstrom_py.operators.event_time import AssignTimestamps
from malstrom_py.operators.key_by import KeyBy, KeyLocal
from malstrom_py.operators.stateless import Filter, FilterMap, Map, MapWithKey
from malstrom_py.traced.in_python import check_held
from malstrom_py.traced.tracing import why_never
from tests.unit.operators.stepping import Stepped


def batch_of(**columns: Any) -> ColumnBatch:
    return ColumnBatch(pa.RecordBatch.from_pydict(columns))


NARROW = {
    "i": pa.array([1, 2, 300 - 299, 4], pa.int8()),
    "f": pa.array([0.5, 1.5, None, 2.5], pa.float32()),
    "t": pa.array([1, 2, 3, 4], pa.timestamp("ms")),
    "d": pa.array(["a", "b", "a", None]).dictionary_encode(),
    "n": pa.array([[1], [2, 3], [], None], pa.list_(pa.int16())),
}
BUILDS: dict[str, Callable[[Any], Any]] = {
    "map": lambda stream: stream.map("x", lambda r: {**r, "more": r["i"] + 1}),
    "map of some": lambda stream: stream.map("x", lambda r: {"i": r["i"], "f": r["f"], "t": r["t"], "d": r["d"]}),
    "filter": lambda stream: stream.filter("x", lambda r: r["i"] > 1),
    "filter of timed rows": lambda stream: stream.assign_timestamps("at", "i").filter("x", lambda r: r["i"] > 1),
    "key_by": lambda stream: stream.key_by("x", lambda r: r["i"]),
    "filter_map": lambda stream: stream.filter_map("x", lambda r: {"i": r["i"], "d": r["d"]} if r["i"] > 1 else None),
    "filter_map to values": lambda stream: stream.filter_map("x", lambda r: r["f"]),
    "filter_map of timed rows": lambda stream: stream.assign_timestamps("at", lambda r: r["i"]).filter_map(
        "x", lambda r: None if r["i"] == 2 else r
    ),
    "branch": lambda stream: stream.branch("x", lambda r: r["i"] > 1)[0],
    "split": lambda stream: stream.split("x", 2, lambda r: [r["i"] % 2])[1],
    "branch, the others": lambda stream: stream.branch("x", lambda r: r["f"])[1],
}


def written(build: Callable[[Any], Any], columns: dict[str, Any], folder: Path, *, compile: bool) -> pa.Table:
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "in.parquet", row_group_size=2)
    job = mp.Job("job", compile=compile)
    build(job.source("in", sources.Files(folder / "in.parquet"))).sink("out", sinks.Files(folder / "out"))
    mp.run(job)
    return pa.concat_tables([pq.read_table(file) for file in sorted((folder / "out").rglob("*.parquet"))])


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("nested", [False, True])
def test_sinks_get_the_types_that_they_get_of_rows(name: str, nested: bool, tmp_path: Path) -> None:
    columns = NARROW if nested else {key: column for key, column in NARROW.items() if key != "n"}
    build = BUILDS[name]
    by_columns = written(build, columns, tmp_path / "a", compile=True)
    by_rows = written(build, columns, tmp_path / "b", compile=False)
    assert by_columns.schema.types == by_rows.schema.types
    assert by_columns.equals(by_rows)


def test_steps_send_columns() -> None:
    given = batch_of(i=[1, 2, 3], s=["a", "b", "c"])
    for step in (
        partial(Map, fn=lambda r: {"i": r["i"] * 908 // 1000}),
        partial(Filter, predicate=lambda r: r["i"] > 1),
        partial(KeyBy, fn=lambda r: r["s"]),
        partial(KeyLocal, fn=lambda r: (r["s"], r["i"])),
        partial(FilterMap, fn=lambda r: {"i": r["i"]} if r["i"] > 1 else None),
        partial(Branch, predicate=lambda r: r["i"] > 1),
        partial(Split, n=2, fn=lambda r: [0] if r["i"] > 1 else (0, 1)),
        partial(AssignTimestamps, fn=lambda r: r["i"] * 1000, unit="ms"),
    ):
        sent = Stepped(step, ports=2).push(given).batches()[0]
        assert isinstance(sent, ColumnBatch)
        assert not sent.rows_made
    assert not given.rows_made


@pytest.mark.parametrize(
    ("function", "times"),
    [
        (lambda r: r["i"] * 10, [10, 20]),
        (lambda r: r["z"], [5, 6]),
        (lambda r: r["z"] if r["i"] > 1 else r["i"], [1, 6]),
    ],
)
def test_times_of_functions_are_those_of_rows(function: Callable[[Any], Any], times: list[int]) -> None:
    given = batch_of(i=[1, 2], z=pa.array([5, 6], pa.timestamp("ms", "UTC")))
    stepped = Stepped(partial(AssignTimestamps, fn=function, unit="ms")).push(given)
    assert stepped.batches()[0].timestamps == times


def test_a_time_that_is_none_is_the_error_of_rows() -> None:
    with pytest.raises(OperatorError, match="the timestamp is None"):
        Stepped(partial(AssignTimestamps, fn=lambda r: r["i"], unit="ms")).push(batch_of(i=[1, None]))


def test_branches_divide_and_count_nothing_twice() -> None:
    stepped = Stepped(partial(Branch, predicate=lambda r: r["i"] % 2), ports=2).push(batch_of(i=[1, 2, 3]))
    assert [batch.values for batch in stepped.batches(0)] == [[{"i": 1}, {"i": 3}]]
    assert [batch.values for batch in stepped.batches(1)] == [[{"i": 2}]]


def test_what_is_distinct_or_largest_by_a_function_stays_columns() -> None:
    rows = {"i": [3, 1, 4, 1], "s": [5, 6, 5, 6]}
    for step in (partial(Distinct, by=lambda r: r["i"] % 3), partial(TopN, n=2, by=lambda r: r["i"])):
        given = ColumnBatch(pa.RecordBatch.from_pydict(rows), key_column=pa.array(rows["s"]))
        (sent,) = Stepped(step).push(given).batches()
        assert isinstance(sent, ColumnBatch)
        assert not given.rows_made
        (called,) = Stepped(partial(step, compiles=False)).push(given).batches()
        assert sent.values == called.values


def test_the_largest_by_a_function_are_of_rows_that_a_function_has_changed() -> None:
    given = ColumnBatch(pa.RecordBatch.from_pydict({"i": [1, 2]}), key_column=pa.array(["a", "a"]))
    given.values[0]["i"] = 5
    (sent,) = Stepped(partial(TopN, n=1, by=lambda r: r["i"])).push(given).batches()
    assert sent.values == [[{"i": 5}], [{"i": 5}]]


def test_the_part_stays_where_keys_are_of_one_worker() -> None:
    (sent,) = (
        Stepped(partial(KeyLocal, fn=lambda r: r["i"])).push(batch_of(i=[1, 2]).of_part("p", named=True)).batches()
    )
    assert isinstance(sent, ColumnBatch)
    assert (sent.part, sent.named, sent.keys) == ("p", True, [1, 2])


def test_split_divides_and_counts_what_goes_nowhere() -> None:
    stepped = Stepped(partial(Split, n=3, fn=lambda r: [r["i"] % 3, 2] if r["i"] else ()), ports=3)
    stepped.push(batch_of(i=[1, 2, 3, 0]), batch_of(i=[0]))
    assert all(isinstance(batch, ColumnBatch) for port in range(3) for batch in stepped.batches(port))
    assert [stepped.values(port) for port in range(3)] == [[{"i": 3}], [{"i": 1}], [{"i": 1}, {"i": 2}, {"i": 3}]]
    assert stepped.operator.counters.filtered == 2


def test_a_stream_that_is_not_there_is_the_error_of_rows() -> None:
    with pytest.raises(OperatorError, match="streams are numbered from 0 to 1, got another number"):
        Stepped(partial(Split, n=2, fn=lambda r: [r["i"]]), ports=2).push(batch_of(i=[1, 2]))


def test_filter_map_counts_what_it_drops() -> None:
    stepped = Stepped(partial(FilterMap, fn=lambda r: {"j": r["i"]} if r["i"] > 1 else None))
    stepped.push(batch_of(i=[1, 2, 3]), batch_of(i=[0, 0]), batch_of(i=[4]))
    assert stepped.values() == [{"j": 2}, {"j": 3}, {"j": 4}]
    assert stepped.operator.counters.filtered == 3
    assert all(isinstance(batch, ColumnBatch) for batch in stepped.batches())


def test_a_batch_that_is_done_row_by_row_is_columns_again() -> None:
    rows: dict[str, Any] = {"i": [1, 0, 4], "s": ["a", "b", "c"], "f": [0.5, None, 1.5]}
    steps: dict[str, Any] = {
        "map": partial(Map, fn=lambda r: {"n": 4 // r["i"], "s": r["s"], "f": r["f"]}),
        "filter": partial(Filter, predicate=lambda r: 4 // r["i"] > 1),
        "filter_map": partial(FilterMap, fn=lambda r: {"n": 4 // r["i"]} if r["i"] < 3 else None),
        "key": partial(KeyBy, fn=lambda r: 4 // r["i"]),
    }
    for name, step in steps.items():
        stepped = Stepped(step, on_error="skip")
        stepped.push(batch_of(**{key: column[:1] for key, column in rows.items()}))
        stepped.push(batch_of(**rows))
        first, second = stepped.batches()
        assert isinstance(second, ColumnBatch), name
        assert isinstance(first, ColumnBatch)
        assert second.columns.schema == first.columns.schema, name
        expected = {"map": [{"n": 4, "s": "a", "f": 0.5}, {"n": 1, "s": "c", "f": 1.5}], "filter_map": [{"n": 4}]}
        kept = [{key: column[row] for key, column in rows.items()} for row in ((0,) if name == "filter" else (0, 2))]
        assert second.values == expected.get(name, kept)
        assert second.keys == ([4, 1] if name == "key" else None)


def test_rows_that_an_earlier_step_has_changed_are_taken() -> None:
    for step in (
        partial(Filter, predicate=lambda r: r["i"] > 1),
        partial(FilterMap, fn=lambda r: r if r["i"] > 1 else None),
        partial(Branch, predicate=lambda r: r["i"] > 1),
        partial(Map, fn=lambda r: r),
    ):
        stepped = Stepped(step, ports=2).push(batch_of(i=[2]))
        changed = batch_of(i=[2])
        changed.values[0]["i"] = 3
        assert stepped.push(changed).values() == [{"i": 2}, {"i": 3}], step


@pytest.mark.parametrize("value", [True, 2**63, 0.5, "x", 3, None])
def test_what_the_earlier_columns_do_not_hold_stays_rows(value: Any) -> None:
    stepped = Stepped(partial(Map, fn=lambda r: {"n": r["i"], "m": 1 // r["j"]}), on_error="skip")
    stepped.push(batch_of(i=[4], j=[1]))
    stepped.push(batch_of(i=pa.array([value, value], pa.uint64() if value == 2**63 else None), j=[1, 0]))
    first, second = stepped.batches()
    assert isinstance(first, ColumnBatch)
    assert repr(second.values) == repr([{"n": value, "m": 1}])
    assert isinstance(second, ColumnBatch) == (value in (3, None))


def test_small_batches_are_rows_once_many_came_and_large_ones_columns_again() -> None:
    stepped = Stepped(partial(Map, fn=lambda r: {"n": r["i"] + 1}))
    for rows in [1] * (SMALL_IN_A_ROW + 2) + [600, 1]:
        stepped.push(batch_of(i=list(range(rows))))
    batches = stepped.batches()
    assert [type(batch) for batch in batches[-5:]] == [ColumnBatch, Batch, Batch, ColumnBatch, ColumnBatch]
    assert [batch.values[0] for batch in batches] == [{"n": 1}] * len(batches)


VALUES: dict[str, Callable[[Any], Any]] = {
    "numbers": lambda stream: stream.map("x", lambda r: r["i"] * 2),
    "numbers of numbers": lambda stream: stream.map("x", lambda r: r["i"] * 2).map("y", lambda n: n + 0.5),
    "text or None": lambda stream: stream.map("x", lambda r: r["d"] if r["i"] > 1 else None),
    "some": lambda stream: stream.map("x", lambda r: r["i"]).filter("y", lambda n: n > 1),
    "rows of values": lambda stream: stream.map("x", lambda r: r["f"]).map("y", lambda f: {"f": f, "g": f is None}),
    "keys": lambda stream: (
        stream.map("x", lambda r: r["i"]).key_by("y", lambda n: n % 2).map_with_key("z", lambda k, n: {"k": k, "n": n})
    ),
    "sums": lambda stream: (
        stream.map("x", lambda r: r["i"])
        .key_by("y", lambda n: n % 2)
        .sum("sum")
        .filter("some", lambda n: n > 1)
        .final()
        .map_with_key("z", lambda k, n: {"k": k, "n": n})
    ),
    "distinct by a function": lambda stream: stream.key_by("y", lambda r: r["d"]).distinct(
        "x", by=lambda r: r["i"] % 2
    ),
    "the largest by a function": lambda stream: stream.key_by("y", lambda r: r["d"]).top_n(
        "x", 2, by=lambda r: -r["i"]
    ),
    "the largest by a field": lambda stream: (
        stream.map("x", lambda r: {"i": r["i"]}).key_by("y", lambda r: r["i"] % 2).top_n("z", 2, by=lambda r: r["i"])
    ),
    "keys of one worker": lambda stream: stream.key_local("y", lambda r: r["i"] % 2),
    "keys and rows": lambda stream: (
        stream.map("x", lambda r: {"i": r["i"], "f": r["f"]})
        .key_by("y", lambda r: r["i"])
        .map_with_key("z", lambda k, r: {**r, "k": k + r["i"]})
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_that_are_no_rows_are_columns_too(name: str, tmp_path: Path) -> None:
    columns = {key: column for key, column in NARROW.items() if key != "n"}
    by_columns = written(VALUES[name], columns, tmp_path / "a", compile=True)
    by_rows = written(VALUES[name], columns, tmp_path / "b", compile=False)
    assert by_columns.schema.types == by_rows.schema.types
    assert by_columns.equals(by_rows)


def test_no_row_is_made_of_values_that_are_no_rows() -> None:
    (numbers,) = Stepped(partial(Map, fn=lambda r: r["i"] * 2)).push(batch_of(i=[1, 2])).batches()
    assert isinstance(numbers, ColumnBatch)
    (large,) = Stepped(partial(Filter, predicate=lambda n: n > 2)).push(numbers).batches()
    (keyed,) = Stepped(partial(KeyBy, fn=lambda n: n)).push(large).batches()
    (rows,) = Stepped(partial(MapWithKey, fn=lambda k, n: {"k": k, "n": n})).push(keyed).batches()
    assert isinstance(rows, ColumnBatch)
    assert isinstance(keyed, ColumnBatch)
    assert not numbers.rows_made
    assert not keyed.rows_made
    assert not rows.rows_made
    assert (numbers.values, rows.values) == ([2, 4], [{"k": 4, "n": 4}])


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda r: (r["i"],), "returns a tuple or a list, or a dict in a dict"),
        (lambda r: (r["i"], (r["i"], 1)), "returns a tuple or a list, or a dict in a dict"),
        (lambda r: (r["i"], 1) if r["i"] > 1 else (r["i"], 1, 2), "returns dicts of different fields"),
        (lambda r: (r["i"], 1) if r["i"] > 1 else {"0": r["i"], "1": 1}, "returns dicts of different fields"),
        (lambda r: [r["i"]], "returns a tuple or a list, or a dict in a dict"),
        (lambda r: {"x": {"y": r["i"]}}, "returns a tuple or a list, or a dict in a dict"),
        (lambda r: r["i"] if r["i"] > 1 else 0.5, "returns values of several types"),
        (lambda r: {"x": r["i"]} if r["i"] > 1 else {}, "returns dicts of different fields"),
        (lambda r: None, "returns nothing but None"),
    ],
)
def test_what_is_no_column_is_not_computed_first(
    function: Callable[[Any], Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "results", lambda *_: pytest.fail("computed"))
    step = CompiledFunction(StepContext("test", "x"), function)
    assert step.values(batch_of(i=[1, 2])) is None
    (variant,) = step._variants.values()
    assert variant.why_not.startswith(why)


def test_none_as_a_result_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    stepped = Stepped(partial(Map, fn=lambda r: r["i"] if r["i"] < 0 else None))
    with caplog.at_level(logging.WARNING):
        stepped.push(batch_of(i=list(range(1000))))
    assert "the first 1,000 results were None" in caplog.text


def test_none_as_a_verdict_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    stepped = Stepped(partial(Filter, predicate=lambda r: None if r["i"] >= 0 else True))
    with caplog.at_level(logging.WARNING):
        stepped.push(batch_of(i=list(range(1000))))
    assert "the first 1,000 results were None" in caplog.text


BAD_TEXT = pa.StringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff"))
FAR = pa.array([0, 400_000_000_000], pa.timestamp("s"))


@pytest.mark.parametrize("column", [BAD_TEXT, FAR, BAD_TEXT.dictionary_encode()])
@pytest.mark.parametrize(
    "step",
    [
        partial(Map, fn=lambda r: {"i": r["i"], "x": r["x"]}),
        partial(Filter, predicate=lambda r: r["i"] > 0),
        partial(KeyBy, fn=lambda r: r["i"]),
    ],
)
def test_values_that_python_cannot_hold_are_the_error_of_rows(step: Any, column: pa.Array) -> None:
    with pytest.raises(CodecError, match="column 'x'"):
        Stepped(step).push(batch_of(i=[1, 2], x=column))


def test_an_error_of_arrow_means_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise pa.ArrowInvalid("no")

    monkeypatch.setattr(compiled, "results", fail)
    monkeypatch.setattr(compiled, "truths", fail)
    given = batch_of(i=[1, 2])
    assert Stepped(partial(Map, fn=lambda r: {"j": r["i"]})).push(given).values() == [{"j": 1}, {"j": 2}]
    assert Stepped(partial(Filter, predicate=lambda r: r["i"] > 1)).push(given).values() == [{"i": 2}]
    assert Stepped(partial(KeyBy, fn=lambda r: r["i"])).push(given).batches()[0].keys == [1, 2]


def test_a_refusal_is_of_one_schema() -> None:
    stepped = Stepped(partial(Map, fn=lambda r: {"i": r["i"] + r["i"]}))
    stepped.push(batch_of(i=pa.array([[1]])), batch_of(i=[1]))
    by_rows, by_columns = stepped.batches()
    assert not isinstance(by_rows, ColumnBatch)
    assert isinstance(by_columns, ColumnBatch)
    assert stepped.values() == [{"i": [1, 1]}, {"i": 2}]


def test_in_test_mode_all_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(tree: Any, columns: pa.RecordBatch) -> Any:
        return np.arange(columns.num_rows) != columns.num_rows - 1

    monkeypatch.setattr(compiled, "truths", wrong)
    step = CompiledFunction(StepContext("test", "x", checked=True), lambda r: r["i"] >= 0)
    with pytest.raises(InternalError, match="compile=False"):
        step.kept(batch_of(i=list(range(50_000))))


def test_elsewhere_a_difference_means_rows_from_then_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled, "truths", lambda tree, columns: np.ones(columns.num_rows, np.bool_))
    stepped = Stepped(partial(Filter, predicate=lambda r: r["i"] > 1))
    with caplog.at_level(logging.WARNING):
        stepped.push(batch_of(i=[0, 1, 2]), batch_of(i=[0, 1, 3]))
    assert stepped.values() == [{"i": 2}, {"i": 3}]
    assert "gave other results on columns" in caplog.text


FOLLOWERS: dict[str, Callable[[Any], Any]] = {
    "key_by": lambda stream: stream.key_by("y", "missing"),
    "timestamps": lambda stream: stream.assign_timestamps("y", "missing"),
    "sum": lambda stream: stream.key_by("k", "i").sum("y", by="missing"),
    "select": lambda stream: stream.select("y", "i", z=pl.col("missing")),
    "filter": lambda stream: stream.filter("y", pl.col("missing") > 1),
    "type": lambda stream: stream.filter("y", pl.col("s") + 1 > pl.col("i")),
}


@pytest.mark.parametrize("name", FOLLOWERS)
@pytest.mark.parametrize(
    "before",
    [
        lambda stream, **how: stream.map("x", lambda r: {"i": r["i"], "s": r["s"]}, **how),
        lambda stream, **how: stream.filter("x", lambda r: r["i"] > 0, **how),
    ],
)
def test_later_steps_fail_with_the_words_of_rows(name: str, before: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": [1, 2, 3], "s": ["a", "b", "c"]}), tmp_path / "in.parquet")

    def text(**how: Any) -> str:
        stream = before(mp.Job("job").source("in", sources.Files(tmp_path / "in.parquet")), **how)
        with pytest.raises(OperatorError) as failed:
            mp.collect(FOLLOWERS[name](stream))
        return str(failed.value)

    assert text() == text(compile=False)


def test_the_first_job_of_a_user(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"car": ["a", "b", "a"] * 9, "km": [1.5, 2.5, 3.0] * 9, "n": [1, 2, 3] * 9}), tmp_path / "in.parquet"
    )

    def totals(*, compile: bool) -> Any:
        rows = mp.Job("job", compile=compile).source("in", sources.Files(tmp_path / "in.parquet"))
        far = rows.filter("far", lambda r: r["km"] > 2).map("price", lambda r: {**r, "price": r["km"] * 0.5 + r["n"]})
        return mp.collect(far.key_by("car", lambda r: r["car"]).sum("sum", by="price").final())

    assert sorted(totals(compile=True)) == sorted(totals(compile=False))


def test_why_a_function_is_not_compiled() -> None:
    assert why_never(lambda r: print(r)) == "calls print"  # noqa: PLW0108
    assert [TopN.why_never(one) for one in (lambda r: r["i"], lambda r: -r["i"], lambda r: print(r))] == [  # noqa: PLW0108
        *(None, "does more than to look up a field", "calls print")
    ]
    compiled: list[Callable[..., Any]] = [
        *(lambda r: r["i"] > 1, lambda r: {**r, "s": r["s"].lower()}, lambda r: 1 if "i" in r else None),
        *(lambda n: n * 2, lambda word: word.lower(), lambda k, n: {"k": k, "n": n}, lambda k, r: {**r, "k": k}),
        *(lambda r: r.km * 2, lambda k, r: r.km > k),
    ]
    assert [why_never(function) for function in compiled] == [None] * len(compiled)
    assert why_never(lambda word: word[::2]) == "takes one character, or a slice that is not compiled"
    tuples: list[Callable[..., Any]] = [
        *(lambda r: (r["shop"], r["product"]), lambda r: (r["n"] // 10, 1) if r["n"] else (0, 0), lambda v: (v, v)),
        *(lambda k, v: (k, v["n"]), lambda r: (r.car, r.n), lambda t: (t[0], t[1] + 1)),
    ]
    assert [why_never(function, makes_tuples=False) for function in tuples] == ["returns a tuple"] * len(tuples)
    assert [why_never(function) for function in tuples] == [None] * len(tuples)
    assert [why_never(lambda r: [r["n"]]), why_never(lambda r: [r["n"]], makes_columns=False)] == [
        *("returns a list or a set", None)
    ]
    assert why_never(lambda r: (1, 2) if r["s"] == 3 else r["s"] + "x") is None
    context = StepContext("test", "x")
    assert CompiledFunction(context, lambda r: r["i"] > 1, compiles=False).why_not == "compile=False"


def test_text_that_is_not_utf8_is_found_in_any_slice() -> None:
    texts = pa.array(["ab", None, "é", "", "c"])
    offsets, data = texts.buffers()[1:]
    broken = pa.Array.from_buffers(
        pa.string(), 5, [None, offsets, pa.py_buffer(data.to_pybytes().replace("é".encode(), b"\xc3\xc3"))]
    )
    for start in range(6):
        for stop in range(start, 6):
            check_held(pa.RecordBatch.from_arrays([texts.slice(start, stop - start)], names=["s"]))
            is_broken = start <= 2 < stop
            with pytest.raises(pa.ArrowInvalid) if is_broken else nullcontext():
                check_held(pa.RecordBatch.from_arrays([broken.slice(start, stop - start)], names=["s"]))
