"""Results and keys that are all None, and times of another unit, are warned of, with the function and its line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.time import PER_SECOND, Unit
from malstrom_py.operators.event_time import AssignTimestamps
from malstrom_py.operators.key_by import KeyBy
from tests.unit.operators.stepping import Stepped


def forgets(value: Any) -> Any:
    value  # noqa: B018


def forgets_the_state(message: Any, state: Any, output: Any) -> Any:
    state = (state or 0) + message.value


def keyed(stream: Any) -> Any:
    return stream.key_by("k", lambda value: value % 3)


def run(step: Callable[[Any], Any], rows: int, workers: int = 1) -> None:
    job = mp.Job("forgetful")
    step(job.source("in", sources.Memory(range(rows), parts=2))).sink("out", sinks.Memory())
    mp.run(job, workers, progress=False)


WARNED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "map": (lambda s: s.map("step", forgets), "forgets"),
    "filter": (lambda s: s.filter("step", forgets), "forgets"),
    "keyed filter": (lambda s: keyed(s).filter("step", forgets), "forgets"),
    "stateful_op": (lambda s: keyed(s).stateful_op("step", forgets_the_state), "forgets_the_state"),
}


@pytest.mark.parametrize("name", WARNED)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_thousand_results_of_none_are_warned_of_once(
    name: str, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    step, function = WARNED[name]
    with caplog.at_level(logging.WARNING):
        run(step, 5000, workers)
    (said,) = caplog.messages
    assert said.startswith("job forgetful: step 'step': the first 1,000 results were None (in ")
    assert f"{function} at " in said
    assert "test_first_rows.py:" in said


@pytest.mark.parametrize("name", WARNED)
def test_fewer_results_are_warned_of_at_the_end_of_the_stream(name: str, caplog: pytest.LogCaptureFixture) -> None:
    step, function = WARNED[name]
    with caplog.at_level(logging.WARNING):
        run(step, 2)
    (said,) = caplog.messages
    assert said.startswith(f"job forgetful: step 'step': all 2 results were None (in {function} at ")


QUIET: dict[str, tuple[Callable[[Any], Any], int]] = {
    "one record": (lambda s: s.map("step", forgets), 1),
    "one filtered": (lambda s: s.filter("step", forgets), 1),
    "false": (lambda s: s.filter("step", lambda value: False), 5000),
    "one result": (lambda s: s.map("step", lambda value: value if value == 7 else None), 5000),
    "a column": (lambda s: s.map("row", lambda value: {"a": None}).map("step", itemgetter("a")), 5000),
    "filter_map": (lambda s: s.filter_map("step", lambda value: None), 5000),
    "inspect": (lambda s: s.inspect("step", forgets), 5000),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_may_be_meant_is_not_warned_of(name: str, caplog: pytest.LogCaptureFixture) -> None:
    step, rows = QUIET[name]
    with caplog.at_level(logging.WARNING):
        run(step, rows)
    assert caplog.messages == []


KEYED: dict[str, Callable[[Any], Any]] = {
    "function": lambda s: s.key_by("step", forgets),
    "columns": lambda s: s.map("rows", lambda n: {"k": None, "n": n}).key_by("step", "k"),
}


@pytest.mark.parametrize("name", KEYED)
def test_a_thousand_keys_of_none_are_warned_of_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run(KEYED[name], 5000, workers=2)
    (said,) = caplog.messages
    assert said.startswith("job forgetful: step 'step': the first 1,000 keys were None (in ")
    assert said.endswith("return the key: records whose key is None all have the same one")


@pytest.mark.parametrize("name", KEYED)
def test_fewer_keys_are_warned_of_at_the_end(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run(KEYED[name], 5)
    (said,) = caplog.messages
    assert said.startswith("job forgetful: step 'step': all 5 keys were None (in ")


@pytest.mark.parametrize("kind", [pa.null(), pa.int64(), pa.string()], ids=str)
def test_keys_of_none_in_columns_are_warned_of(kind: pa.DataType, caplog: pytest.LogCaptureFixture) -> None:
    step = Stepped(partial(KeyBy, fn=itemgetter("k"), column="k"))
    for _ in range(3):
        step.push(ColumnBatch(pa.RecordBatch.from_arrays([pa.nulls(600, kind)], names=["k"])))
    assert len(caplog.messages) == 1
    assert "the first 1,000 keys were None" in caplog.text


SECOND = 1_700_000_000


@pytest.mark.parametrize("times", [[SECOND + n for n in range(5)], [SECOND]], ids=["five", "one"])
@pytest.mark.parametrize("in_columns", [False, True])
def test_unix_seconds_under_the_default_unit_are_warned_of(
    times: list[int], in_columns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    step = Stepped(partial(AssignTimestamps, fn=itemgetter("t"), unit="ms", column="t"))
    rows = [{"t": time} for time in times]
    for _ in range(2):
        step.push(ColumnBatch(pa.RecordBatch.from_pylist(rows)) if in_columns else Batch(rows))
    (said,) = caplog.messages
    assert "the first timestamps are not between 1990 and 2100 in unit 'ms', but they are in unit 's'" in said
    assert "give the step unit='s'" in said


@pytest.mark.parametrize(
    ("unit", "time", "better"),
    [
        *[(unit, SECOND * per_s, None) for unit, per_s in PER_SECOND.items()],
        *[(unit, 60, None) for unit in PER_SECOND],
        ("s", SECOND * 1000, "ms"),
        ("ms", SECOND * 10**9, "ns"),
        ("ns", SECOND * 1000, "ms"),
        ("ms", -SECOND, None),
    ],
)
def test_times_that_may_be_meant_are_not_warned_of(
    unit: Unit, time: int, better: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    Stepped(partial(AssignTimestamps, fn=lambda time: time, unit=unit)).push(Batch([time]))
    assert [f"unit={better!r}" in said for said in caplog.messages] == ([] if better is None else [True])


def test_moments_are_in_no_wrong_unit(caplog: pytest.LogCaptureFixture) -> None:
    step = Stepped(partial(AssignTimestamps, fn=itemgetter("t"), unit="ms", column="t"))
    early = {"t": datetime(1970, 1, 20, tzinfo=UTC)}
    step.push(Batch([early]))
    step.push(ColumnBatch(pa.RecordBatch.from_pylist([early])))
    assert caplog.messages == []
