"""What a newcomer writes and does not run: each error says what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from malstrom_py.builder.job import Job
from malstrom_py.builder.keyed_stream import KeyedStreamBuilder
from malstrom_py.errors import OperatorError, PlanError, SourceError
from malstrom_py.errors.text import redacting


def stream(*items: Any) -> Any:
    return mp.Job("mistaken").source("in", sources.Memory(items))


def keyed(*items: Any) -> Any:
    return stream(*items).key_by("k", lambda _: "key")


def with_epochs() -> Any:
    second = timedelta(seconds=1)
    times = stream(1).assign_timestamps("at", lambda value: value)
    return times.generate_epochs("epochs", mp.limit_out_of_orderness(second))


def named_methods() -> list[str]:
    """Return the methods of streams whose first argument is a name."""
    found = []
    for cls in KeyedStreamBuilder.__mro__:
        for method, function in vars(cls).items():
            code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
            is_named = code is not None and code.co_varnames[1:2] == ("name",)
            if is_named and not method.startswith("_") and method != "final":  # of `final` the name is optional
                found.append(method)
    return found


@pytest.mark.parametrize("method", sorted(set(named_methods())))
@pytest.mark.parametrize("arguments", [(), (len,)], ids=["nothing", "a function"])
def test_a_step_without_a_name_is_told_to_begin_with_one(method: str, arguments: tuple[Any, ...]) -> None:
    got = "builtin_function_or_method" if arguments else "nothing"
    said = rf"^the name of a step must be a str, got {got}: the name comes first, write \.{method}\('some-name', …\)$"
    with pytest.raises(PlanError, match=said):
        getattr(keyed(1), method)(*arguments)


def test_there_are_many_such_steps() -> None:
    assert len(named_methods()) > 35
    with pytest.raises(PlanError, match=r"got Memory: the name comes first, write \.source\('some-name', …\)"):
        Job("mistaken").source(sources.Memory([1]))  # type: ignore[call-arg, arg-type]


def test_a_name_may_be_given_by_its_keyword() -> None:
    assert mp.collect(stream(1).map(name="double", fn=lambda value: value * 2)) == [2]


TUPLES: dict[str, tuple[Callable[[], Any], str]] = {
    "generate_epochs": (with_epochs, "on_time, late"),
    "branch": (lambda: stream(1).branch("b", bool), "yes, no"),
    "split": (lambda: stream(1).split("s", 3, lambda value: [0]), "stream0, stream1, stream2"),
    "cloned": (lambda: stream(1).cloned("c", 2), "stream0, stream1"),
    "stateless_op": (lambda: stream(1).stateless_op("o", lambda message, out: None, sides=["odd"]), "main, odd"),
}


@pytest.mark.parametrize("step", TUPLES)
@pytest.mark.parametrize("method", ["key_by", "count", "sink"])
def test_streams_that_were_not_taken_apart_say_how(step: str, method: str) -> None:
    make, names = TUPLES[step]
    first = names.partition(",")[0]
    said = (
        rf"^{step} returns \d streams, so take them first: {names} = stream\.{step}\(…\), then {first}\.{method}\(…\)$"
    )
    with pytest.raises(AttributeError, match=said):
        getattr(make(), method)("name")


def test_such_streams_are_a_tuple() -> None:
    both = with_epochs()
    on_time, late = both
    assert isinstance(both, tuple)
    assert both == (on_time, late)
    assert not hasattr(both, "__array__")


@pytest.mark.parametrize("method", ["sink", "map", "key_by", "filter"])
def test_a_window_without_a_result_says_what_comes_first(method: str) -> None:
    windowed = with_epochs()[0].key_by("k", lambda _: "key").window("w", windows.tumbling(timedelta(seconds=5)))
    with pytest.raises(AttributeError, match=rf"\.window\('w', …\)\.aggregate\(n=agg\.count\(\)\).* has \.{method}\("):
        getattr(windowed, method)("name", len)
    assert not hasattr(windowed, "_hidden")


FIGURES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sum": (lambda s: s.sum("n"), lambda s: s.sum("n", by="price")),
    "mean": (lambda s: s.mean("n"), lambda s: s.mean("n", by="price")),
    "min": (lambda s: s.min("n"), lambda s: s.min("n", by="price")),
    "max": (lambda s: s.max("n"), lambda s: s.max("n", by=lambda row: row["price"])),
    "aggregate": (lambda s: s.aggregate("n", x=agg.sum()), lambda s: s.aggregate("n", x=agg.sum("price"))),
    "window": (
        lambda s: s.window("n", windows.count(2)).sum(),
        lambda s: s.window("n", windows.count(2)).aggregate(x=agg.sum("price")),
    ),
}


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_of_dicts_says_how_to_name_the_column(figure: str) -> None:
    rows = [{"shop": "a", "price": 3}, {"shop": "b", "price": 4}]
    with pytest.raises(OperatorError, match=r"dicts: name the column, by='price', or in aggregate agg\.sum\('price'\)"):
        mp.collect(FIGURES[figure][0](keyed(*rows)))
    with redacting(True), pytest.raises(OperatorError, match="name the column, by='price'"):
        mp.collect(FIGURES[figure][0](keyed({"secret": 1}, {"secret": 2})))


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_over_none_says_skip_nulls(figure: str) -> None:
    plain, by_column = FIGURES[figure]
    for made in (plain(keyed(1, None)), by_column(keyed({"price": 1}, {"price": None}))):
        with pytest.raises(OperatorError, match="Leave None out with skip_nulls=True"):
            mp.collect(made)


def test_a_reduce_over_none_has_no_such_option() -> None:
    with pytest.raises(OperatorError, match="Correct the function"):
        mp.collect(keyed(1, None).reduce("r", lambda one, other: one + other))


COLUMNS: dict[str, Callable[[Any], Any]] = {
    "select": lambda s: s.select("step", "dealy"),
    "with_columns": lambda s: s.with_columns("step", late=pl.col("dealy") > 1),
    "filter": lambda s: s.filter("step", pl.col("dealy") > 1),
    "key_by": lambda s: s.key_by("step", "dealy"),
    "assign_timestamps": lambda s: s.assign_timestamps("step", "dealy"),
    "sum": lambda s: s.key_by("k", "carrier").sum("step", by="dealy"),
}


@pytest.mark.parametrize("step", COLUMNS)
@pytest.mark.parametrize("rows", [True, False], ids=["rows", "columns"])
def test_a_column_that_is_not_there_names_the_nearest(step: str, rows: bool, tmp_path: Path) -> None:
    pl.DataFrame({"delay": [1], "carrier": ["AA"]}).write_parquet(tmp_path / "a.parquet")
    source: Any = sources.Memory([{"delay": 1, "carrier": "AA"}]) if rows else sources.Files(tmp_path / "*.parquet")
    with pytest.raises(OperatorError, match=r"'dealy'.*, did you mean 'delay'\?"):
        mp.collect(COLUMNS[step](mp.Job("mistaken").source("in", source)))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_columns_of_a_file_that_are_not_there_name_the_nearest(kind: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"delay": [1], "carrier": ["AA"]})
    (frame.write_parquet if kind == "parquet" else frame.write_csv)(tmp_path / f"a.{kind}")
    source = sources.Files(tmp_path / f"*.{kind}", columns=["Dealy"])
    with pytest.raises(SourceError, match=r"has no column 'Dealy', which columns= names, did you mean 'delay'\?"):
        mp.collect(mp.Job("mistaken").source("in", source))


def test_pytest_shows_the_line_of_the_user_alone() -> None:
    job = mp.Job("mistaken")
    job.source("in", sources.Memory([0])).map("inverse", lambda number: 1 / number).sink("out", sinks.Memory())
    handle = mp.InProcess().start(job, control=False)
    calls: list[Callable[[], Any]] = [
        lambda: mp.run(job),
        lambda: mp.InProcess().run(job),
        lambda: mp.Simulation().run(job),
        lambda: mp.collect(stream(0).map("inverse", lambda number: 1 / number)),
        lambda: handle.wait(timeout_s=60),
        lambda: stream(1).map(len),
        lambda: stream(1).count("n"),
    ]
    for call in calls:
        with pytest.raises((OperatorError, PlanError)) as caught:
            call()
        shown = {str(entry.path) for entry in caught.traceback.filter(caught)}
        assert shown == {__file__}
