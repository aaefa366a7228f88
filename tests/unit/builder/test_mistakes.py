"""What a newcomer writes and does not run: each error says what to write instead."""

from __future__ import annotations

import sys
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
            if is_named and not method.startswith("_") and method not in ("final", "group_by"):  # optional
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


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "sum": (lambda: keyed().sum("t", len), r"step 't': .*: write \.sum\('t', by=…\)$"),
    "mean": (lambda: keyed().mean("t", "v"), r"write \.mean\('t', by='v'\)$"),
    "count": (lambda: keyed().count("t", "v"), r"write \.count\('t'\)$"),
    "aggregate": (
        lambda: keyed().aggregate("a", agg.count()),
        r"step 'a': .*: write \.aggregate\('a', n=agg\.count\(\)\)$",
    ),
    "key_by": (
        lambda: stream().key_by("s"),
        r"missing a required argument: 'key': write \.key_by\('some-name', 's'\)$",
    ),
    "map": (lambda: stream().map("f"), r"missing a required argument: 'fn': write \.map\('f', fn\)$"),
    "fold": (lambda: keyed().fold("f", max), r"write \.fold\('f', fn, default=…\)$"),
    "option": (
        lambda: stream().map("f", len, retries=3),
        r"unexpected keyword argument 'retries': write \.map\('f', fn\)$",
    ),
    "policy": (lambda: stream().filter("f", len, "skip"), r"write \.filter\('f', predicate, on_error='skip'\)$"),
    "join": (
        lambda: keyed().join("j", keyed()),
        r"window=…\)\. Joins without windows are \.join_table, \.join_asof and \.join_interval$",
    ),
    "source": (lambda: mp.Job("mistaken").source("in"), r"write \.source\('in', source\)$"),  # type: ignore[call-arg]
    "windowed sum": (
        lambda: windowed().sum("total", by="v"),
        r"takes no name, \.window\(…\) has it: write \.sum\('v'\)$",
    ),
    "windowed count": (
        lambda: windowed().count("n"),
        r"step 'w': an aggregate of windows takes no name.*: write \.count\(\)$",
    ),
    "windowed fold": (lambda: windowed().fold("n", max, default=int), r"write \.fold\(fn, default=…\)$"),
    "windowed aggregate": (lambda: windowed().aggregate(agg.count()), r"write \.aggregate\(n=agg\.count\(\)\)$"),
    "expression": (lambda: stream().map("f", pl.col("v")), r"a function, got Expr: use \.select or \.with_columns$"),
    "column": (
        lambda: stream().map("f", "v"),
        r"got str: write lambda row: row\['v'\], or use \.select or \.with_columns$",
    ),
    "source of a list": (lambda: source([1, 2]), r"list is not a source: write sources\.Memory\(\[…\]\)$"),
    "source of a path": (lambda: source("pay.csv"), r"str is not a source: write sources\.Files\('pay\.csv'\)$"),
    "sink of a function": (lambda: stream().sink("o", print), r"not a sink: write sinks\.Callable\(print\)$"),
    "sink of a path": (lambda: stream().sink("o", Path("out")), r"not a sink: write sinks\.Files\('out'\)$"),
    "sink of a list": (lambda: stream().sink("o", []), r"not a sink: write sinks\.Memory\(\)$"),
}


def source(thing: Any) -> Any:
    return mp.Job("mistaken").source("in", thing)


def windowed() -> Any:
    return with_epochs()[0].key_by("k", lambda _: "key").window("w", windows.tumbling(timedelta(seconds=5)))


@pytest.mark.parametrize("call", CALLS)
def test_arguments_that_do_not_fit_are_answered_by_what_to_write(call: str) -> None:
    with pytest.raises(PlanError, match=CALLS[call][1]):
        CALLS[call][0]()


def test_print_is_called_so_though_a_library_has_put_another_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.print", lambda *_: None)
    with pytest.raises(PlanError, match=r"write sinks\.Callable\(print\)$"):
        stream().sink("o", print)


def test_an_error_inside_such_a_method_is_that_of_its_line() -> None:
    class Odd:
        def __fspath__(self) -> Any:
            raise TypeError("odd")

    with pytest.raises(TypeError, match=r"^odd$"):
        source(Odd())


def test_the_late_stream_is_called_so() -> None:
    _, late = with_epochs()
    said = "but this is the late stream of step 'epochs', which has no watermarks: use the first stream that it returns"
    with pytest.raises(PlanError, match=said):
        late.key_by("k", lambda _: "key").window("w", windows.tumbling(timedelta(seconds=5)))
    with pytest.raises(PlanError, match="but the stream has no watermarks: put assign_timestamps and generate_epochs"):
        keyed(1).window("w", windows.tumbling(timedelta(seconds=5)))


def test_a_table_without_times_is_told_how_it_gets_them() -> None:
    job = mp.Job("shop")
    rows = job.source("sales", sources.Memory([{"id": 1, "at": 5}])).assign_timestamps("time", "at", unit="s")
    sales = rows.generate_epochs("epochs", mp.limit_out_of_orderness(0))[0].key_by("article", "id")
    names = job.source("names", sources.Memory([{"id": 1, "name": "lamp"}]))
    said = (
        r"A table without times gets one for all: \.assign_timestamps\('…', lambda row: 0, unit='s'\) and "
        r"\.generate_epochs\('…', mp\.limit_out_of_orderness\(0\)\) before its key_by$"
    )
    with pytest.raises(PlanError, match=said):
        sales.join_table("named", names.key_by("names-id", "id"), wait=True)
    timed = names.assign_timestamps("zero", lambda row: 0, unit="s")
    table = timed.generate_epochs("table-epochs", mp.limit_out_of_orderness(0))[0].key_by("id", "id")
    (pair,) = mp.collect(sales.join_table("named", table, wait=True))
    assert pair.right["name"] == "lamp"


def test_a_name_that_is_taken_is_explained_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)  # another test may have imported it
    one = stream(1)
    one.map("m", len)
    with pytest.raises(PlanError, match=r"already has a step 'm' \(map\): give this map another name$"):
        one.map("m", len)
    monkeypatch.setitem(sys.modules, "IPython", sys)
    with pytest.raises(PlanError, match=r"In a notebook, run the cell with mp\.Job\(…\) again"):
        one.map("m", len)


@pytest.mark.parametrize(
    ("get", "said"),
    [
        (lambda: agg.avg, r"agg\.mean\(by\)"),  # type: ignore[attr-defined]
        (lambda: windows.tumble, r"windows\.tumbling\(size\)"),  # type: ignore[attr-defined]
        (lambda: stream().sort, r"\.window\('name', …\)\.collect\(\)"),
        (lambda: stream().to_parquet, r"\.sink\('name', sinks\.Files\(folder"),
    ],
)
def test_names_of_tables_are_answered(get: Callable[[], Any], said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        get()


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
        lambda: keyed(1).sum("t", "v"),
    ]
    for call in calls:
        with pytest.raises((OperatorError, PlanError)) as caught:
            call()
        shown = {str(entry.path) for entry in caught.traceback.filter(caught)}
        assert shown == {__file__}
