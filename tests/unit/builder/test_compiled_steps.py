"""The plan says which steps are compiled, and why others are not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import polars as pl

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.compiled_steps import compiled_of, why_text
from malstrom_py.builder.explain import as_plain


def shown(row: Any) -> Any:
    print(row)
    return row


def planned(*, compile: bool = True) -> mp.Job:
    job = mp.Job("prices", compile=compile)
    rows: mp.StreamBuilder[Any, Any] = job.source("rows", sources.Memory([{"shop": "a", "price": 2}]))
    dear = rows.filter("dear", lambda row: row["price"] > 1).map(
        "twice", lambda row: {**row, "price": row["price"] * 2}
    )
    seen = dear.map("seen", shown).filter("off", lambda row: row["price"] > 1, compile=False)
    named = seen.filter("named", pl.col("price") > 1).flat_map("flat", lambda row: [row])
    last = named.key_by("shop", "shop").sum("sum", by="price").map_with_key("last", lambda key, value: value + 1)
    last.sink("out", sinks.Memory())
    return job


def test_a_step_is_compiled_or_it_says_why_not() -> None:
    job = planned()
    notes = {step.name: str(compiled_of(step)) for step in job.plan().steps}
    assert notes == {
        **dict.fromkeys(("rows", "named", "flat", "shop", "sum", "out"), "None"),
        "dear": "compiled",
        "twice": "compiled",
        "last": "compiled",
        "off": "not compiled: compile=False",
        "seen": "not compiled: calls print",
    }
    dear, _, seen = job.explain().splitlines()[2:5]
    assert dear.endswith("; compiled]")
    assert seen.endswith("; not compiled: calls print]")


def test_functions_with_a_state_are_compiled_where_that_is_known_without_rows() -> None:
    rows: mp.StreamBuilder[Any, Any] = mp.Job("sums").source("rows", sources.Memory([{"shop": "a", "price": 2}]))
    keyed = rows.key_by("shop", "shop")
    keyed.fold("sum", lambda total, row: total + row["price"], default=int).sink("1", sinks.Memory())
    keyed.fold("called", lambda total, row: total + len(shown(row)), default=int).sink("2", sinks.Memory())
    keyed.fold("by-type", lambda total, row: total + row["at"].hour, default=int).sink("3", sinks.Memory())
    keyed.fold("product", lambda total, row: total * row["price"], default=int).sink("4", sinks.Memory())
    keyed.stateful_map("rise", lambda key, row, n: (row["price"] - n, row["price"]), default=int).sink(
        "5", sinks.Memory()
    )
    keyed.stateful_flat_map("flat", lambda key, row, n: ([n], n + 1), default=int).sink("6", sinks.Memory())
    keyed.reduce("first", lambda one, other: one).sink("7", sinks.Memory())
    found = {
        step.name: str(compiled_of(step)) for step in keyed.job.plan().steps if step.kind not in ("sink", "source")
    }
    assert found == {
        "sum": "compiled",
        "rise": "compiled",
        "called": "not compiled: calls print",
        **dict.fromkeys(("shop", "by-type", "product", "flat", "first"), "None"),
    }


def test_a_step_with_a_ttl_says_that_its_function_is_called() -> None:
    rows: mp.StreamBuilder[Any, Any] = mp.Job("sums").source("rows", sources.Memory([{"shop": "a", "price": 2}]))
    keyed = rows.key_by("shop", "shop")
    hour = timedelta(hours=1)
    keyed.fold("sum", lambda total, row: total + row["price"], default=int, ttl=hour).sink("1", sinks.Memory())
    keyed.count("count", ttl=hour).sink("2", sinks.Memory())
    steps = {step.name: step for step in keyed.job.plan().steps}
    assert (str(compiled_of(steps["sum"])), compiled_of(steps["count"])) == ("not compiled: ttl=", None)
    assert why_text(steps["sum"]).endswith("is not compiled: with ttl= it is known by key how long a state is kept")


def test_a_job_that_is_not_compiled_says_so() -> None:
    notes = {step.name: compiled_of(step) for step in planned(compile=False).plan().steps}
    assert {str(found) for found in notes.values()} == {"None", "not compiled: compile=False"}


def test_the_plan_has_it_in_fields() -> None:
    found = {step["step"]: (step["compiled"], step["why_not_compiled"]) for step in as_plain(planned().plan())["steps"]}
    assert (found["dear"], found["seen"], found["sum"]) == ((True, None), (False, "calls print"), (None, None))


def test_one_step_is_explained_in_a_sentence() -> None:
    texts = {step.name: why_text(step) for step in planned().plan().steps}
    assert texts["dear"].startswith("step 'dear' (filter) is compiled: planned.<locals>.<lambda> at ")
    assert texts["seen"].startswith("step 'seen' (map) is not compiled: shown at ")
    assert texts["seen"].endswith(" calls print")
    assert texts["off"] == "step 'off' (filter) is not compiled: compile=False of the step, or of its job"
    assert texts["sum"] == "step 'sum' (sum) has no function that could be computed on columns"
