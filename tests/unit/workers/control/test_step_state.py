"""The state of a step, read from a snapshot: what a query gives is what the step would show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources, windows
from malstrom_py.errors import CodecError, PlanError, SnapshotError
from malstrom_py.partitioners import index
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.windows import WindowResult
from malstrom_py.workers.control.messages import LENGTH_BYTES, decode_answer, encode_answer
from malstrom_py.workers.control.step_state import SnapshotReader, StepState
from malstrom_py.workers.reports.commands import StateCommand
from malstrom_py.workers.reports.job_state import JobState
from tests.unit.operators.scripted import Scripted
from tests.unit.workers.harness import PATIENCE_S, start

ROWS: Final = [
    {"room": room, "t": t, "at": at} for room, t, at in (("a", 2, 1), ("b", 5, 2), ("a", 4, 13), ("a", 3, 4))
]

Make = Callable[[Any], Any]


class Floor(Enum):
    """An enum as a key."""

    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Place:
    """A dataclass as a key."""

    room: str
    floor: Floor


class Spot(NamedTuple):
    """A named tuple as a key."""

    room: str
    number: int


@pytest.fixture
def asked() -> Iterator[Callable[..., StepState]]:
    """Return the state of a step that ``make`` adds, of a job that has read `ROWS` and waits."""
    handles: list[mp.JobHandle] = []

    def ask(make: Make, *, key: Any = "room", rows: Any = ROWS, **key_options: Any) -> StepState:
        job = mp.Job("asked")
        for kind in (Floor, Place, Spot):
            job.register_type(kind)
        timed = job.source("in", Scripted({"p": [rows, *[None] * 1_000_000]})).assign_timestamps("time", "at")
        on_time = timed.generate_epochs("epochs", mp.limit_out_of_orderness(1_000))[0]
        make(on_time.key_by("key", key, **key_options)).sink("out", sinks.Memory())
        handle = start(job, snapshots=mp.Snapshots(MemoryStore(), interval_s=None))
        handles.append(handle)
        while handle.status().counts.written < 1 and handle.status().counts.read < len(rows):
            pass
        return handle.state("step", fresh=True)

    yield ask
    for handle in handles:
        handle.stop()


RUNNING: Final[dict[str, tuple[Make, Any]]] = {
    "count": (lambda s: s.count("step"), 3),
    "sum": (lambda s: s.sum("step", by="t"), 9),
    "min": (lambda s: s.min("step", by="t"), 2),
    "max": (lambda s: s.max("step", by="t", skip_nulls=True), 4),
    "mean": (lambda s: s.mean("step", by="t"), 3.0),
    "mean without None": (lambda s: s.mean("step", by="t", skip_nulls=True), 3.0),
    "aggregate": (
        lambda s: s.aggregate("step", n=agg.count(), mean=agg.mean("t"), first=agg.first("t"), of=agg.n_unique("at")),
        {"n": 3, "mean": 3.0, "first": 2, "of": 3},
    ),
    "custom": (
        lambda s: s.aggregate("step", own=agg.custom(int, lambda a, b: a + b["t"], lambda a, b: a + b, str)),
        {"own": 9},
    ),
    "top_n": (lambda s: s.map("t", lambda row: row["t"]).top_n("step", 2), [4, 3]),
    "distinct": (lambda s: s.distinct("step", by="t"), {2, 3, 4}),
    "reduce": (lambda s: s.reduce("step", lambda a, b: b), ROWS[-1]),
    "fold": (lambda s: s.fold("step", lambda a, row: a + row["t"], default=int), 9),
    "stateful_map": (
        lambda s: s.stateful_map("step", lambda key, row, n: (row, {"n": n["n"] + 1}), default=lambda: {"n": 0}),
        {"n": 3},
    ),
    "collect": (lambda s: s.map("t", lambda row: row["t"]).collect("step", size=100), [2, 4, 3]),
    "final": (lambda s: s.count("n").final("step"), 3),
    "tumbling": (
        lambda s: s.window("step", windows.tumbling(10)).sum("t"),
        [WindowResult(0, 10, 5, True), WindowResult(10, 20, 4, True)],
    ),
    "tumbling of several": (
        lambda s: s.window("step", windows.tumbling(20)).aggregate(mean=agg.mean("t"), n=agg.count()),
        [WindowResult(0, 20, {"mean": 3.0, "n": 3}, True)],
    ),
    "lists": (
        lambda s: s.map("t", lambda row: row["t"]).window("step", windows.tumbling(20)).collect(),
        [WindowResult(0, 20, [2, 4, 3], True)],
    ),
    "session": (
        lambda s: s.window("step", windows.session(5)).count(),
        [WindowResult(1, 9, 2, True), WindowResult(13, 18, 1, True)],
    ),
    "windows of rows": (lambda s: s.window("step", windows.count(9)).mean("t"), [WindowResult(1, 14, 3.0, True)]),
}


@pytest.mark.parametrize("form", ["rows", "columns"])
@pytest.mark.parametrize("kind", RUNNING)
def test_the_state_of_a_key_is_what_the_step_would_show(kind: str, form: str, asked: Callable[..., StepState]) -> None:
    make, expected = RUNNING[kind]
    state = asked(make, rows=ROWS if form == "rows" else pa.Table.from_pylist(ROWS).to_batches()[0])
    assert state["a"] == expected
    assert dict(state.items())["a"] == expected
    assert "b" in state
    assert (state.get("c"), state.get("c", 0), "c" in state) == (None, 0, False)
    with pytest.raises(KeyError, match="c"):
        state["c"]


def test_a_table_has_the_key_by_its_name_and_a_column_for_each_figure(asked: Callable[..., StepState]) -> None:
    state = asked(lambda s: s.aggregate("step", n=agg.count(), mean=agg.mean("t")))
    assert sorted(state.to_arrow().to_pylist(), key=str) == [
        {"room": "a", "n": 3, "mean": 3.0},
        {"room": "b", "n": 1, "mean": 5.0},
    ]
    assert state.to_arrow(keys=["a", "none"]).to_pylist() == [{"room": "a", "n": 3, "mean": 3.0}]
    assert state.to_arrow(keys=[]).num_rows == 0
    every = [state.to_arrow(slots=range(start, 1024, 2)).num_rows for start in (0, 1)]
    assert sum(every) == 2
    with pytest.raises(PlanError, match="keys= or slots=, not both"):
        state.to_arrow(keys=[], slots=[])
    with pytest.raises(PlanError, match="keys must be a list of keys, got 'ab'"):
        state.to_arrow(keys="ab")
    with pytest.raises(PlanError, match="slots must be a list of slots, got 7"):
        state.to_arrow(slots=7)  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="list"):
        state[["a"]]


def test_a_state_without_names_is_the_column_value_and_a_key_of_a_function_the_column_key(
    asked: Callable[..., StepState],
) -> None:
    state = asked(lambda s: s.count("step"), key=lambda row: row["room"].upper())
    assert sorted(state.to_arrow().to_pylist(), key=str) == [{"key": "A", "value": 3}, {"key": "B", "value": 1}]


def test_a_key_of_several_fields_is_as_many_columns(asked: Callable[..., StepState]) -> None:
    state = asked(lambda s: s.count("step"), key=itemgetter("room", "t"))
    assert {"room": "a", "t": 4, "value": 1} in state.to_arrow().to_pylist()
    assert state["a", 4] == 1


def test_a_table_of_windows_has_a_row_for_each_that_is_open(asked: Callable[..., StepState]) -> None:
    state = asked(lambda s: s.window("step", windows.tumbling(10)).aggregate(n=agg.count()))
    rows = state.to_arrow(keys=["a"]).to_pylist()
    starts = [datetime.fromtimestamp(at / 1000, UTC) for at in (0, 10)]
    assert [(row["window_start"], row["room"], row["n"]) for row in rows] == [(starts[0], "a", 2), (starts[1], "a", 1)]


def test_a_field_takes_the_place_of_the_key_of_its_name(asked: Callable[..., StepState]) -> None:
    state = asked(lambda s: s.reduce("step", lambda a, b: b))
    assert ROWS[-1] in state.to_arrow().to_pylist()


@pytest.mark.parametrize(
    ("of", "key"),
    [
        (lambda row: Place(row["room"], Floor.LOW), Place("a", Floor.LOW)),
        (lambda row: (row["room"], Floor.HIGH), ("a", Floor.HIGH)),
        (lambda row: Spot(row["room"], 1), Spot("a", 1)),
        (lambda row: {"a": 1, "b": 2}[row["room"]], 1.0),
        (lambda row: {"a": datetime(2026, 1, 1, tzinfo=UTC), "b": None}[row["room"]], datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_state_is_found_by_any_key_that_equals_its_own(
    of: Callable[[Any], Any], key: Any, asked: Callable[..., StepState]
) -> None:
    state = asked(lambda s: s.count("step"), key=of)
    assert state[key] == 3
    assert state.to_arrow(keys=[key]).num_rows == 1


def test_keys_of_other_types_that_share_a_slot_are_other_keys(asked: Callable[..., StepState]) -> None:
    state = asked(
        lambda s: s.count("step"), key=lambda row: {"a": "1", "b": b"1"}[row["room"]], partitioner=lambda _: 3
    )
    assert (state["1"], state[b"1"], state.get(1)) == (3, 1, None)


@pytest.mark.parametrize("partitioner", [index, lambda key: key * 7 % 5])
def test_a_key_is_found_by_each_partitioner(partitioner: Any, asked: Callable[..., StepState]) -> None:
    state = asked(lambda s: s.count("step"), key="t", partitioner=partitioner)
    assert [state[t] for t in (2, 3, 4, 5)] == [1, 1, 1, 1]
    assert state.to_arrow(keys=[3]).to_pylist() == [{"t": 3, "value": 1}]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: s.count("other"), "has no step 'step' with state: those whose state can be read are other"),
        (lambda s: s.map("step", str), "has no step 'step' with state: no step has state to be read"),
        (lambda s: s.window("step", windows.sliding(10, 5)).count(), "step 'step' whose state is internal"),
        (lambda s: s.join_asof("step", s), "step 'step' whose state is internal"),
    ],
)
def test_a_step_without_state_that_can_be_read_is_refused(
    make: Make, said: str, asked: Callable[..., StepState]
) -> None:
    with pytest.raises(PlanError, match=said):
        asked(make)


def test_a_job_without_snapshots_says_what_to_do() -> None:
    job = mp.Job("unkept")
    job.source("in", sources.Memory([1])).key_by("key", str).count("n").sink("out", sinks.Memory())
    handle = start(job)
    handle.wait(timeout_s=PATIENCE_S)
    with pytest.raises(SnapshotError, match=r"runs without snapshots.*snapshots=mp.Snapshots\(uri\)"):
        handle.state("n")


def kept(store: MemoryStore, rows: int, **options: Any) -> mp.JobHandle:
    """A job that has ended after so many rows."""
    job = mp.Job("kept")
    job.source("in", sources.Memory(range(rows))).key_by("key", lambda n: n % 3).count("n").sink("out", sinks.Memory())
    handle = start(job, snapshots=Snapshots(store, interval_s=None, keep=1), **options)
    handle.wait(timeout_s=PATIENCE_S)
    return handle


def test_state_of_a_job_that_has_ended_is_that_of_its_last_snapshot() -> None:
    handle = kept(MemoryStore(), 9)
    state = handle.state("n")
    assert (state.snapshot, [state[key] for key in range(3)]) == (handle.wait().last_snapshot, [3, 3, 3])
    assert repr(state) == f"StepState('n', snapshot='{state.snapshot}')"


def test_no_snapshot_yet_is_told(asked: Callable[..., StepState]) -> None:
    store = MemoryStore()
    handle = kept(store, 9)
    for path in list(store.list("kept")):
        store.delete(path)
    with pytest.raises(SnapshotError, match=r"has no snapshot yet in .*: ask with fresh=True"):
        handle.state("n")


def test_a_snapshot_that_is_pruned_is_replaced_by_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    first = kept(store, 9)
    state = first.state("n")
    was = state.snapshot
    again = kept(store, 12, resume="none")
    assert was not in [entry.manifest.id for entry in Snapshots(store).in_store("kept").entries() if entry.manifest]
    assert state[0] == 4
    assert state.snapshot == again.wait().last_snapshot


def test_a_damaged_snapshot_is_an_error() -> None:
    store = MemoryStore()
    handle = kept(store, 9)
    (path,) = store.list("kept/artefacts")
    store.put(path, store.get(path)[:-1] + b"?")
    with pytest.raises(SnapshotError, match="checksum of slot 718 is wrong"):
        handle.state("n").to_arrow()


def test_a_place_in_the_memory_of_another_process_is_refused() -> None:
    handle = kept(MemoryStore(), 9)

    command = StateCommand(1)
    sent = decode_answer(encode_answer(handle._job.ask(command))[LENGTH_BYTES:]).result(command, "kept")
    with pytest.raises(SnapshotError, match="only the program that runs it can read"):
        SnapshotReader(sent)  # type: ignore[arg-type]


def test_a_place_that_is_another_one_here_is_told(tmp_path: Path) -> None:
    handle = kept(MemoryStore(), 9)
    elsewhere = JobState("kept", handle._job.ask(StateCommand(1)).shapes, str(tmp_path))
    with pytest.raises(SnapshotError, match=r"is not in .* here: give the job a place that this program can read"):
        SnapshotReader(elsewhere, SnapshotId(str(handle.wait().last_snapshot)))
