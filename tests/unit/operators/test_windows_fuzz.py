"""Windows against an oracle that shares no code with them: late rows, rows and columns in turn, moves and snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import agg, sinks, windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, Acquire, Collect, Epoch
from malstrom_py.operators.panes import split_by_span
from malstrom_py.operators.time_windows import TimeWindows
from malstrom_py.operators.window import SessionWindows, gather_all
from malstrom_py.sources import Part
from tests.unit.operators.stepping import Stepped
from tests.unit.operators.test_column_figures import SLOTS, SLOTS_OF, barrier, operator_of

BOUND: Final = 8
Row = tuple[Any, int, Any]
"""A key, a time, and a value."""
Piece = tuple[bool, list[Row]]
"""Whether a batch has columns, and its rows."""
Found = dict[tuple[Any, int, int], dict[str, Any]]

AGGREGATIONS: Final[dict[str, tuple[Callable[[], Any], Callable[[list[Any]], Any]]]] = {
    "n": (agg.count, len),
    "total": (partial(agg.sum, "v"), sum),
    "least": (partial(agg.min, "v"), min),
    "most": (partial(agg.max, "v"), max),
    "mean": (partial(agg.mean, "v"), lambda values: sum(values) / len(values)),
    "first": (partial(agg.first, "v"), lambda values: values[0]),
    "last": (partial(agg.last, "v"), lambda values: values[-1]),
}
SHAPES: Final = {"tumbling": (10, 10, 0), "sliding": (12, 4, 0), "sliding, odd": (5, 2, 1), "session": (6, 0, 0)}
"""Size, step and origin; of sessions the gap."""

VALUES = st.one_of(
    st.just(st.integers(-5, 5)),
    st.just(st.integers(-10, 10).map(lambda number: number / 2)),  # all sums are exact
)


@st.composite
def pieces(draw: st.DrawFn, *, mixed: bool) -> list[Piece]:
    """Draw batches. The values of each are of one type, which may differ from that of others, if ``mixed``."""
    made, values = [], draw(VALUES)
    for _ in range(draw(st.integers(1, 8))):
        values = draw(VALUES) if mixed and draw(st.integers(0, 4)) == 0 else values
        rows = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-20, 40), values), min_size=1, max_size=12)
        made.append((draw(st.booleans()), draw(rows)))
    return made


KEYS: Final[dict[str, tuple[pl.Expr, Callable[[str], Any]]]] = {
    "k": (pl.col("k"), str),
    "number": (pl.col("k").str.len_bytes() + pl.col("k").is_in(["b"]).cast(pl.Int64), lambda key: 1 + (key == "b")),
    "one": (pl.lit("all"), lambda key: "all"),
    "one number": (pl.lit(7), lambda key: 7),
}
"""A column of keys, and the same of Python."""

MANY = st.sampled_from([0, 1 << 15])
"""Whether rows that are in order stay where they are, as in large batches."""

NAMES = st.lists(st.sampled_from(sorted(AGGREGATIONS)), min_size=1, max_size=4, unique=True)


def windows_of(shape: str, times: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield start and end of the windows of one key's ``times``."""
    size, step, origin = SHAPES[shape]
    if step:
        yield from ((t, t + size) for t in range(min(times) - size, max(times) + 1) if (t - origin) % step == 0)
        return
    ordered = sorted(times)
    starts = [time for before, time in zip([None, *ordered], ordered, strict=False) if not near(before, time, size)]
    for start, following in zip(starts, [*starts[1:], 1 << 40], strict=True):
        yield start, max(time for time in times if start <= time < following) + size


def near(before: int | None, time: int, gap: int) -> bool:
    return before is not None and time - before < gap


def oracle(shape: str, names: Sequence[str], rows: Sequence[Row]) -> Found:
    """Return the results by key and window."""
    found: Found = {}
    for key in {key for key, _, _ in rows}:
        own = [(time, value) for of, time, value in rows if of == key]
        for start, end in windows_of(shape, [time for time, _ in own]):
            if inside := [value for time, value in own if start <= time < end]:
                found[key, start, end] = {name: AGGREGATIONS[name][1](inside) for name in names}
    return found


def on_time(pieces: Sequence[Piece]) -> list[Row]:
    kept, largest = [], -1000
    for row in (row for _, rows in pieces for row in rows):
        if row[1] >= largest - BOUND:
            kept.append(row)
        largest = max(largest, row[1])
    return kept


