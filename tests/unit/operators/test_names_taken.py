"""The names that functions take of their rows; and the law that a job is the same with and without the others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import csv

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.builder import job as job_module
from malstrom_py.builder.columns_read import columns_of
from malstrom_py.errors import MalstromError
from malstrom_py.operators.names_taken import names_taken
from malstrom_py.sources import Files

TABLE = {1: 2}
show = locals


def spying() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return len(frame.f_back.f_locals)


def spied_on() -> int:
    return spying()


def traced_back(r: Any) -> Any:
    try:
        return r["a"] // 0
    except ZeroDivisionError:
        return inspect.trace()[0]


def early(r: Any) -> Any:
    if r["a"] is None:
        return r["b"]
    found = r["c"]
    return found + r.get("d", 1)


def items(r: Any) -> Any:
    for one in r["a"]:
        yield one + r["b"]


def caught(r: Any) -> Any:
    try:
        return r["a"]
    except KeyError:
        return r["b"]


def stored(r: Any) -> Any:
    r["a"] = 1


def rebound(r: Any) -> Any:
    r = r["a"]
    return r["b"]


TAKES: list[tuple[str, Callable[..., Any]]] = [
    ("a", lambda r: r["a"]),
    ("ab", lambda r: {"x": r["a"], "y": r["b"] * 2}),
    ("abcd", early),
    ("ab", items),
    ("ab", caught),
    ("ab", lambda r: (TABLE[r["a"]], r["b"])),
    ("a", lambda r: r.get("a")),
    ("a", lambda r: r.get("a", 0)),
    ("a", lambda r: r.get("a", (1, 2))),
    ("ab", lambda r, x=1: x + r["a"] + x * r["b"]),
    ("ab", lambda r: [one for one in r["a"] if one] + r["b"]),
    ("ab", lambda r: f"{r['a']} {r['b']:>3}"),
    ("a", lambda r: str(r["a"])),
    ("", lambda r: 1),
]
NEEDS_ALL: list[Callable[..., Any]] = [
    lambda r: r,
    lambda r: {**r},
    lambda r: r.items(),
    lambda r: [*r],
    lambda r: lambda: r["a"],
    lambda r: [lambda: r["a"] for _ in r["b"]],
    lambda r: r[TABLE],
    lambda r: r[0],
    lambda r: r[r["a"]],
    lambda r: r["a":],
    lambda r: r["a"] + len(r),
    lambda r: r["a"] or r,
    lambda r: "a" in r,
    lambda r: r.pop("a"),
    lambda r: r.get,
    lambda r: (r.get, "a"),
    lambda r: str(r.get, "a"),
    lambda r: r.get("a", r),
    lambda r: r.get(*["a"]),
    lambda r: r.get(key="a"),
    lambda r: [found := r, found],
    lambda *r: r[0],
    lambda r: (locals(), r["a"]),
    lambda r: (show(), r["a"]),
    lambda r: eval("r"),
    stored,
    rebound,
    lambda r: (r["a"], spied_on()),
    traced_back,
    len,
]


@pytest.mark.parametrize("number", range(len(TAKES)))
def test_constant_names_are_taken(number: int) -> None:
    names, function = TAKES[number]
    assert names_taken(function) == frozenset(names)


@pytest.mark.parametrize("number", range(len(NEEDS_ALL)))
def test_any_other_use_needs_the_whole_row(number: int) -> None:
    assert names_taken(NEEDS_ALL[number]) is None


def test_the_row_may_be_a_later_argument() -> None:
    assert names_taken(lambda key, r: (key, r["a"]), 1) == frozenset("a")
    assert names_taken(lambda key, r: (r["a"], key), 1) == frozenset("a")
    assert names_taken(lambda key, r: (r, key), 1) is None


ROWS = [{"a": n, "b": n % 3, "c": None if n % 2 else n, "d": "x" * n} for n in range(6)]

TERMS = st.sampled_from(
    [
        "r['a']",
        "r['b']",
        "r['c']",
        "r.get('a')",
        "r.get('c', 0)",
        "r.get('e', 1)",
        "len(r['d'])",
        "len(r)",
        "1",
        "r['e']",
        "('d' in r)",
        "sum(v for v in r.values() if type(v) is int)",
        "[r['b'] for _ in 'ab'][0]",
        "(lambda: r['a'])()",
        "len(str(r))",
        "len({**r})",
        "len(locals()['r'])",
        "eval('r')['b']",
        "(x := r)['a']",
        "dict(r, b=1)['b']",
    ]
)
EXPRESSIONS = st.recursive(
    TERMS,
    lambda inner: st.one_of(
        st.builds("({} + {})".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("max({}, {})".format, inner, inner),
    ),
    max_leaves=4,
)
SUFFIXES = st.sampled_from(["csv", "parquet"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["map", "filter", "keep", "key", "tap"]), EXPRESSIONS), min_size=1, max_size=3
)


def build(steps: list[tuple[str, str]], source: Files[Any], on_error: Any) -> mp.Job:
    job = mp.Job("law")
    rows: Any = job.source("rows", source)
    for number, (kind, text) in enumerate(steps):
        name, function = f"s{number}", eval(f"lambda r: {text}")
        if kind == "filter":
            rows = rows.filter(name, function, on_error=on_error)
        elif kind == "keep":
            rows = rows.filter_map(name, eval(f"lambda r: dict(a={text}, b=r['b'], c=1, d='d')"), on_error=on_error)
        elif kind == "key":
            rows = rows.key_by(name, function, on_error=on_error)
        elif kind == "tap":
            rows = rows.inspect(name, function, on_error=on_error)
        else:
            rows = rows.map(name, eval(f"lambda r: {{'a': {text}, 'b': r['b'], 'd': 'd'}}"), on_error=on_error)
    last = eval(f"lambda r: (r.get('a'), r['b'], {steps[-1][1]})")
    rows.map("last", last, on_error=on_error).sink("out", sinks.Memory())
    return job


def outcome(job: mp.Job) -> Any:
    try:
        mp.run(job)
    except MalstromError as error:
        return type(error), type(error.__cause__), str(error.__cause__)
    sink: Any = job._steps["out"].factory
    return sink.keywords["sink"].items


@given(steps=STEPS, on_error=st.sampled_from(["fail", "skip", "dead-letter"]), suffix=SUFFIXES)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@example(steps=[("filter", "r['b']"), ("map", "(lambda: r['a'])()")], on_error="fail", suffix="parquet")
@example(steps=[("filter", "r['b']"), ("map", "len(locals()['r'])")], on_error="fail", suffix="parquet")
@example(steps=[("key", "r['b']"), ("map", "len(str(r))")], on_error="skip", suffix="csv")
def test_a_job_of_functions_is_the_same_with_a_projection(
    steps: list[tuple[str, str]], on_error: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"rows.{suffix}"
    if suffix == "csv":
        csv.write_csv(pa.Table.from_pylist(ROWS), path)
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    narrow = outcome(build(steps, Files(path), on_error))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job_module, "narrow_sources", lambda steps: steps)
        assert columns_of(build(steps, Files(path), on_error).plan().steps[0]) is None
        assert outcome(build(steps, Files(path), on_error)) == narrow
