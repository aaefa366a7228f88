"""The state that the keys of a step begin with: in which forms it is given, what is wrong with it, and whose it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources
from malstrom_py.errors import CodecError, OperatorError, PlanError, SnapshotError
from tests.unit.polled import Polled

pd: Any = import_module("pandas")  # which brings no types

SEEDS = 25

Step = Callable[..., Any]
"""Puts a step on a keyed stream of numbers: ``step(stream, initial_state=…)``."""


def keyed(rows: list[tuple[str, int]], name: str = "job") -> Any:
    read = mp.Job(name).source("in", sources.Memory(rows, parts=2))
    return read.key_by("key", lambda row: row[0]).map("n", lambda row: row[1])


def collected(step: Step, given: Any, rows: list[tuple[str, int]], workers: int = 1) -> dict[Any, list[Any]]:
    out = sinks.Memory()
    stream = step(keyed(rows), initial_state=given)
    stream.sink("out", out)
    mp.InProcess(workers, checks=True).run(stream.job)
    return out.by_key


def add(key: str, n: int, state: int) -> tuple[int, int]:
    return state + n, state + n


class Adds(mp.KeyedLogic[str, int, int, int]):
    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        output.emit(message.key, (key_state or 0) + message.value)
        total: int = (key_state or 0) + message.value
        return total


STEPS: dict[str, tuple[Step, Any, list[Any]]] = {
    "stateful_map": (lambda s, **o: s.stateful_map("x", add, default=int, **o), 10, [12, 15]),
    "stateful_flat_map": (
        lambda s, **o: s.stateful_flat_map("x", lambda k, n, t: ([t + n], t + n), default=int, **o),
        10,
        [12, 15],
    ),
    "stateful_op": (lambda s, **o: s.stateful_op("x", Adds(), **o), 10, [12, 15]),
    "reduce": (lambda s, **o: s.reduce("x", lambda a, b: a + b, **o), 10, [12, 15]),
    "fold": (lambda s, **o: s.fold("x", lambda a, b: a + b, default=int, **o), 10, [12, 15]),
    "count": (lambda s, **o: s.count("x", **o), 10, [11, 12]),
    "sum": (lambda s, **o: s.sum("x", **o), 10, [12, 15]),
    "min": (lambda s, **o: s.min("x", **o), 1, [1, 1]),
    "max": (lambda s, **o: s.max("x", **o), 10, [10, 10]),
    "mean": (lambda s, **o: s.mean("x", **o), (2, 10), [4.0, 3.75]),
    "distinct": (lambda s, **o: s.distinct("x", **o), [2, 7], [3]),
    "aggregate": (
        lambda s, **o: s.aggregate("x", total=agg.sum(), n=agg.count(), mean=agg.mean(), first=agg.first(), **o),
        {"n": 2, "total": 10, "mean": (2, 10), "first": 9},
        [{"total": 12, "n": 3, "mean": 4.0, "first": 9}, {"total": 15, "n": 4, "mean": 3.75, "first": 9}],
    ),
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_goes_on_from_the_state_that_its_keys_begin_with(kind: str) -> None:
    step, state, results = STEPS[kind]
    assert collected(step, [("a", state)], [("a", 2), ("a", 3)]) == {"a": results}


def test_a_ttl_begins_with_the_first_record_of_a_key() -> None:
    job, out = mp.Job("ttl"), sinks.Memory()
    visits = job.source("in", sources.Memory([("a", 100), ("a", 105), ("b", 300), ("a", 301)]))
    on_time, late = visits.assign_timestamps("at", lambda visit: visit[1]).generate_epochs(
        "epochs", mp.limit_out_of_orderness(0)
    )
    late.sink("late", sinks.Memory())
    seen = on_time.key_by("who", lambda visit: visit[0]).ttl_map(
        "seen", lambda key, visit, seen: (seen + 1, seen + 1), ttl=10, default=int, initial_state={"a": 7}
    )
    seen.sink("out", out)
    mp.InProcess(batch=mp.Batching(rows_max=1)).run(job)
    assert out.by_key == {"a": [8, 9, 1], "b": [1]}


ROWS = [(f"k{n}", n + 1) for n in range(60)]


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        tuple(list(row) for row in ROWS),
        dict(ROWS),
        iter(ROWS),
        lambda: ROWS,
        lambda: iter(ROWS),
        pl.DataFrame(ROWS, schema=["key", "state"], orient="row"),
        pl.LazyFrame(ROWS, schema=["state", "key"], orient="row").select(key="state", state="key"),
        pa.table({"state": [n for _, n in ROWS], "key": [key for key, _ in ROWS]}),
        pa.RecordBatch.from_pydict({"key": [key for key, _ in ROWS], "state": [n for _, n in ROWS]}),
        pd.DataFrame(ROWS, columns=["key", "state"]),
        partial(pd.DataFrame, ROWS, columns=["key", "state"]),
    ],
    ids=lambda given: type(given).__module__.partition(".")[0] + "-" + type(given).__name__,
)
@pytest.mark.parametrize("workers", [1, 3])
def test_rows_a_dict_a_frame_or_a_function_give_the_state_to_the_owners_of_the_keys(given: Any, workers: int) -> None:
    if isinstance(given, Iterator):
        given = list(ROWS)  # the same for both numbers of workers
    records = [(f"k{n}", 100) for n in range(80)]
    totals = collected(lambda stream, **options: stream.sum("x", **options), given, records, workers)
    assert totals == {f"k{n}": [100 + (n + 1 if n < 60 else 0)] for n in range(80)}


def test_what_an_iterator_gives_is_kept_for_every_run() -> None:
    stream, out = keyed([("a", 1)]).sum("x", initial_state=iter([("a", 5)])), sinks.Memory()
    stream.sink("out", out)
    for _ in range(2):
        mp.InProcess().run(stream.job)
        assert out.by_key == {"a": [6]}


def test_a_run_changes_nothing_of_what_was_given() -> None:
    given = {"a": [1]}

    def append(key: str, n: int, seen: list[int]) -> tuple[list[int], list[int]]:
        seen.append(n)
        return list(seen), seen

    stream, out = keyed([("a", 2)]).stateful_map("x", append, initial_state=given), sinks.Memory()
    stream.sink("out", out)
    for _ in range(2):
        mp.InProcess().run(stream.job)
        assert (out.by_key, given) == ({"a": [[1, 2]]}, {"a": [1]})


@pytest.mark.parametrize(
    ("step", "given", "said"),
    [
        ("sum", [("a", 1), ("a", 2)], "key 'a' twice"),
        ("sum", [("a", None)], "is None, which is not a state"),
        ("sum", [("a", 1, 2)], "row 0 of initial_state is of type tuple, not a pair"),
        ("sum", [(["a"], 1)], "a key of type list, which cannot be hashed"),
        ("sum", 5, r"rows of \(key, state\)"),
        ("sum", "ab", r"rows of \(key, state\)"),
        ("sum", [("a", Lock())], "cannot be copied"),
        ("sum", pl.DataFrame({"key": ["a"], "total": [1]}), "this one has key, total"),
        ("sum", pd.DataFrame({"key": ["a"], "state": [1], "more": [1]}), "this one has key, state, more"),
        ("count", [("a", 0)], "an int above 0"),
        ("count", [("a", 1.5)], "an int above 0"),
        ("mean", [("a", 4)], "a pair: the number of records"),
        ("distinct", [("a", 4)], "a list or set of the values seen"),
        ("aggregate", [("a", {"n": 4})], "a dict with a state for each aggregate: first, mean, n, total"),
        ("aggregate", [("a", {"n": 4, "total": 1, "mean": 3, "first": 1})], "is wrong at mean: it must be a pair"),
    ],
)
def test_what_is_wrong_is_a_plan_error_that_names_the_step(step: str, given: Any, said: str) -> None:
    with pytest.raises(PlanError, match=f"step 'x': .*{said}"):
        STEPS[step][0](keyed([]), initial_state=given)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"key": ["a", "b"], "state": [5, None]}),
        pd.DataFrame({"key": ["a", "b"], "state": pd.array([5, None], dtype="Int64")}),
        pd.DataFrame({"key": ["a", "b"], "state": [5, float("nan")]}, dtype=object),
        pd.DataFrame({"key": ["a", "b"], "state": pd.to_datetime(["2026-01-02", None])}),
        pd.DataFrame({"key": ["a", "b"], "state": [5, pd.NA]}),
        pl.DataFrame({"key": ["a", "b"], "state": [5, None]}),
        pa.table({"key": ["a", "b"], "state": [5, None]}),
    ],
    ids=["NaN", "NA", "NaN-in-objects", "NaT", "NA-in-objects", "polars", "pyarrow"],
)
@pytest.mark.parametrize("step", ["stateful_map", "sum"])
def test_a_state_that_is_missing_in_a_frame_is_told(frame: Any, step: str) -> None:
    with pytest.raises(PlanError, match="step 'x': initial_state of key 'b' is None, which is not a state"):
        STEPS[step][0](keyed([]), initial_state=frame)


def test_a_key_that_is_missing_in_a_frame_is_none_in_each_kind_of_them() -> None:
    given = [frame({"key": ["a", None], "state": [5, 6]}) for frame in (pd.DataFrame, pl.DataFrame, pa.table)]
    assert [collected(STEPS["sum"][0], frame, [(None, 1)]) for frame in given] == [{None: [7]}] * 3  # type: ignore[list-item]


def test_a_number_of_the_users_own_that_is_none_stays() -> None:
    nan = float("nan")
    for given in ([("a", nan)], {"a": nan}, pl.DataFrame({"key": ["a"], "state": [nan]})):
        (total,) = collected(STEPS["sum"][0], given, [("a", 1)])["a"]
        assert total != total


class Secret:
    """A state whose copy fails."""

    def __deepcopy__(self, memo: object) -> Secret:
        raise ValueError("card 4711")


def test_a_state_that_cannot_be_copied_says_nothing_of_it() -> None:
    with pytest.raises(PlanError, match="of type Secret, cannot be copied") as refused:
        STEPS["sum"][0](keyed([]), initial_state={"a": Secret()})
    assert "4711" not in str(refused.value)


def test_a_key_that_is_not_legal_is_told_before_anything_runs() -> None:
    stream = keyed([("a", 1)]).sum("x", initial_state=[(frozenset("a"), 1)])
    stream.sink("out", sinks.Memory())
    with pytest.raises(PlanError, match="step 'x': a key is of type frozenset"):
        mp.InProcess().run(stream.job)


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.top_n("x", 2, initial_state={"a": 1}),
        lambda s: s.collect("x", size=2, initial_state={"a": 1}),
        lambda s: s.enrich("x", add, initial_state={"a": 1}),
        lambda s: s.aggregate("x", deviation=agg.std(), initial_state={"a": {"deviation": 1}}),
    ],
)
def test_a_step_whose_state_is_its_own_takes_none(step: Step) -> None:
    with pytest.raises(PlanError, match="step 'x'"):
        step(keyed([]))


def test_a_function_that_raises_is_named() -> None:
    def rows() -> Any:
        raise RuntimeError("secret")

    stream = keyed([("a", 1)]).sum("x", initial_state=rows)
    stream.sink("out", sinks.Memory())
    with pytest.raises(OperatorError, match="step 'x': initial_state failed: RuntimeError") as failed:
        mp.InProcess().run(stream.job)
    assert "secret" in str(failed.value)


@dataclass
class Seen:
    n: int


class Plain:
    """A class whose instances cannot be stored."""


def test_a_class_of_states_is_registered_and_one_that_cannot_be_stored_is_told_at_the_start(tmp_path: Path) -> None:
    def step(key: str, n: int, seen: Any) -> tuple[Any, Any]:
        return getattr(seen, "n", 0) + n, seen

    kept = mp.Snapshots(str(tmp_path))
    stream, out = keyed([("a", 1)], "seen").stateful_map("x", step, initial_state={"a": Seen(4)}), sinks.Memory()
    stream.sink("out", out)
    mp.InProcess(snapshots=kept).run(stream.job)
    assert out.by_key == {"a": [5]}
    stream = keyed([("b", 1)], "plain").stateful_map("x", step, initial_state={"a": Plain()})
    stream.sink("out", sinks.Memory())
    with pytest.raises(CodecError, match=r"step 'x'.*Plain"):
        mp.InProcess(snapshots=kept).run(stream.job)


def batch_then_stream(name: str, given: Any, **options: Any) -> tuple[mp.Job, sinks.Memory]:
    stream, out = keyed([(f"k{n % 40}", 1) for n in range(400)], name).sum("x", initial_state=given), sinks.Memory()
    stream.sink("out", out)
    return stream.job, out


@pytest.mark.long
def test_a_job_that_is_resumed_is_not_given_it_again(tmp_path: Path) -> None:
    calls = count()

    def rows() -> Any:
        next(calls)
        return [(f"k{n}", 1_000) for n in range(60)]

    def numbers(part: int, start: int) -> Iterator[int]:
        return count(start)

    def job(name: str = "x", **options: Any) -> tuple[mp.Job, sinks.Memory]:
        made, out = mp.Job("job"), sinks.Memory()
        read = (
            made.source("in", sources.Generator(numbers)).key_by("key", lambda n: f"k{n % 40}").map("one", lambda n: 1)
        )
        read.sum(name, initial_state=rows, **options).sink("out", out)
        return made, out

    kept = mp.Snapshots(str(tmp_path), interval_s=None)
    written: list[int] = []
    for workers in (2, 3, 1):
        made, out = job()
        handle = mp.InProcess(workers, snapshots=kept, checks=True).start(made, control=False)
        handle.snapshot()
        handle.rescale(4)
        handle.stop(drain=False)
        written += out.by_key["k7"]
    assert next(calls) == 1  # at the first start alone
    assert written == list(range(1_001, 1_001 + len(written)))

    # A new step of the job begins with it, although the job is resumed; a renamed step does not.
    handle = mp.InProcess(snapshots=kept).start(job("y", renamed_from="x")[0], control=False)
    handle.stop(drain=False)
    assert next(calls) == 2
    with pytest.raises(SnapshotError):
        mp.InProcess(snapshots=kept).run(job("z")[0])
    made, out = job("z")
    handle = mp.InProcess(snapshots=kept, allow_dropped_state=True).start(made, control=False)
    handle.snapshot()
    handle.stop(drain=False)
    assert next(calls) == 4
    assert out.by_key["k7"][0] == 1_001


def test_what_had_no_record_before_a_rescale_moves_as_well_and_is_in_the_first_snapshot(tmp_path: Path) -> None:
    kept = mp.Snapshots(str(tmp_path), interval_s=0.2)
    given = [(n, n + 1) for n in range(500)]

    def job(given: Any, *, is_open: bool) -> tuple[mp.Job, sinks.Memory]:
        made, out = mp.Job("gated"), sinks.Memory()
        source = Polled(
            lambda part, at, rows_max: list(range(at, min(500, at + rows_max))) if is_open else None,
            ended=lambda part, at: at >= 500,
        )
        made.source("in", source).key_by("key", lambda n: n).sum("x", initial_state=given).sink("out", out)
        return made, out

    runtime = mp.InProcess(2, snapshots=kept, checks=True, restart="never")
    handle = runtime.start(job(given, is_open=False)[0], control=False)
    for size in (4, 1, 3):
        handle.rescale(size)
    handle.stop(drain=False)
    made, out = job([(n, 10_000) for n in range(500)], is_open=True)
    mp.InProcess(2, snapshots=kept, checks=True).run(made)
    assert out.by_key == {n: [2 * n + 1] for n in range(500)}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_simulated_with_crashes_and_rescales_it_counts_once(seed: int) -> None:
    given = {f"k{n}": 1_000 * n + 1 for n in range(0, 60, 2)}
    job, out = batch_then_stream("simulated", given)
    mp.Simulation(1 + seed % 4, seed=seed).run(job)
    first = {f"k{n}": given.get(f"k{n}", 0) for n in range(40)}
    assert out.by_key == {key: list(range(start + 1, start + 11)) for key, start in first.items()}


@pytest.mark.parametrize("state", ["x", [1], {"a": 1}, {1}, b"x"])
def test_a_sum_that_begins_with_what_is_no_number_is_refused_when_the_job_is_built(state: Any) -> None:
    says = f"initial_state of key 'a' is of type {type(state).__name__}, and must be the sum so far: a number"
    with pytest.raises(PlanError, match=says):
        keyed([("a", 1)], "texts").sum("sum", initial_state={"a": state})
    with pytest.raises(PlanError, match="is wrong at total: it is of type"):
        keyed([("a", 1)], "both").aggregate("all", total=mp.agg.sum(), initial_state={"a": {"total": state}})
    with pytest.raises(PlanError, match="must be the sum so far"):
        keyed([("a", 1)], "mean").mean("mean", initial_state={"a": (1, state)})


def test_a_sum_may_begin_with_whatever_can_be_added_and_taken_away() -> None:
    for state in (Decimal(1), 1.5, timedelta(1), np.int64(3)):
        keyed([("a", 1)], "sums").sum("sum", initial_state={"a": state})
