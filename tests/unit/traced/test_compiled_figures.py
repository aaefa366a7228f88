"""Figures and windows over functions of rows give what they give row by row; where it can be, no row is made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import malstrom_py as mp
from malstrom_py import agg, sources, windows
from malstrom_py.builder.compiled_steps import compiled_of
from malstrom_py.data.batch import ColumnBatch
from malstrom_py.errors import OperatorError
from malstrom_py.operators.aggregate import Aggregate, Max, Sum
from malstrom_py.operators.time_windows import TimeWindows
from malstrom_py.operators.window import gather_one
from malstrom_py.state.figure_states import FigureStates
from tests.unit.operators.stepping import Stepped

ROWS = {
    "k": ["a", "b", "a", "a", "b", "a"],
    "i": pa.array([1, 2, 3, -4, 5, 2**62], pa.int64()),
    "j": pa.array([1, 2, 3, 4, 5, 6], pa.int8()),
    "f": pa.array([0.5, -0.0, float("nan"), 1.5, 0.0, 2.5]),
    "o": pa.array([None, 1, None, 2, 3, None], pa.int64()),
    "t": pa.array([1, 2, 11, 12, 21, 22], pa.int64()),
}


def timed(stream: Any) -> Any:
    on_time, _ = stream.assign_timestamps("at", lambda r: r["t"]).generate_epochs("e", mp.limit_out_of_orderness(0))
    return on_time.key_by("k", lambda r: r["k"])


def windowed(stream: Any, how: Callable[[Any], Any]) -> Any:
    return how(timed(stream).window("w", windows.tumbling(10)))


BUILDS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda rows: rows.key_by("k", lambda r: r["k"]).sum("x", by=lambda r: r["i"] * 2),
    "sum, beyond 64 bits": lambda rows: rows.key_by("k", lambda r: r["k"]).sum("x", by=lambda r: r["i"] * 8),
    "sum of floats": lambda rows: rows.key_by("k", lambda r: r["k"]).sum("x", by=lambda r: r["f"] / 3),
    "sum of what is not None": lambda rows: rows.key_by("k", lambda r: r["k"]).sum(
        "x", by=lambda r: r["o"], skip_nulls=True
    ),
    "min": lambda rows: rows.key_by("k", lambda r: r["k"]).min("x", by=lambda r: -r["f"]),
    "max of text": lambda rows: rows.key_by("k", lambda r: r["k"]).max("x", by=lambda r: r["k"] + "x"),
    "mean": lambda rows: rows.key_by("k", lambda r: r["k"]).mean("x", by=lambda r: r["j"] + 0.5).final(),
    "truths": lambda rows: rows.key_by("k", lambda r: r["k"]).sum("x", by=lambda r: r["j"] > 2),
    "aggregate": lambda rows: rows.key_by("k", lambda r: r["k"]).aggregate(
        "x", n=agg.count(), total=agg.sum(lambda r: r["i"] // 2), last=agg.last(lambda r: r["f"]), j=agg.max("j")
    ),
    "aggregate, not compiled": lambda rows: rows.key_by("k", lambda r: r["k"]).aggregate(
        "x", a=agg.sum(lambda r: r["i"]), b=agg.max(lambda r: str(r["f"]))
    ),
    "windows": lambda rows: windowed(rows, lambda window: window.sum(lambda r: r["i"] + 1)),
    "windows of several": lambda rows: windowed(
        rows, lambda window: window.aggregate(n=agg.count(), m=agg.mean(lambda r: r["j"] * 2), x=agg.max("f"))
    ),
    "windows of means": lambda rows: windowed(rows, lambda window: window.mean(lambda r: r["f"] * 2)),
}


def results(name: str, folder: Path, *, compile: bool) -> list[str]:
    job = mp.Job("job", compile=compile)
    rows = BUILDS[name](job.source("in", sources.Files(folder / "in.parquet")))
    return [repr(one) for one in mp.collect(rows)]


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("size", [2, 6])
def test_figures_of_functions_are_those_of_rows(name: str, size: int, tmp_path: Path) -> None:
    pq.write_table(pa.table(ROWS), tmp_path / "in.parquet", row_group_size=size)
    assert results(name, tmp_path, compile=True) == results(name, tmp_path, compile=False)


def keyed(**columns: Any) -> ColumnBatch:
    count = len(next(iter(columns.values())))
    return ColumnBatch(
        pa.RecordBatch.from_pydict(columns),
        key_column=pa.array(["a", "b"] * (count // 2)),
        time_column=pa.array(range(count), pa.int64()),
    )


@pytest.mark.parametrize(
    "step",
    [
        partial(Sum, by=lambda r: r["i"] * 2),
        partial(Aggregate, aggregations={"n": agg.count(), "x": agg.max(lambda r: r["i"] * 2)}),
        partial(TimeWindows, gather=partial(gather_one, agg.sum(lambda r: r["i"] * 2)), size=10, step=10),
    ],
)
def test_no_row_is_made(step: Any) -> None:
    given = keyed(i=[1, 2, 3, 4])
    stepped = Stepped(step, keyed=True, timed=True).push(given)
    assert not given.rows_made
    assert stepped.operator.takes_columns


def test_a_row_that_fails_leaves_the_others() -> None:
    step = partial(Sum, by=lambda r: 6 // r["i"])
    stepped = Stepped(step, on_error="dead-letter", keyed=True).push(keyed(i=[1, 2]), keyed(i=[0, 3]))
    assert stepped.values() == [6, 3, 5]
    assert [letter.value for letter in stepped.dead_letters] == [{"i": 0}]


def test_a_batch_that_is_not_proven_leaves_states_in_columns() -> None:
    stepped = Stepped(partial(Max, by=lambda r: len(r["s"].lower())), keyed=True)
    stepped.push(keyed(s=["B", "a"]), keyed(s=["Ä", "Éa"]), keyed(s=["bcd", "C"]))
    assert stepped.values() == [1, 1, 1, 2, 3, 2]
    assert isinstance(stepped.operator, Max)
    assert isinstance(stepped.operator.state.values, FigureStates)


def test_an_error_names_the_function() -> None:
    with pytest.raises(OperatorError, match=r"ZeroDivisionError in .*<lambda> at .*test_compiled_figures"):
        Stepped(partial(Sum, by=lambda r: 6 // r["i"]), keyed=True).push(keyed(i=[1, 0]))


def test_the_plan_says_which_are_compiled() -> None:
    job = mp.Job("job")
    rows: mp.StreamBuilder[Any, Any] = job.source("in", sources.Memory([{"k": "a", "i": 1, "t": 1}]))
    stream = timed(rows)
    stream.sum("sum", by=lambda r: r["i"]).sink("out-a", mp.sinks.Memory())
    stream.max("max", by=lambda r: r["i"], compile=False).sink("out-b", mp.sinks.Memory())
    stream.min("min", by="i").sink("out-c", mp.sinks.Memory())
    stream.aggregate("all", n=agg.sum(lambda r: print(r["i"]))).sink("out-d", mp.sinks.Memory())
    stream.window("w", windows.tumbling(10)).mean(lambda r: r["i"]).sink("out-e", mp.sinks.Memory())
    stream.window("off", windows.tumbling(10), compile=False).mean(lambda r: r["i"]).sink("out-f", mp.sinks.Memory())
    found = {step.name: str(compiled_of(step)) for step in job.plan().steps}
    assert (found["sum"], found["w"], found["min"]) == ("compiled", "compiled", "None")
    assert found["max"] == found["off"] == "not compiled: compile=False"
    assert found["all"] == "not compiled: calls print"
