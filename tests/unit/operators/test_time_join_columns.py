"""Joins of columns by time and by session: what stays columns, what becomes rows, and in which order."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from malstrom_py import windows
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.state.time_join_rows import TimeJoinRows
from tests.unit.operators.join_runs import (
    KEYS,
    SMALL_BATCHES_STAY,
    Row,
    Run,
    as_of,
    as_rows,
    columns_of,
    near,
    windowed,
)


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize(
    "join",
    [
        *map(near, ("inner", "left", "outer")),
        *(windowed(how, windows.session(2)) for how in ("inner", "left", "outer")),
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
    "join",
    [
        *(near("outer"), as_of(), as_of(tolerance=4), *(as_of(direction=to) for to in ("forward", "nearest"))),
        *(windowed(how, windows.session(2)) for how in ("inner", "left", "outer")),
    ],
)
def test_blocks_of_many_batches_give_pairs_in_the_order_of_rows(join: Any) -> None:
    for seed in (0, 3):
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
    "join",
    [
        *(near("inner"), as_of(tolerance=5, how="inner"), as_of(direction="forward", tolerance=5)),
        windowed("outer", windows.session(5)),
    ],
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


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_sessions_of_columns_that_become_rows_keep_the_order_of_each_side(how: Any) -> None:
    for seed in range(40):
        draw, mixed, of_rows = (
            Random(seed),
            Run(windowed(how, windows.session(3))),
            Run(windowed(how, windows.session(3))),
        )
        for number in range(12):
            drawn: list[Row] = [
                (draw.choice("ab"), 10 * number + place, number + draw.randrange(10))
                for place in range(draw.randint(1, 5))
            ]
            batch, side = columns_of(drawn, "texts"), draw.randrange(2)
            of_rows.take(as_rows(batch), side)
            mixed.take(batch if number < seed % 12 else as_rows(batch), side)
            for run in (of_rows, mixed):
                run.take(Epoch(number))
        assert mixed.take(Epoch(MAX_EPOCH)).found == of_rows.take(Epoch(MAX_EPOCH)).found, f"seed {seed}"


def test_late_rows_of_a_join_by_session_are_rows() -> None:
    """No row of a generate_epochs step is late, but steps of users may send some."""
    run = Run(windowed("outer", windows.session(3)))
    run.take(columns_of([("a", 1, 3), ("a", 2, 20)], "texts"), 0).take(Epoch(10))
    run.take(columns_of([("a", 3, 4)], "texts"), 1).take(Epoch(11))
    assert type(run.tester.states["join"].values) is dict
    run.take(Epoch(MAX_EPOCH))
    assert [(pair.left and pair.left["n"], pair.right and pair.right["n"], at) for pair, at in run.found["a"]] == [
        (1, None, 5),
        (None, 3, 6),
        (2, None, 22),
    ]


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("join", [near("outer"), windowed("outer", windows.session(3))])
def test_columns_and_rows_of_a_join_by_time_move_to_each_other(join: Any, rows_first: bool) -> None:
    of_columns, of_rows = Run(join), Run(join)
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
@pytest.mark.parametrize("join", [near("outer"), windowed("outer", windows.session(3))])
def test_times_too_far_for_columns_are_rows(join: Any, far: int) -> None:
    run = Run(join)
    run.take(columns_of([("a", 1, 3)], "texts"), 0)
    run.take(columns_of([("a", 2, far), ("a", 3, 5)], "texts"), 1)
    run.take(Epoch(MAX_EPOCH))
    assert sorted(((pair.left and pair.left["n"]) or 0, pair.right["n"]) for pair, _ in run.found["a"]) == [
        (0, 2),
        (1, 3),
    ]


@pytest.mark.parametrize("join", [near("outer"), as_of(), windowed("outer", windows.session(3))])
def test_more_times_and_keys_than_64_bits_number_are_rows(join: Any) -> None:
    run = Run(join)
    for side in (0, 1):
        batch = columns_of([("a", 1, -(2**58)), ("b", 2, 2**58), *((f"{n}", n, n) for n in range(20))], "texts")
        run.take(batch, side)
    run.take(Epoch(MAX_EPOCH))
    assert type(run.tester.states["join"].values) is dict
    assert {len(pairs) for pairs in run.found.values()} == {1}


@pytest.mark.parametrize("join", [near("outer"), as_of(), windowed("outer", windows.session(3))])
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
