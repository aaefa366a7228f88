"""Processors of PySpark as keyed steps: arguments, timers, what ends by the clock, initial state, the end."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import malstrom_py as mp
from malstrom_py import Epoch, sources, spark
from malstrom_py.spark.stored_values import StoredRow
from malstrom_py.testing import OperatorTester
from tests.spark_processors import COUNTED, Fading, Lasting, Sends, Silence, Stock, Sum, SumInPandas

ROWS = [{"key": key, "n": n, "item": "ab"[n % 2]} for n, key in enumerate("abacab")]


def keyed(rows: Any = ROWS) -> Any:
    return mp.Job("processors").source("in", sources.Memory(rows)).key_by("key", "key")


def values(tester: OperatorTester) -> list[Any]:
    return [one.value for one in tester.receive_local() if isinstance(one, mp.DataMessage)]


def timed(processor: StatefulProcessor, output: str, time_mode: str = "eventTime") -> OperatorTester:
    def step(stream: Any) -> Any:
        return spark.stateful(stream, "step", processor, output, time_mode=time_mode)

    return OperatorTester(step, keyed=True, timed=time_mode == "eventTime")


@pytest.mark.parametrize("processor", [Sum(), SumInPandas()])
def test_rows_of_a_key_are_one_call(processor: StatefulProcessor) -> None:
    in_pandas = isinstance(processor, SumInPandas)
    out = mp.collect(spark.stateful(keyed(), "sum", processor, COUNTED, in_pandas=in_pandas))
    assert sorted((row["key"], row["n"]) for row in out) == [
        *(("a", 0), ("a", 2), ("a", 6)),
        *(("b", 1), ("b", 6)),
        ("c", 3),
    ]


def test_maps_and_lists() -> None:
    out = mp.collect(spark.stateful(keyed([*ROWS, {"key": "a", "n": -6, "item": "a"}]), "stock", Stock(), Stock.OUTPUT))
    assert [row for row in out if row["key"] == "a"][-1] == {
        "key": "a",
        "items": "[]",
        "last": "[(2, 'a'), (4, 'a'), (-6, 'a')]",
    }


def test_timers_of_event_time_fire_at_the_watermark_unless_deleted() -> None:
    tester = timed(Silence(), Silence.OUTPUT)
    tester.send_local([("a", {"at_ms": 1}, 1), ("a", {"at_ms": 3}, 3), ("b", {"at_ms": 4}, 4)], Epoch(6)).step()
    assert values(tester) == []
    tester.send_local([("b", {"at_ms": 8}, 8)], Epoch(9)).step()
    assert values(tester) == [{"key": "a", "n": 2, "at": 3}]
    tester.send_local(Epoch(13)).step()
    assert values(tester) == [{"key": "b", "n": 2, "at": 8}]
    assert tester.interrogate() == set()


class Eager(StatefulProcessor):
    """Sets timers that have passed: of rows, and of a timer."""

    def init(self, handle: Any) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        self._handle.registerTimer(timerValues.getCurrentWatermarkInMs())
        self._handle.registerTimer(1)
        self._handle.deleteTimer(1)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        time = expiredTimerInfo.getExpiryTimeInMs()
        if time > 2:
            self._handle.registerTimer(2)
        yield Row(time=time)


def test_timers_that_have_passed_fire_at_once() -> None:
    tester = timed(Eager(), "time long")
    tester.send_local(Epoch(6)).step()
    tester.send_local([("a", {"n": 1}, 8)]).step()
    assert [value["time"] for value in values(tester)] == [6]
    tester.send_local(Epoch(9)).step()
    assert [value["time"] for value in values(tester)] == [2]
    assert tester.interrogate() == set()


class Echo(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        for frame in rows:
            yield frame.assign(kind=frame["n"].dtype.name, n=frame["n"].map(repr))


def test_the_frame_of_a_key_has_the_types_of_its_rows_alone() -> None:
    large = 2**53 + 1
    rows = [("a", large), ("b", None), ("c", 1), ("d", large), ("c", None), ("d", None), ("e", "x"), ("f", 0.5)]
    stream = keyed([{"key": key, "n": n} for key, n in rows])
    out = mp.collect(
        spark.stateful(stream, "echo", Echo(), "key string, n string, kind string", in_pandas=True),
        batch=mp.Batching(rows_max=100),
    )
    assert {row["key"]: row["n"] for row in out if row["n"] not in ("None", "nan")} == {
        "a": str(large),
        "c": "1",
        "d": str(large),
        "e": "'x'",
        "f": "0.5",
    }
    assert {row["key"]: row["kind"] for row in out if row["key"] in "aef"} == {
        "a": "int64",
        "e": "object",
        "f": "float64",
    }


def test_what_ends_by_the_clock_is_gone_and_leaves_nothing() -> None:
    tester = timed(Fading(), Fading.OUTPUT, "processingTime")
    clock = tester.clock

    def count(item: str) -> Any:
        tester.send_local([("a", {"n": 1, "item": item})]).step()
        return tuple(values(tester)[-1].values())[1:]

    assert count("x") == (1, "[('x', 1)]", 1)
    clock.advance(0.9)
    assert count("y") == (2, "[('x', 1), ('y', 1)]", 2)
    clock.advance(1.2)
    assert count("y") == (1, "[('y', 2)]", 3)
    clock.advance(1.0)
    assert count("y") == (1, "[('y', 3)]", 3)
    clock.advance(3.1)
    tester.step()
    assert tester.interrogate() == set()


def test_a_timer_finds_what_lasts_and_nothing_that_has_ended_at_its_time() -> None:
    tester = timed(Lasting(700), Lasting.OUTPUT, "processingTime")
    tester.send_local([("a", {"n": 1, "item": "x"})]).step()
    tester.clock.advance(0.7)
    tester.step()
    _, fired = values(tester)
    short, *lasting = zip(*literal_eval(fired["seen"])[:3], strict=True)
    assert short == ((False, None), (False, []), [])
    assert lasting == [((True, (1,)), (True, [(1,)]), [("x", 1)])] * 2


class Starting(Sum):
    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        self._sum.update((initialState.total,))


def test_initial_rows_are_taken_by_the_processor() -> None:
    first = {"a": Row(total=100), "d": Row(total=7)}
    out = mp.collect(spark.stateful(keyed(), "sum", Starting(), COUNTED, initial_rows=first))
    assert sorted(row["n"] for row in out) == [1, 3, 6, 100, 102, 106]
    again = mp.collect(spark.stateful(keyed(), "sum", Sum(), COUNTED, initial_state={"a": {"sum": (100,)}}))
    assert again == out
    by_columns = mp.collect(spark.stateful(keyed(), "sum", Sum(), COUNTED, initial_state=[("a", {"sum": {"n": 100}})]))
    assert by_columns == out
    later = spark.stateful(keyed(), "sum", Sum(), COUNTED, initial_state=lambda: {"a": {"sum": (100,)}})
    assert mp.collect(later) == out
    with pytest.raises(mp.PlanError, match="give initial_rows= or initial_state=, not both"):
        spark.stateful(keyed(), "sum", Starting(), COUNTED, initial_rows=first, initial_state={})
    kept = {"a": {"items": {"a": 2, ("b",): {"n": 5}}, "last": [{"n": 7, "item": "c"}, (8, "d")]}}
    stock = mp.collect(spark.stateful(keyed(ROWS[:1]), "stock", Stock(), Stock.OUTPUT, initial_state=kept))
    assert stock == [{"key": "a", "items": "[('a', 2), ('b', 5)]", "last": "[(7, 'c'), (8, 'd'), (0, 'a')]"}]


@pytest.mark.parametrize(
    ("processor", "state", "error"),
    [
        (Sum(), {"total": (1,)}, "the variable 'total', which is not made in init"),
        (Fading(), {"count": (1,)}, "the variable 'count', which has ttlDurationMs"),
        (Sum(), {"sum": (1, 2)}, "state 'sum' has 1 columns"),
    ],
)
def test_wrong_initial_state(processor: StatefulProcessor, state: dict[str, Any], error: str) -> None:
    with pytest.raises(mp.PlanError, match=error):
        spark.stateful(keyed(), "bad", processor, COUNTED, time_mode="processingTime", initial_state={"a": state})


CLOSED: list[str] = []


class Closing(Sum):
    def close(self) -> None:
        CLOSED.append("closed")


def test_a_processor_is_closed_at_the_end() -> None:
    CLOSED.clear()
    stream = spark.stateful(keyed(), "sum", Closing(), COUNTED)
    assert CLOSED == ["closed"]  # the one that was tried
    assert len(mp.collect(stream)) == len(ROWS)
    assert CLOSED == ["closed", "closed"]


class Bad(StatefulProcessor):
    def __init__(self, how: str) -> None:
        self._how = how

    def init(self, handle: Any) -> None:
        self._handle = handle
        if self._how == "ttl":
            handle.getValueState("n", "n long", 10)
        if self._how == "twice":
            handle.getValueState("n", "n long")
            handle.getListState("n", "n long")
        if self._how == "fails":
            raise RuntimeError("no database")
        self._value = handle.getValueState("value", "n long, m long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        if self._how == "narrow":
            self._value.update((1,))
        if self._how == "timer":
            self._handle.registerTimer(5)
        if self._how == "late":
            self._handle.getMapState("late", "n long", "n long")
        yield Row(a=1, b=2, c=3)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("ttl", "state 'n': ttlDurationMs needs time_mode=\"processingTime\""),
        ("twice", "state 'n' must be made in init"),
        ("fails", "step 'bad': the processor cannot be prepared: RuntimeError: no database"),
    ],
)
def test_what_cannot_work_is_an_error_of_the_plan(how: str, error: str) -> None:
    with pytest.raises(mp.PlanError, match=error.replace("(", r"\(")):
        spark.stateful(keyed(), "bad", Bad(how), COUNTED)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("narrow", "state 'value' has 2 columns"),
        ("timer", "timers need time_mode="),
        ("late", "state 'late' must be made in init"),
        ("other", "a row has the columns a, b, c, and the output key, n"),
    ],
)
def test_an_error_of_a_processor_names_step_and_cause(how: str, error: str) -> None:
    with pytest.raises(mp.OperatorError, match=f"step 'bad'.*{error}"):
        mp.collect(spark.stateful(keyed(), "bad", Bad(how), COUNTED))


@pytest.mark.parametrize("in_pandas", [False, True])
@pytest.mark.parametrize(
    ("kind", "value", "sent"),
    [
        ("int", 2.0, 2),
        ("double NOT NULL", 5, 5.0),
        ("array<date> COMMENT 'it''s, one'", [datetime(2026, 1, 2, 3)], [date(2026, 1, 2)]),  # noqa: DTZ001
        ("struct<a: tinyint, `b``, c` map<string, int>>", {"b`, c": {"x": 1}}, {"a": None, "b`, c": [("x", 1)]}),
        ("int", 2**31, "column 'v' of the output is int, got 2147483648: "),
        ("varchar(3)", 5, "column 'v' of the output is string, got 5: "),
        ("string not null", None, "column 'v' of the output is string, got None: the column is NOT NULL"),
    ],
)
def test_values_get_the_types_of_the_output(kind: str, value: object, sent: object, *, in_pandas: bool) -> None:
    processor = Sends({"w": 1, "v": value}, in_pandas=in_pandas)
    step = spark.stateful(keyed(ROWS[:1]), "bad", processor, f"v {kind}", in_pandas=in_pandas)
    if isinstance(sent, str):
        with pytest.raises(mp.OperatorError, match=re.escape(sent)):
            mp.collect(step)
    else:
        (row,) = mp.collect(step)
        assert (row, type(row["v"])) == ({"v": sent}, type(sent))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("map<string,int>", one) for one in ([None], (("a", 1), None), np.array([None]), {"a", None}, [pd.NA])),
        ("array<map<int,int>>", [{1: 2}, [None]]),
        ("map<int,map<int,int>>", {1: [None]}),
        *(
            ("struct<a:int,m:map<int,int>>", one)
            for one in ({"m": [None]}, (1, [None]), Row(m=[None]), [("m", [None])])
        ),
    ],
)
def test_a_map_with_an_entry_that_is_none_does_not_end_the_process(kind: str, value: object) -> None:
    step = spark.stateful(keyed(ROWS[:1]), "bad", Sends({"v": value}, in_pandas=False), f"v {kind}")
    with pytest.raises(mp.OperatorError, match=r"step 'bad' failed: .*column 'v' of the output .* are pairs"):
        mp.collect(step)


class Growing(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        seen, raw = dict[int, int](), bytearray()
        kept: list[int] = []
        for row in rows:
            seen[row.n] = row.n
            kept.append(row.n)
            raw.append(row.n)
            yield Row(kept=kept, seen=seen.values(), raw=raw, within=[raw], pair=[("raw", raw)])


class Emptying(StatefulProcessor):
    """Changes what its state has given it, which is not its state."""

    def init(self, handle: Any) -> None:
        self._value = handle.getValueState("value", "v array<int>")
        self._list = handle.getListState("list", "v array<int>")
        self._map = handle.getMapState("map", "k string", "v map<string, int>")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for _ in rows:
            if not self._value.exists():
                self._value.update(([1],))
                self._list.put([([2],)])
                self._map.updateValue(("a",), ({"x": 3},))
            of_map = [self._map.getValue(("a",)), *self._map.values()]
            held = [self._value.get()[0], *(one for (one,) in [*self._list.get(), *of_map])]
            yield Row(v=repr(held))
            for one in held:
                one.clear()


def test_what_a_state_gives_can_be_changed_without_a_change_of_the_state() -> None:
    out = mp.collect(spark.stateful(keyed([{"key": "a"}] * 3), "step", Emptying(), "v string"))
    assert [row["v"] for row in out] == [repr([[1], [2], {"x": 3}, {"x": 3}])] * 3


class Each(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        return rows


@pytest.mark.parametrize(
    ("kind", "values", "sent"),
    [
        ("int", [1, None, -(2**31)], [1, None, -(2**31)]),
        ("int", [None, None], [None, None]),
        ("int", [1, 2.0, None], [1, 2, None]),
        ("int", [1, True], "got True"),
        ("int", [None, 2**31], "got 2147483648"),
        ("int", [-(2**31) - 1, 1], "got -2147483649"),
        ("string not null", ["x", None], "got None: the column is NOT NULL"),
    ],
)
def test_rows_of_a_batch_are_converted_together(kind: str, values: list[Any], sent: Any) -> None:
    step = spark.stateful(keyed([{"key": "a", "v": one} for one in values]), "each", Each(), f"v {kind}")
    if isinstance(sent, str):
        with pytest.raises(mp.OperatorError, match=f"column 'v' of the output .*{sent}"):
            mp.collect(step)
    else:
        assert repr([row["v"] for row in mp.collect(step)]) == repr(sent)


def test_a_decimal_that_is_no_number_is_not_kept() -> None:
    with pytest.raises(ValueError, match=r"column 'v' of the state is decimal\(5,2\), got Decimal\('NaN'\)"):
        StoredRow("v decimal(5,2)", "the state").of([Decimal("NaN")])


def test_what_grows_is_sent_as_it_was() -> None:
    output = "kept array<int>, seen array<int>, raw binary, within array<binary>, pair struct<raw:binary>"
    step = spark.stateful(keyed([{"key": "a", "n": n} for n in range(3)]), "grow", Growing(), output)
    assert [list(row.values()) for row in mp.collect(step)] == [
        [list(range(n)), list(range(n)), bytes(range(n)), [bytes(range(n))], {"raw": bytes(range(n))}]
        for n in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"time_mode": "never"}, "time_mode must be one of none, processingTime, eventTime, got 'never'"),
        ({"output_mode": "all"}, "output_mode must be one of append, update, complete"),
        ({"time_mode": "eventTime"}, "needs watermarks, with times in ms"),
        ({"output": 7}, "output must be a StructType or text"),
        ({"output": "n strange"}, "output must be .*: there is no type 'strange'"),
        ({"output": "n array<int"}, "output must be .*: 'the end' where '>' is expected"),
        ({"output": "n int m int"}, "output must be .*: 'm' after the column 'n'"),
        ({"output": "n"}, "output must be .*: it ends too early"),
        ({"output": "n decimal(39,2)"}, r"column 'n' is decimal\(39,2\): a decimal has 1 to 38 digits"),
        ({"output": "n decimal(5,2,1)"}, "output must be "),
        ({"output": "n int /* open"}, "output must be .*: '/' after the column 'n'"),
        ({"output": "n interval year to month"}, "column 'n' is of the Spark type interval year to month"),
        ({"processor": object()}, "processor must be a StatefulProcessor"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: str) -> None:
    given: dict[str, Any] = {"processor": Sum(), "output": COUNTED} | options
    with pytest.raises(mp.PlanError, match=error):
        spark.stateful(keyed(), "bad", given.pop("processor"), given.pop("output"), **given)


def test_a_stream_without_keys_is_refused() -> None:
    with pytest.raises(mp.PlanError, match=r"stream 'in' has no keys: put \.key_by"):
        spark.stateful(mp.Job("no").source("in", sources.Memory(ROWS)), "bad", Sum(), COUNTED)
    with pytest.raises(mp.PlanError, match=r"needs a keyed stream, .*\.key_by\(…\), not list"):
        spark.stateful(ROWS, "bad", Sum(), COUNTED)