def batch_of(piece: Piece) -> pa.RecordBatch | list[dict[str, Any]]:
    columns, rows = piece
    keys, times, values = zip(*rows, strict=True)
    if columns:
        return pa.RecordBatch.from_pydict({"k": list(keys), "t": list(times), "v": list(values)})
    return [{"k": key, "t": time, "v": value} for key, time, value in rows]


class Pieces:
    """A source of these batches, unchanged."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def list_parts(self) -> list[Part]:
        return [Part("0")]

    def build_part(self, part: Part, state: Any) -> _Reader:
        return _Reader(self.batches, state or 0)


class _Reader:
    def __init__(self, batches: list[Any], position: int) -> None:
        self._batches = batches
        self._position = position

    def poll(self, rows_max: int) -> Any:
        self._position += 1
        return self._batches[self._position - 1]

    def is_finished(self) -> bool:
        return self._position == len(self._batches)

    def snapshot(self) -> int:
        return self._position

    def close(self) -> None:
        """Nothing is open."""


def kind_of(shape: str) -> windows.Windows:
    size, step, origin = SHAPES[shape]
    return windows.sliding(size, step, origin=origin) if step else windows.session(size)


def collected(results: Sequence[tuple[Any, Any]]) -> Found:
    """Return results, of which none may come twice."""
    found: Found = {}
    for key, result in results:
        place = (key, result.start, result.end)
        assert place not in found
        found[place] = result.value
    return found


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=40, deadline=None)
@given(pieces=pieces(mixed=False), names=NAMES, workers=st.integers(1, 2), key=st.sampled_from(sorted(KEYS)), many=MANY)
def test_a_job_of_rows_and_columns_finds_what_the_oracle_does(
    shape: str, pieces: list[Piece], names: list[str], workers: int, key: str, many: int
) -> None:
    job, out = mp.Job("windows"), sinks.Memory()
    keyed = job.source("rows", Pieces(list(map(batch_of, pieces))))
    if key != "k":  # otherwise rows stay rows
        keyed = keyed.with_columns("keyed", **{key: KEYS[key][0]})
    timed = keyed.assign_timestamps("time", "t")
    kept, late = timed.generate_epochs("epochs", mp.limit_out_of_orderness(BOUND))
    late.sink("late", dropped := sinks.Memory())
    gathered = kept.key_by("key", key).window("window", kind_of(shape))
    gathered.aggregate(**{name: AGGREGATIONS[name][0]() for name in names}).sink("out", out)
    with patch("malstrom_py.operators.panes._ROWS_MANY", many):
        mp.run(job, workers=workers, progress=False)
    rows = [(KEYS[key][1](own), at, value) for own, at, value in on_time(pieces)]
    assert len(dropped.items) == sum(len(of_piece) for _, of_piece in pieces) - len(rows)
    found = collected([(key, result) for key, results in out.by_key.items() for result in results])
    assert found == oracle(shape, names, rows)


def step_of(shape: str, names: Sequence[str]) -> Stepped:
    size, step, origin = SHAPES[shape]
    gather = partial(gather_all, {name: AGGREGATIONS[name][0]() for name in names})
    of_time = partial(TimeWindows, gather=gather, size=size, step=step, origin=origin)
    made = Stepped(of_time if step else partial(SessionWindows, gather=gather, gap=size), timed=True, keyed=True)
    operator_of(made).track(SLOTS_OF)
    return made


def keyed(piece: Piece) -> Batch:
    columns, rows = piece
    keys, times, values = (list(column) for column in zip(*rows, strict=True))
    if not columns:
        return Batch([{"v": value} for value in values], keys=keys, timestamps=times)
    made = pa.RecordBatch.from_pydict({"v": values})
    return ColumnBatch(made, key_column=pa.array(keys), time_column=pa.array(times))


CHANGES = st.lists(st.sampled_from(["", "", "move a", "move b", "restore"]), min_size=8, max_size=8)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=60, deadline=None)
@given(pieces=pieces(mixed=True), names=NAMES, changes=CHANGES)
def test_moves_and_snapshots_between_batches_change_no_result(
    shape: str, pieces: list[Piece], names: list[str], changes: list[str]
) -> None:
    steps = [step_of(shape, names), step_of(shape, names)]
    chains: list[list[bytes]] = [[], []]
    owner, results, rows, closed = dict.fromkeys("abc", 0), list[tuple[Any, Any]](), list[Row](), -1000
    for (columns, of_piece), change in zip(pieces, changes, strict=False):
        ours = [row for row in of_piece if row[1] > closed]
        rows += ours
        for number, step in enumerate(steps):
            if own := [row for row in ours if owner[row[0]] == number]:
                step.push(keyed((columns, own)))
        closed = max(closed, max(time for _, time, _ in of_piece) - BOUND - 1)
        for step in steps:
            step.push(Epoch(closed))
        if change.startswith("move"):
            key = change[-1]
            message = Collect({key: None}.keys())
            steps[owner[key]].push(message)
            owner[key] = 1 - owner[key]
            steps[owner[key]].push(Acquire(message.states))
        elif change:
            for number, step in enumerate(steps):
                snapshots = [f"s{place}" for place in range(len(chains[number]) + 1)]
                chains[number].append(barrier(step, *reversed(snapshots[-2:])))
                results += results_of(step)
                steps[number] = step_of(shape, names)
                operator_of(steps[number]).continue_at(closed)
                operator_of(steps[number]).install(chains[number], range(SLOTS))
                operator_of(steps[number]).continue_chain(snapshots[-1])
    for step in steps:
        results += results_of(step.push(Epoch(MAX_EPOCH)))
    assert collected(results) == oracle(shape, names, rows)


def results_of(step: Stepped) -> list[tuple[Any, Any]]:
    return [(key, value) for key, value, _ in step.rows()]


def test_first_and_last_of_sliding_windows_are_gathered_in_arrays() -> None:
    """In the order of arrival, not of panes: so after columns come rows, and columns again."""
    step = step_of("sliding", ["first", "last", "n"])
    step.push(keyed((True, [("a", 5, 1), ("a", 1, 2)])))
    panes: Any = operator_of(step).state.values
    assert panes._arrays()
    assert panes["a"] == {(4, 0): [(1,), (1,), 1], (0, 1): [(2,), (2,), 1]}
    step.push(keyed((False, [("a", 6, 3)])))
    assert not panes._arrays()
    step.push(keyed((True, [("a", 2, 4)])), Epoch(MAX_EPOCH))
    found = {start: value for (_, start, _), value in collected(results_of(step)).items()}
    assert found[0] == {"first": 1, "last": 4, "n": 4}
    assert found[4] == {"first": 1, "last": 3, "n": 2}


def test_floats_in_a_dictionary_are_added_in_the_order_of_arrival() -> None:
    """As plain floats are: the sum of parts by pane would be another one."""
    step = step_of("sliding", ["first", "total"])
    rows = [("a", 5, 1e16), ("a", 1, 1.0), ("a", 6, -1e16)]
    batch = keyed((True, rows))
    assert isinstance(batch, ColumnBatch)
    encoded = pa.RecordBatch.from_pydict({"v": batch.columns.column("v").dictionary_encode()})
    step.push(batch.with_columns(encoded), Epoch(MAX_EPOCH))
    assert collected(results_of(step)) == oracle("sliding", ["first", "total"], rows)


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.integers(-40, 90), min_size=1, max_size=40).flatmap(lambda of: st.sampled_from([of, sorted(of)])),
    span=st.integers(1, 12),
    origin=st.integers(-9, 9),
    many=MANY,
)
def test_rows_are_split_by_span_in_their_order(times: list[int], span: int, origin: int, many: int) -> None:
    with patch("malstrom_py.operators.panes._ROWS_MANY", many):
        split = split_by_span(pa.array(times), span, origin, reach=span)
    assert split is not None
    found: dict[int, list[int]] = {}
    numbers, (column,) = split.sorted(np.arange(len(times)), [pa.array(range(len(times)))])
    for piece in split.pieces:
        places = split.places(piece).tolist()
        assert places == piece.of_array(numbers).tolist() == piece.of(column).to_pylist()
        assert len(places) == piece.rows
        found.setdefault(piece.at, []).extend(places)
    assert found == {
        at: [place for place, time in enumerate(times) if at <= time < at + span]
        for at in {time - (time - origin) % span for time in times}
    }
