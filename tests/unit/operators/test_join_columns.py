"""Joins of columns: what stays columns through barriers, moves and restores, and keys of two types.

`tests/laws/test_forms.py` compares their pairs with those of rows.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from random import Random
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pytest

from malstrom_py import windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.data.row_form import DICTS, SCALAR
from malstrom_py.operators.join import Pair
from malstrom_py.state.column_table import ColumnTable
from malstrom_py.state.join_panes import JoinPanes
from malstrom_py.state.time_join_rows import TimeJoinRows
from malstrom_py.testing import OperatorTester

Row = tuple[Any, Any, int]
"""A key, a value and a time."""

KEYS: Final[dict[str, tuple[list[Any], pa.DataType]]] = {
    "texts": (["", "a", "ä", "\x00", None], pa.string()),
    "large texts": (["", "a", "ä", "a" * 20, None], pa.large_string()),
    "numbers": ([None, 0, 1, -1, 127], pa.int8()),
    "other numbers": ([None, 0, 1, 127, 2**40], pa.int64()),
    "floats": ([None, 0.0, 1.0, 127.0, 0.5], pa.float64()),
}


SMALL_BATCHES_STAY: Final = patch("malstrom_py.operators.batch_sizing.SMALL_IN_A_ROW", 1 << 30)
"""Joins by time keep columns, however many batches are small."""


def columns_of(batch: list[Row], kind: str, *, scalar: bool = False, timed: bool = True) -> ColumnBatch:
    keys, values, times = zip(*batch, strict=True)
    data: Any = {"value": list(values)} if scalar else {"n": list(values), "text": [str(value) for value in values]}
    return ColumnBatch(
        pa.RecordBatch.from_pydict(data),
        key_column=pa.array(keys, KEYS[kind][1]),
        time_column=pa.array(times, pa.int64()) if timed else None,
        form=SCALAR if scalar else DICTS,
    )


untimed = partial(columns_of, timed=False)


def as_rows(batch: ColumnBatch) -> Batch:
    times = batch.timestamps
    return Batch(list(batch.values), keys=list(batch.keys or []), timestamps=None if times is None else list(times))


def windowed(how: Any, window: windows.Windows) -> Any:
    return lambda a, b: a.join("join", b, window=window, how=how)


def tabled(**options: Any) -> Any:
    return lambda a, b: a.join_table("join", b, **options)


def near(how: Any) -> Any:
    return lambda a, b: a.join_interval("join", b, lower=-2, upper=3, how=how)


def as_of(**options: Any) -> Any:
    return lambda a, b: a.join_asof("join", b, **options)


class Run:
    """One tester after another, with all messages that they have sent, by key."""

    def __init__(self, join: Any, *, timed: bool = True) -> None:
        self.join, self.timed = join, timed
        self.tester = self.new()
        self.found: dict[Any, list[Any]] = defaultdict(list)

    def new(self) -> OperatorTester:
        tester = OperatorTester(self.join, keyed=True, timed=self.timed, inputs=2, checks=False)
        return tester.track(lambda keys: [0] * len(keys))

    def take(self, batch: Batch | Epoch, side: int | None = None) -> Run:
        self.tester.send_local(batch, input=side).step()
        for message in self.tester.receive_local():
            if isinstance(message, DataMessage):
                assert isinstance(message.value, Pair)
                self.found[message.key].append((message.value, message.timestamp))
        return self

    def move(self) -> None:
        """Move half of the keys to another tester and back."""
        other = self.new()
        taken = self.tester.collect(sorted(self.tester.interrogate(), key=repr)[::2])
        if taken:
            other.acquire(taken)
            self.tester.acquire(other.collect(other.interrogate()))

    def restore(self) -> None:
        """Persist, and continue with another tester."""
        persisted = self.tester.barrier("snapshot")
        self.tester = self.new()
        self.tester.install([persisted], slots=[0])

    @property
    def panes(self) -> JoinPanes:
        panes: Any = self.tester.states["join"].values
        assert isinstance(panes, JoinPanes)
        return panes

    @property
    def times(self) -> TimeJoinRows:
        rows: Any = self.tester.states["join"].values
        assert isinstance(rows, TimeJoinRows)
        return rows

    @property
    def table(self) -> ColumnTable:
        table: Any = self.tester.states["join"].values
        assert isinstance(table, ColumnTable)
        return table


@pytest.mark.parametrize(
    "join",
    [
        windowed("outer", windows.sliding(6, 4)),
        tabled(how="left", wait=True),
        near("outer"),
        as_of(direction="nearest"),
    ],
    ids=["window", "table", "interval", "asof"],
)
@pytest.mark.parametrize("left", KEYS)
@pytest.mark.parametrize("right", KEYS)
def test_keys_of_two_types_find_each_other_as_in_rows(join: Any, left: str, right: str) -> None:
    of_columns, of_rows = Run(join), Run(join)
    for base, disturb in ((0, of_columns.move), (5, of_columns.restore), (10, of_columns.move)):
        for side, kind in ((0, left), (1, right)):
            batch = columns_of([(key, n, base + n) for n, key in enumerate(KEYS[kind][0])], kind, scalar=side == 1)
            of_columns.take(batch, side)
            of_rows.take(as_rows(batch), side)
        for run in (of_columns, of_rows):
            run.take(Epoch(base))
        disturb()
    assert of_columns.take(Epoch(MAX_EPOCH)).found == of_rows.take(Epoch(MAX_EPOCH)).found


MIGRATED: list[Any] = []


def noting(key: Any, state: Any) -> Any:
    MIGRATED.append(state)
    return state


@pytest.mark.parametrize(
    ("join", "state"),
    [
        (windowed("outer", windows.tumbling(6)), {0: ([{"n": 1, "text": "1"}], [])}),
        (tabled(how="left", wait=True), [None, [({"n": 1, "text": "1"}, 3)]]),
        (near("outer"), [[3], [{"n": 1, "text": "1"}], [True], (), (), (), 6]),
        (as_of(), [[3], [{"n": 1, "text": "1"}], (), (), 3]),
    ],
    ids=["window", "table", "interval", "asof"],
)
def test_migrate_gets_the_state_of_rows(join: Any, state: Any) -> None:
    """It was called with the rows of an image of columns, by their numbers."""
    run = Run(join).take(columns_of([("a", 1, 3)], "texts"), 0)
    run.take(columns_of([("b", 2, 3)], "texts"), 1)
    persisted, restored = run.tester.barrier("snapshot"), Run(join)
    MIGRATED.clear()
    operator: Any = restored.tester._runner.operators["join"]
    operator.install([persisted.states["join"]], [0], migrate=noting)
    assert state in MIGRATED
    for one in (run, restored):
        one.take(columns_of([("a", 3, 5)], "texts"), 1).take(Epoch(MAX_EPOCH))
    assert restored.found == run.found


# intervals, and as of a time


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize(
    "join",
    [
        *map(near, ("inner", "left", "outer")),
        *(as_of(how=how, direction=to) for how in ("inner", "left") for to in ("backward", "forward", "nearest")),
    ],
)
def test_a_join_by_time_of_columns_makes_no_row_through_barriers_moves_and_restores(join: Any, scalar: bool) -> None:
    of_columns, of_rows = Run(join), Run(join)
    for number in range(12):
        for side in (0, 1):
            drawn: list[Row] = [
                (key, number * 2 + side, 2 * number + place) for place, key in enumerate(("a", "ä", "b"))
            ]
            batch = columns_of(drawn[: 3 - number % 3], "texts", scalar=scalar and side == 1)
            of_rows.take(as_rows(batch), side)
            batch = columns_of(drawn[: 3 - number % 3], "texts", scalar=scalar and side == 1)
            of_columns.tester.states["join"].untried = False
            of_columns.take(batch, side)
            assert not batch.rows_made
        for run in (of_columns, of_rows):
            run.take(Epoch(2 * number - 2))
        (of_columns.move, of_columns.restore, lambda: of_columns.tester.barrier("some"))[number % 3]()
    blocks = [block.batch for side in of_columns.times.sides for block in side.blocks]
    assert blocks
    assert not any(block.rows_made for block in blocks)
    assert of_columns.take(Epoch(MAX_EPOCH)).found == of_rows.take(Epoch(MAX_EPOCH)).found


@SMALL_BATCHES_STAY
@pytest.mark.parametrize(
    "join", [near("outer"), as_of(), as_of(tolerance=4), *(as_of(direction=to) for to in ("forward", "nearest"))]
)
def test_blocks_of_many_batches_give_pairs_in_the_order_of_rows(join: Any) -> None:
    for seed in range(4):
        draw, of_columns, of_rows = Random(seed), Run(join), Run(join)
        for number in range(120):
            drawn: list[Row] = [
                (draw.choice(KEYS["texts"][0]), number * 30 + place, number // 2 + draw.randrange(8))
                for place in range(draw.randint(1, 30))
            ]
            batch, side = columns_of(drawn, "texts"), draw.randrange(2)
            of_rows.take(as_rows(batch), side)
            of_columns.take(batch, side)
            for run in (of_rows, of_columns):
                run.take(Epoch(number // 2 - 1 - seed * 4))
        assert of_columns.times
        assert of_columns.take(Epoch(MAX_EPOCH)).found == of_rows.take(Epoch(MAX_EPOCH)).found, f"seed {seed}"


@pytest.mark.parametrize(
    "join", [near("inner"), as_of(tolerance=5, how="inner"), as_of(direction="forward", tolerance=5)]
)
def test_a_join_by_time_forgets_what_is_past(join: Any) -> None:
    run = Run(join)
    for start in range(0, 100_000, 500):
        keys = range(start, start + 500)
        run.take(columns_of([(key, key, start + key % 7) for key in keys], "other numbers"), start // 500 % 2)
        run.take(Epoch(start))
        if start % 5_000 == 0:
            run.tester.barrier("some")
    assert sum(block.held for side in run.times.sides for block in side.blocks) < 9_000
    assert len(run.times.index) < 20_000
    run.take(Epoch(MAX_EPOCH))
    assert len(run.times) == 0


@SMALL_BATCHES_STAY
def test_an_as_of_join_keeps_the_latest_of_each_key() -> None:
    run = Run(as_of())
    for change in range(100):
        run.take(columns_of([(key, change, change) for key in range(200)], "other numbers"), 1)
        run.take(Epoch(change))
    assert len(run.times.sides[1]) < 9_000
    run.take(columns_of([(key, key, 101) for key in (0, 199, 200)], "other numbers"), 0).take(Epoch(MAX_EPOCH))
    assert {key: pair.right and pair.right["n"] for key, ((pair, _),) in run.found.items()} == {
        0: 99,
        199: 99,
        200: None,
    }


def test_rows_after_columns_of_an_interval_join_have_timers() -> None:
    run = Run(near("outer"))
    run.take(columns_of([("a", 1, 3), ("b", 2, 4)], "texts"), 0)
    run.take(as_rows(columns_of([("a", 3, 5), ("c", 4, 5)], "texts")), 1)
    assert type(run.tester.states["join"].values) is dict
    run.take(columns_of([("c", 5, 4)], "texts"), 0)
    run.take(Epoch(7))
    assert {
        key: [(pair.left and pair.left["n"], pair.right and pair.right["n"], at) for pair, at in pairs]
        for key, pairs in run.found.items()
    } == {"a": [(1, 3, 5)], "c": [(5, 4, 5)], "b": [(2, None, 7)]}
    run.take(Epoch(MAX_EPOCH))
    assert not len(run.tester.states["join"].timers)


def test_few_states_of_columns_are_made_to_measure_them() -> None:
    """All that might be measured were made first, with a row for each record."""
    run = Run(as_of()).take(columns_of([(key, key, 1) for key in range(500)], "other numbers"), 1)
    with patch.object(TimeJoinRows, "many", autospec=True, side_effect=TimeJoinRows.many) as many:
        assert run.tester.states["join"].sampled_bytes(500, 1)[0] == 1
    assert [len(call.args[1]) for call in many.call_args_list] == [1]


def test_rows_after_columns_of_an_as_of_join_have_timers() -> None:
    run = Run(as_of())
    run.take(columns_of([("a", 1, 3), ("b", 2, 4)], "texts"), 0)
    run.take(as_rows(columns_of([("a", 3, 2), ("c", 4, 5)], "texts")), 1)
    run.take(Epoch(4))
    assert {key: [(pair.right and pair.right["n"], at) for pair, at in pairs] for key, pairs in run.found.items()} == {
        "a": [(3, 3)],
        "b": [(None, 4)],
    }
    run.take(Epoch(MAX_EPOCH))
    assert not len(run.tester.states["join"].timers)


@pytest.mark.parametrize("rows_first", [False, True])
def test_columns_and_rows_of_an_interval_join_move_to_each_other(rows_first: bool) -> None:
    of_columns, of_rows = Run(near("outer")), Run(near("outer"))
    of_columns.take(columns_of([("a", 1, 3), ("b", 2, 4)], "texts"), 0)
    of_rows.take(as_rows(columns_of([("c", 3, 3), ("d", 4, 4)], "texts")), 0)
    giver, taker = (of_rows, of_columns) if rows_first else (of_columns, of_rows)
    taken = giver.tester.collect(giver.tester.interrogate())
    assert taken
    taker.tester.acquire(taken)
    taker.take(columns_of([(key, 9, 5) for key in "abc"], "texts"), 1)
    taker.take(Epoch(MAX_EPOCH))
    found = {
        key: [(pair.left["n"], pair.right and pair.right["n"]) for pair, _ in of] for key, of in taker.found.items()
    }
    assert found == {"a": [(1, 9)], "b": [(2, 9)], "c": [(3, 9)], "d": [(4, None)]}


@pytest.mark.parametrize("far", [2**60, -(2**60)])
def test_times_too_far_for_columns_are_rows(far: int) -> None:
    run = Run(near("outer"))
    run.take(columns_of([("a", 1, 3)], "texts"), 0)
    run.take(columns_of([("a", 2, far), ("a", 3, 5)], "texts"), 1)
    run.take(Epoch(MAX_EPOCH))
    assert sorted(((pair.left and pair.left["n"]) or 0, pair.right["n"]) for pair, _ in run.found["a"]) == [
        (0, 2),
        (1, 3),
    ]


@pytest.mark.parametrize("join", [near("outer"), as_of()])
def test_more_times_and_keys_than_64_bits_number_are_rows(join: Any) -> None:
    run = Run(join)
    for side in (0, 1):
        batch = columns_of([("a", 1, -(2**58)), ("b", 2, 2**58), *((f"{n}", n, n) for n in range(20))], "texts")
        run.take(batch, side)
    run.take(Epoch(MAX_EPOCH))
    assert type(run.tester.states["join"].values) is dict
    assert {len(pairs) for pairs in run.found.values()} == {1}


@pytest.mark.parametrize("join", [near("outer"), as_of()])
def test_joins_by_time_of_many_small_batches_go_on_with_rows(join: Any) -> None:
    small, large = Run(join), Run(join)
    rows = [("abc"[at % 3], at, at) for at in range(80)]
    for row in rows:
        for side in (0, 1):
            small.take(columns_of([row], "texts"), side)
    for side in (0, 1):
        large.take(columns_of(rows, "texts"), side)
    assert type(small.tester.states["join"].values) is dict
    assert isinstance(large.tester.states["join"].values, TimeJoinRows)
    for run in (small, large):
        run.take(Epoch(MAX_EPOCH))
    assert {key: sorted(map(repr, pairs)) for key, pairs in small.found.items()} == {
        key: sorted(map(repr, pairs)) for key, pairs in large.found.items()
    }


# windows


def test_columns_are_joined_without_rows() -> None:
    run = Run(windowed("outer", windows.sliding(6, 4)))
    run.tester.states["join"].untried = False  # the first state is encoded as rows
    batches = [
        columns_of([("a", n, n) for n in range(9)], "texts"),
        columns_of([("a", 1, 3), ("b", 2, 4)], "large texts", scalar=True),
    ]
    run.take(batches[0], 0).take(batches[1], 1)
    assert not any(batch.rows_made for batch in batches)
    blocks = [block.batch for side in run.panes.sides for block in side.blocks]
    assert sum(map(len, blocks)) == 11
    assert not any(block.rows_made for block in blocks)
    assert not run.panes.rows


@pytest.mark.parametrize("scalar", [False, True])
def test_columns_stay_columns_through_barriers_moves_and_restores(scalar: bool) -> None:
    run = Run(windowed("outer", windows.sliding(6, 4)))
    for number in range(3):
        for side in (0, 1):
            drawn: list[Row] = [(key, number, number * 3 + side) for key in ("a", "b", "ä")]
            run.take(columns_of(drawn, "texts", scalar=scalar), side)
        run.move()
        run.tester.barrier("some")
        run.restore()
    run.tester.states["join"].untried = False
    for side in (0, 1):
        run.take(columns_of([("a", 0, 9)], "texts", scalar=scalar), side)
    blocks = [block.batch for side in run.panes.sides for block in side.blocks]
    assert sum(map(len, blocks)) == 20
    assert not any(block.rows_made for block in blocks)
    assert {str(kind) for block in blocks for kind in block.columns.schema.types} <= (
        {"int64"} if scalar else {"int64", "string"}
    )


def test_values_that_no_image_stores_are_rows_for_a_move_only() -> None:
    """Lists are written as rows; a barrier leaves the columns, and panes that begin after a move have columns."""
    run = Run(windowed("inner", windows.tumbling(6)))
    for base in (0, 6):
        for side in (0, 1):
            batch = pa.RecordBatch.from_pydict({"list": [[base], [side]]})
            times = pa.array([base, base + 1])
            run.take(ColumnBatch(batch, key_column=pa.array(["a", "b"]), time_column=times), side)
        run.tester.barrier("some")
        assert base in run.panes.columns
        run.move()
        run.restore()
        assert base in run.panes.rows
    run.take(Epoch(MAX_EPOCH))
    assert {key: len(pairs) for key, pairs in run.found.items()} == {"a": 2, "b": 2}


def test_s2_a_delta_has_only_the_keys_that_changed() -> None:
    run = Run(windowed("outer", windows.tumbling(60)))
    run.take(columns_of([(key, key, 1) for key in range(500)], "other numbers"), 0)
    full = run.tester.barrier("s0").states["join"]
    run.take(columns_of([(3, 1, 2), (901, 2, 2)], "other numbers"), 1)
    delta = run.tester.barrier("s1", parent="s0").states["join"]
    assert len(delta) * 10 < len(full)
    assert len(run.tester.barrier("s2", parent="s1").states["join"]) < len(delta)


def test_changed_keys_are_noted_once_though_they_come_often() -> None:
    panes = JoinPanes(60, tracked=lambda: True)
    for _ in range(40):
        panes.add_columns(0, columns_of([(key, key, 1) for key in range(10_000)], "other numbers"))
    assert sum(len(noted) for noted, _ in panes._changed) < 120_000
    (changed,) = panes.changed_columns()
    assert sorted(changed.to_pylist()) == list(range(10_000))
    assert panes.changed_columns() == []


@pytest.mark.parametrize("keys", [100, 50_000, 300_000])
def test_the_number_of_keys_is_about_right_without_a_look_at_all_rows(keys: int) -> None:
    panes = JoinPanes(60)
    for start in range(0, 300_000, 50_000):
        rows = range(start, start + 50_000)
        panes.add_columns(0, columns_of([(row * 7919 % keys, row, 1) for row in rows], "other numbers"))
    assert keys / 2 < len(panes) <= min(2 * keys, 300_000)
    assert sum(1 for _ in panes) == keys


def test_text_that_is_not_utf_8_is_no_key_of_columns() -> None:
    panes = JoinPanes(60)
    keys = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    batch = ColumnBatch(pa.RecordBatch.from_pydict({"n": [1]}), key_column=keys, time_column=pa.array([1]))
    assert not panes.add_columns(0, batch)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("window", [windows.tumbling(6), windows.sliding(6, 4)])
def test_s2_panes_that_closed_are_gone_from_the_next_delta(window: windows.Windows, *, columns: bool) -> None:
    """A job resumed from a chain with a closed pane failed with `StopIteration` at its next epoch."""
    run = Run(windowed("outer", window))
    for side in (0, 1):
        batch = columns_of([("a", side, 1), ("b", side, 2)], "texts")
        run.take(batch if columns else as_rows(batch), side)
    first = run.tester.barrier("first")
    run.take(Epoch(20))
    second = run.tester.barrier("second", parent="first")
    restored = Run(windowed("outer", window))
    restored.tester.install([first, second], slots=[0])
    assert not restored.panes.starts()
    restored.take(columns_of([("a", 5, 30)], "texts"), 0)
    restored.take(Epoch(MAX_EPOCH))
    assert {key: {pair.left["n"] for pair, _ in pairs} for key, pairs in restored.found.items()} == {"a": {5}}


def test_keys_of_which_arrow_takes_no_rows_become_rows() -> None:
    run = Run(windowed("outer", windows.tumbling(6)))
    for side in (0, 1):
        batch = pa.RecordBatch.from_pydict({"n": [1, 2]})
        keys, times = pa.array(["a", str(side)], pa.string_view()), pa.array([1, 2])
        run.take(ColumnBatch(batch, key_column=keys, time_column=times), side)
    run.take(Epoch(MAX_EPOCH))
    assert {key: tuple(pair) for key, ((pair, _),) in run.found.items()} == {
        "a": ({"n": 1}, {"n": 1}),
        "0": ({"n": 2}, None),
        "1": (None, {"n": 2}),
    }


def test_numbers_after_texts_on_the_other_side_become_rows_though_none_had_come_as_a_number() -> None:
    run = Run(windowed("outer", windows.tumbling(6)))
    run.take(columns_of([(None, 1, 1)], "other numbers"), 0)
    run.take(columns_of([("a", 2, 2)], "texts"), 1)
    run.take(columns_of([(2**40, 3, 3)], "other numbers"), 0)
    run.take(Epoch(MAX_EPOCH))
    assert {key: [pair.left or pair.right for pair, _ in pairs] for key, pairs in run.found.items()} == {
        None: [{"n": 1, "text": "1"}],
        "a": [{"n": 2, "text": "2"}],
        2**40: [{"n": 3, "text": "3"}],
    }


@pytest.mark.parametrize("disturb", [Run.move, Run.restore])
@pytest.mark.parametrize("join", [windowed("left", windows.tumbling(6)), tabled(how="left", wait=True)])
def test_a_none_that_came_back_alone_is_a_key_beside_numbers(join: Any, disturb: Any) -> None:
    """An image of nothing but None does not say of which type its keys are."""
    run = Run(join)
    run.take(columns_of([(None, 1, 1)], "other numbers"), 0)
    disturb(run)
    run.take(columns_of([(2**40, 2, 2), (None, 3, 3)], "other numbers"), 0)
    run.take(Epoch(MAX_EPOCH))
    found = {key: [pair.left["n"] for pair, _ in pairs] for key, pairs in run.found.items()}
    assert found == {None: [1, 3], 2**40: [2]}


# tables


def test_a_table_stays_columns_and_does_not_grow_with_its_changes() -> None:
    run = Run(tabled(), timed=False)
    for change in range(100):
        rows = [(key, change, 0) for key in range(change * 7, change * 7 + 500)]
        run.take(untimed([(key % 900, n, 0) for key, n, _ in rows], "other numbers"), 1)
    run.take(untimed([(key, 0, 0) for key in (*range(900), 901)], "other numbers"), 0)
    latest = {key % 900: change for change in range(100) for key in range(change * 7, change * 7 + 500)}
    assert {key: pair.right["n"] for key, ((pair, _),) in run.found.items()} == latest
    assert len(run.table.sides[1]) < 5_000


def test_replaced_values_are_dropped_while_a_row_waits() -> None:
    run = Run(tabled(wait=True), timed=False)
    run.take(untimed([(2**40, 0, 0)], "other numbers"), 0)
    for change in range(60):
        run.take(untimed([(key, change, 0) for key in range(300)], "other numbers"), 1)
    run.take(untimed([(2**40, 7, 0)], "other numbers"), 1)
    ((pair, _),) = run.found.pop(2**40)
    assert (pair.right["n"], run.found) == (7, {})
    assert len(run.table.sides[1]) < 5_000


def test_a_waiting_row_is_kept_once() -> None:
    run = Run(tabled(wait=True), timed=False)
    run.take(untimed([(key, key, 0) for key in range(9)], "numbers"), 0)
    for key in range(8):
        run.take(untimed([(key, key, 0)] * 2, "numbers"), 1)
    assert {key: [pair.left["n"] for pair, _ in pairs] for key, pairs in run.found.items()} == {
        key: [key] for key in range(8)
    }
    table = run.table
    assert len(table) == 9
    assert len(table.sides[0]) == 1
    assert sum(block.held for block in table.sides[0].blocks) <= 4


@pytest.mark.parametrize("what", ["move", "restore"])
def test_a_table_is_columns_after_a_move_and_a_restore(what: str) -> None:
    run = Run(tabled(how="left", wait=True))
    run.take(columns_of([("a", 1, 0), ("b", 2, 0), ("c", 3, 1)], "texts"), 0)
    run.take(columns_of([("a", 7, 0), ("d", 8, 0)], "texts"), 1)
    getattr(run, what)()
    table = run.table
    assert len(table) == 4
    run.take(columns_of([("d", 4, 1), ("a", 5, 1)], "texts"), 0)
    run.take(columns_of([("b", 9, 2)], "texts"), 1)
    run.take(Epoch(MAX_EPOCH))
    assert len(run.table) == 3
    found = {key: [(pair.left["n"], pair.right and pair.right["n"]) for pair, _ in of] for key, of in run.found.items()}
    assert found == {"a": [(1, 7), (5, 7)], "d": [(4, 8)], "b": [(2, 9)], "c": [(3, None)]}


def test_a_delta_has_only_what_changed() -> None:
    run = Run(tabled(how="left", wait=True), timed=False)
    run.take(untimed([(key, 1, 0) for key in range(500)], "other numbers"), 1)
    full = run.tester.barrier("s0").states["join"]
    run.take(untimed([(3, 2, 0)], "other numbers"), 1)
    run.take(untimed([(901, 1, 0)], "other numbers"), 0)
    assert len(run.tester.barrier("s1", parent="s0").states["join"]) * 10 < len(full)


def test_keys_without_state_are_forgotten() -> None:
    table = ColumnTable(timed=False)
    for start in range(0, 40_000, 5_000):
        keys = list(range(start, start + 5_000))
        table.change(untimed([(key, key, 0) for key in keys], "other numbers"))
        gone = keys[7:]
        assert [state[0]["n"] for state in table.take(gone)] == gone
    assert len(table.index) < 9_000
    assert sorted(table) == [start + place for start in range(0, 40_000, 5_000) for place in range(7)]
    assert table[15_003] == [{"n": 15_003, "text": "15003"}, ()]
