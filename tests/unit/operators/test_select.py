"""Steps over columns: ``select``, ``with_columns``, ``filter``, ``map_batches``, ``map_with_key``."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import polars as pl
import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sources, windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.errors import OperatorError, PlanError
from malstrom_py.errors.text import redacting
from malstrom_py.operators.columns import FilterColumns, KeyAsField, MapBatches, Select, WithColumns, expressions_of
from malstrom_py.windows import WINDOW_RESULT, WindowResult
from tests.unit.operators.stepping import Stepped, rows_of_batch


def select(*expressions: pl.Expr | str, **named: pl.Expr | str) -> Stepped:
    return Stepped(partial(Select, expressions=expressions_of(expressions, named, "under-test")))


def columns(**values: list[Any]) -> ColumnBatch:
    return ColumnBatch(pa.RecordBatch.from_pydict(values))


def test_columns_stay_columns_and_no_row_is_made() -> None:
    step = select("item", euros=pl.col("price") * 0.5).push(columns(price=[10, 20], item=["a", "b"]))
    (batch,) = step.batches()
    assert isinstance(batch, ColumnBatch)
    assert not batch.rows_made
    assert (step.counters.rows_made, step.counters.columns_made) == (0, 0)
    assert batch.values == [{"item": "a", "euros": 5.0}, {"item": "b", "euros": 10.0}]


TEXT = ["a", None, "ö" * 40, ""] * 3
BESIDE_TEXT: dict[str, pa.Array] = {
    "n": pa.array(range(12)),
    "small": pa.array([1, None, 3] * 4, pa.int8()),
    "share": pa.array([0.5, None, float("nan")] * 4),
    "flag": pa.array([True, None, False] * 4),
    "day": pa.array([dt.date(2026, 1, 2), None] * 6),
    "text": pa.array(TEXT),
    "large": pa.array(TEXT, pa.large_string()),
}


@pytest.mark.parametrize("step", [Select, WithColumns])
@pytest.mark.parametrize("passing", [["text"], ["large", "n", "day"], list(BESIDE_TEXT)])
@pytest.mark.parametrize(
    "made",
    [
        [],
        [pl.col("n") * 2],
        [(pl.col("n") + pl.col("small")).alias("new"), pl.col("flag").not_()],
        [pl.col("text").str.len_chars().alias("long")],
        [pl.col("text").str.to_uppercase().alias("loud")],
        [pl.lit(7).alias("seven")],
        [pl.col("n").cast(pl.Decimal(10, 2)).alias("exact")],
    ],
)
def test_text_that_only_passes_makes_no_other_result(step: Any, passing: list[str], made: list[pl.Expr]) -> None:
    whole = pa.RecordBatch.from_arrays(list(BESIDE_TEXT.values()), names=list(BESIDE_TEXT))
    names = {expression.meta.output_name() for expression in made}
    expressions = [*(pl.col(name) for name in passing if name not in names), *made]
    found: list[Any] = []
    for given in (whole, whole.slice(3, 5), whole.slice(2, 0)):
        in_arrow, in_frame = ColumnBatch(given), ColumnBatch(given)
        assert in_frame.frame.height == given.num_rows
        for batch in (in_arrow, in_frame):
            sent = Stepped(partial(step, expressions=expressions)).push(batch).batches()
            found.append(sent[0].columns if sent else None)
    for of_arrow, of_frame in zip(found[::2], found[1::2], strict=True):
        if of_arrow is None or of_frame is None:
            assert of_arrow is of_frame
        else:
            assert of_arrow.schema == of_frame.schema
            assert repr(of_arrow.to_pylist()) == repr(of_frame.to_pylist())


@pytest.mark.parametrize("wrong", [pl.col("missing") + 1, pl.col("text") + 1, pl.col("n").cast(pl.Int8).alias("text")])
def test_an_error_beside_text_that_passes_is_the_same(wrong: pl.Expr) -> None:
    whole = pa.RecordBatch.from_pydict({"n": [1, 1000], "text": ["a", "b"], "other": ["c", "d"]})
    in_frame = ColumnBatch(whole)
    assert in_frame.frame.height == 2
    texts = []
    for batch in (ColumnBatch(whole), in_frame):
        with pytest.raises(OperatorError) as caught:
            select("other", wrong).push(batch)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_rows_become_columns_which_is_counted() -> None:
    step = select("item").push(Batch([{"item": "a", "price": 1}, {"item": None, "price": 2}]))
    assert step.batches()[0].values == [{"item": "a"}, {"item": None}]
    assert step.counters.columns_made == 2


def test_keys_timestamps_and_part_stay() -> None:
    given = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1, 2]}), keys=["a", "b"], timestamps=[5, 6], part="in/0")
    (batch,) = select(pl.col("n") + 1).push(given).batches()
    assert (batch.keys, batch.timestamps, batch.part) == (["a", "b"], [5, 6], "in/0")


def test_values_that_are_no_dicts_are_the_column_value() -> None:
    assert select(pl.col("value") * 2).push(Batch([1, 2])).batches()[0].values == [{"value": 2}, {"value": 4}]


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("n").sum(),
        pl.col("n") - pl.col("n").mean(),
        pl.col("n").shift(1),
        pl.col("n").cum_sum(),
        pl.col("n").sort(),
        pl.col("n").sum().over("s"),
        pl.len(),
        pl.when(pl.col("n") > 1).then(pl.col("n").max()).otherwise(0),
        pl.struct("s", pl.col("n").max()),
    ],
    ids=str,
)
def test_an_expression_of_more_than_its_row_is_refused_when_the_job_is_built(expression: pl.Expr) -> None:
    stream = mp.Job("test").source("in", sources.Memory([{"n": 1, "s": "a"}]))
    with pytest.raises(PlanError, match="step 'wrong': an expression looks at more than its own row"):
        stream.select("wrong", expression.alias("x"))


@pytest.mark.parametrize(
    "expression", [pl.all().sum(), pl.col("n").map_batches(lambda s: s - s.sum(), return_dtype=pl.Int64)], ids=str
)
def test_one_that_cannot_be_told_before_is_found_on_the_first_batch(expression: pl.Expr) -> None:
    with pytest.raises(OperatorError, match="'under-test': an expression looks at more than its own row"):
        select(expression).push(columns(n=[1, 2, 3]))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (pl.all() * 2, [{"n": 2, "m": 6}, {"n": 4, "m": 8}]),
        (pl.col("n", "m"), [{"n": 1, "m": 3}, {"n": 2, "m": 4}]),
        (pl.all().exclude("n"), [{"m": 3}, {"m": 4}]),
        (pl.selectors.by_name("m"), [{"m": 3}, {"m": 4}]),
        (pl.col("n").map_elements(lambda n: int(str(n)) + 1, return_dtype=pl.Int64), [{"n": 2}, {"n": 3}]),
        (pl.sum_horizontal("n", "m"), [{"n": 4}, {"n": 6}]),
    ],
    ids=str,
)
def test_selectors_and_functions_of_elements_work(expression: pl.Expr, expected: list[dict[str, int]]) -> None:
    assert select(expression).push(columns(n=[1, 2], m=[3, 4])).batches()[0].values == expected


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(OperatorError, match=r"step 'under-test': .*not there, only 'n', 's'\."):
        select("price").push(columns(n=[1], s=["x"]))


def test_an_expression_that_fails_says_why_unless_texts_are_hidden() -> None:
    step = select(pl.col("s").cast(pl.Int64))
    failed = "an expression failed on columns 's': String: InvalidOperationError"
    with pytest.raises(OperatorError, match=f"{failed}: conversion .*secret"):
        step.push(columns(s=["secret"]))
    with redacting(True), pytest.raises(OperatorError, match=rf"{failed}\. Correct"):
        step.push(columns(s=["secret"]))


def test_wrong_arguments_are_plan_errors() -> None:
    stream = mp.Job("test").source("in", sources.Memory([{"n": 1}]))
    with pytest.raises(PlanError, match="'a': pass at least one"):
        stream.select("a")
    with pytest.raises(PlanError, match=r"'b': expected Polars expressions .* got int: write pl.lit"):
        stream.select("b", 1)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"'c': expected Polars expressions .* got function"):
        stream.select("c", lambda row: row)  # type: ignore[arg-type]


def test_times_and_dates_come_back_as_they_were() -> None:
    moment = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    row = {"at": moment, "day": moment.date(), "time": dt.time(1, 2, 3, 4), "took": dt.timedelta(seconds=1)}
    assert select(pl.all()).push(Batch([row])).batches()[0].values == [row]


@pytest.mark.parametrize("name", ["*", "^n$", "^.*$"])
def test_a_name_is_no_pattern(name: str) -> None:
    step = select(name).push(ColumnBatch(pa.RecordBatch.from_pydict({name: [1], "n": [2]})))
    assert step.batches()[0].values == [{name: 1}]


def test_an_error_of_a_function_inside_an_expression_names_the_step() -> None:
    def fails(value: int) -> int:
        raise ZeroDivisionError(value)

    with pytest.raises(OperatorError, match=r"'under-test': .* failed in fails at .*: ZeroDivisionError: 1 "):
        select(pl.col("n").map_elements(fails, return_dtype=pl.Int64)).push(columns(n=[1, 2]))


def test_a_function_of_whole_columns_is_found_behind_batches_that_do_not_show_it() -> None:
    running = pl.struct("n").map_batches(lambda s: s.struct.field("n").cum_sum(), return_dtype=pl.Int64)
    step = select(running)
    step.push(columns(n=[0, 0, 0]))
    with pytest.raises(OperatorError, match="more than its own row"):
        step.push(columns(n=[1, 2, 3]))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([10**40], pa.decimal256(50, 0)),
        pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
        pa.array([0], pa.timestamp("us", "No/Where")),
    ],
    ids=["decimal256", "fixed-size list", "zone"],
)
def test_a_type_that_polars_cannot_have_is_an_error_that_names_the_column(column: pa.Array) -> None:
    try:
        step = select("n").push(ColumnBatch(pa.RecordBatch.from_arrays([column], names=["n"])))
    except OperatorError as error:
        assert "column 'n' of Arrow type" in str(error)  # noqa: PT017  newer versions of Polars may have it
    else:
        assert [row["n"] for row in step.batches()[0].values] == column.to_pylist()


def test_columns_that_no_expression_reads_are_not_converted() -> None:
    spans = pa.array([pa.MonthDayNano([1, 2, 3])] * 2)
    given = ColumnBatch(pa.RecordBatch.from_arrays([pa.array([1, 2]), spans], names=["a", "span"]))
    (batch,) = select(twice=pl.col("a") * 2).push(given).batches()
    assert batch.values == [{"twice": 2}, {"twice": 4}]
    with pytest.raises(OperatorError, match="'a': Int64, 1 others"):
        select(pl.col("a").str.len_chars()).push(columns(a=[1, 2], b=[3, 4]))


def test_small_decimals_and_zones_that_are_offsets_keep_their_values() -> None:
    money = pa.array(["1.50", "-2.25"]).cast(pa.decimal128(12, 2)).cast(pa.decimal64(12, 2))
    moments = pa.array([0, 1], pa.timestamp("us", "+05:30"))
    given = ColumnBatch(pa.RecordBatch.from_arrays([money, moments], names=["v", "at"]))
    kept = select("v", "at").push(given).batches()[0].values
    assert [(row["v"], row["at"]) for row in kept] == list(zip(money.to_pylist(), moments.to_pylist(), strict=True))


def test_rows_with_moments_of_any_zone_are_one_column() -> None:
    zones = [dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), ZoneInfo("Europe/Oslo")]
    rows = [{"at": dt.datetime(2024, 5, 1, 12, tzinfo=zone)} for zone in zones]
    for batches in ([Batch(rows)], [Batch([row]) for row in rows]):
        step = select("at").push(*batches)
        assert [row for batch in step.batches() for row in batch.values] == rows


def test_all_fields_of_a_struct_become_columns() -> None:
    rows = [{"figures": {"n": 1, "total": 5}, "day": 3}, {"figures": {"n": 2, "total": 9}, "day": 4}]
    stream = mp.Job("job").source("rows", sources.Memory(rows))
    fields = stream.select("fields", pl.col("figures").struct.field("*"), day="day")
    assert mp.collect(fields) == [{"n": 1, "total": 5, "day": 3}, {"n": 2, "total": 9, "day": 4}]


# with_columns


def with_columns(*expressions: pl.Expr | str, **named: pl.Expr | str) -> Stepped:
    return Stepped(partial(WithColumns, expressions=expressions_of(expressions, named, "under-test")))


def test_columns_are_added_behind_the_others_and_no_row_is_made() -> None:
    step = with_columns(m=pl.col("n") * 2).push(ColumnBatch(pa.RecordBatch.from_pydict({"n": [1, 2]})))
    assert step.counters.rows_made == 0
    assert step.batches()[0].values == [{"n": 1, "m": 2}, {"n": 2, "m": 4}]


def test_a_column_of_the_same_name_is_replaced_where_it_stands() -> None:
    batch = with_columns(a=pl.col("a") + 1).push(Batch([{"a": 1, "b": 2}])).batches()[0]
    assert [list(row.items()) for row in batch.values] == [[("a", 2), ("b", 2)]]


def test_an_aggregate_is_refused() -> None:
    stream = mp.Job("test").source("in", sources.Memory([{"n": 1}]))
    with pytest.raises(PlanError, match="more than its own row"):
        stream.with_columns("share", share=pl.col("n") / pl.col("n").sum())


# filter by an expression


def keep(predicate: pl.Expr) -> Stepped:
    return Stepped(partial(FilterColumns, predicate=predicate))


def test_keys_and_timestamps_go_with_their_rows_as_lists_and_as_columns() -> None:
    values = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
    lists = ColumnBatch(values, keys=["a", "b", "c"], timestamps=[10, 20, 30], part="in/0")
    arrays = ColumnBatch(values, key_column=pa.array(["a", "b", "c"]), time_column=pa.array([10, 20, 30]), part="in/0")
    for given in (lists, arrays, Batch([{"n": 1}, {"n": 2}, {"n": 3}], keys=["a", "b", "c"], timestamps=[10, 20, 30])):
        step = keep(pl.col("n") != 2).push(given)
        (batch,) = step.batches()
        assert rows_of_batch(batch) == [("a", {"n": 1}, 10), ("c", {"n": 3}, 30)]
        assert batch.part == given.part
        assert step.counters.filtered == 1


def test_null_is_not_true() -> None:
    step = keep(pl.col("n") > 1).push(Batch([{"n": None}, {"n": 2}]))
    assert step.batches()[0].values == [{"n": 2}]
    assert step.counters.filtered == 1


def test_a_predicate_that_is_null_everywhere_keeps_nothing() -> None:
    step = keep(pl.lit(None)).push(Batch([{"n": 1}, {"n": 2}]))
    assert step.batches() == []
    assert step.counters.filtered == 2


def test_nothing_kept_sends_nothing() -> None:
    assert keep(pl.col("n") > 5).push(Batch([{"n": 1}])).batches() == []


def test_what_gives_no_booleans_is_an_error() -> None:
    with pytest.raises(OperatorError, match=r"'under-test': filter takes one expression that gives booleans.*Int64"):
        keep(pl.col("n") + 1).push(Batch([{"n": 1}]))
    with pytest.raises(OperatorError, match="gave Boolean, Boolean"):
        keep(pl.col("n", "m") > 0).push(Batch([{"n": 1, "m": 1}]))


def test_a_policy_is_refused_for_an_expression() -> None:
    stream = mp.Job("test").source("in", sources.Memory([{"n": 1}]))
    with pytest.raises(PlanError, match="'f': an expression takes whole batches, so on_error='skip'"):
        stream.filter("f", pl.col("n") > 1, on_error="skip")


def test_rows_stay_the_very_rows_they_were() -> None:
    pairs = [(1, 2), (3, 4)]
    (batch,) = keep(pl.col("value").list.get(0) > 1).push(Batch(list(pairs))).batches()
    assert batch.values[0] is pairs[1]


# map_batches


def mapped(fn: Any) -> Stepped:
    return Stepped(partial(MapBatches, fn=fn))


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


# map_with_key


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
