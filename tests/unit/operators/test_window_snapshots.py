"""The state of windows on columns in snapshots and moves: what that of windows on rows is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from malstrom_py.codec import Codec
from malstrom_py.data.messages import MAX_EPOCH, Acquire, Collect, Epoch
from malstrom_py.errors import InternalError
from malstrom_py.operators.panes import Panes
from malstrom_py.state.artefact import contents, entries_in, is_delta, merged
from malstrom_py.testing.exact import same
from tests.unit.operators.stepping import Stepped
from tests.unit.operators.test_column_snapshots import SLOTS, SLOTS_OF, barrier, is_columns, operator_of
from tests.unit.operators.test_windows_columns import columns_of, rows_of, stepped


def tracked(how: str, size: str) -> Stepped:
    step = stepped(how, size)
    operator_of(step).track(SLOTS_OF)
    return step


def in_order(states: Sequence[tuple[Any, Any]]) -> list[Any]:
    return sorted(([key, sorted(panes.items())] for key, panes in states), key=repr)


def held(*steps: Stepped) -> list[Any]:
    return in_order([(key, panes) for step in steps for key, panes in operator_of(step).state.values.items()])


def content(chain: Sequence[bytes]) -> list[Any]:
    return in_order([(key, panes) for _, key, panes, _ in entries_in(chain, Codec())])


def restored(how: str, size: str, chain: Sequence[bytes], slots: Sequence[int] = range(SLOTS)) -> Stepped:
    step = tracked(how, size)
    operator_of(step).install(chain, slots)
    return step


def panes_of(step: Stepped) -> Panes:
    panes: Any = operator_of(step).state.values
    assert isinstance(panes, Panes)
    return panes


def test_panes_are_persisted_and_restored_as_columns() -> None:
    step = tracked("in any order", "sliding")
    step.push(columns_of([("a", 1, 5), ("b", 2, 6), ("a", 9, 7)], "text", "int"))
    full = barrier(step, "s1")
    step.push(columns_of([("b", 9, 1), ("c", 13, 2)], "text", "int"), Epoch(13))
    delta = barrier(step, "s2", "s1")
    assert [is_columns(full), is_columns(delta), is_columns(merged([full, delta]))] == [True, True, True]
    again = restored("in any order", "sliding", [full, delta])
    assert panes_of(again).in_arrays
    assert len(panes_of(again)) > 0
    assert same(held(again), held(step))
    operator_of(again).continue_chain("s2")
    again.push(columns_of([("c", 14, 2)], "text", "int"))
    assert sum(len(keys) for _, (keys, _) in contents(barrier(again, "s3", "s2"))) == 1


def test_a_window_that_closed_is_gone_from_the_chain() -> None:
    step = tracked("sum", "tumbling").push(columns_of([("a", 1, 5), ("b", 2, 6), ("b", 12, 6)], "text", "int"))
    chain = [barrier(step, "s1")]
    step.push(Epoch(9))
    chain.append(barrier(step, "s2", "s1"))
    assert is_columns(chain[1])
    assert content(chain) == [["b", [(10, 6)]]]


@pytest.mark.parametrize("as_rows", [False, True])
def test_r4_r5_panes_move_to_steps_of_either_form(as_rows: bool) -> None:
    giver, taker = (tracked("several", "tumbling") for _ in range(2))
    giver.push(columns_of([("a", 1, 5), ("b", 2, 6), ("a", 12, 7), ("c", 25, 7)], "text", "int"))
    cells = [("z", 3, 1), ("z", 12, 1)]
    taker.push(rows_of(cells) if as_rows else columns_of(cells, "text", "int"))
    before = held(giver, taker)
    chains = [[barrier(giver, "s1")], [barrier(taker, "s1")]]
    message = Collect(dict.fromkeys(["a", "c", "unknown"]).keys())
    giver.push(message)
    taker.push(Acquire(message.states))
    assert same(held(giver, taker), before)
    assert [key for key, _ in held(giver)] == ["b"]
    for one, chain in zip((giver, taker), chains, strict=True):
        chain.append(barrier(one, "s2", "s1"))
        assert same(content(chain), held(one))
    with pytest.raises(InternalError, match="the key already has state here"):
        taker.push(Acquire(message.states))


def test_r5_a_pane_of_another_type_takes_what_comes_as_rows() -> None:
    giver, taker = (tracked("sum", "tumbling") for _ in range(2))
    giver.push(columns_of([("a", 1, 5), ("a", 12, 7)], "text", "int"))
    taker.push(columns_of([("b", 1, 0.5)], "text", "float"))
    message = Collect({"a": None}.keys())
    giver.push(message)
    taker.push(Acquire(message.states))
    assert same(held(taker), [["a", [(0, 5), (10, 7)]], ["b", [(0, 0.5)]]])
    assert not panes_of(taker).in_arrays


def test_panes_with_keys_or_states_of_several_types_are_persisted_as_rows() -> None:
    for keys, values, value in (("int", "int", 1), ("text", "float", 0.5)):
        step = tracked("sum", "tumbling").push(columns_of([("a", 1, 5)], "text", "int"))
        full = barrier(step, "s1")
        step.push(columns_of([(7 if keys == "int" else "a", 11, value)], keys, values), Epoch(0))
        delta = barrier(step, "s2", "s1")
        assert (is_columns(full), is_columns(delta), is_delta(delta)) == (True, False, True)
        assert same(content([full, delta]), held(step))


def test_panes_of_keys_that_are_all_none_or_gone() -> None:
    step = tracked("count", "tumbling").push(columns_of([(None, 1, 5)], "int", "int"))
    chain = [barrier(step, "s1")]
    step.push(columns_of([(7, 12, 5)], "int", "int"), Epoch(9))
    chain.append(barrier(step, "s2", "s1"))
    step.push(Epoch(19))
    chain.append(barrier(step, "s3", "s2"))
    assert [content(chain[:length]) for length in (1, 2, 3)] == [[[None, [(0, 1)]]], [[7, [(10, 1)]]], []]
    assert held(restored("count", "tumbling", chain)) == []
    assert panes_of(step).changed_columns() == []


@pytest.mark.parametrize("columns", [False, True])
def test_panes_of_a_snapshot_without_runs_are_read_and_continue(*, columns: bool) -> None:
    """Sliding windows with `agg.first` and `agg.last` were kept in arrays: their order was that of panes."""
    old = stepped("several", "sliding", runs=False)
    operator_of(old).track(SLOTS_OF)
    rows = [("a", 1, 5), ("b", 2, 6), ("a", 9, 7)]
    old.push(columns_of(rows, "text", "int") if columns else rows_of(rows))
    chain = [barrier(old, "s1")]
    assert is_columns(chain[0]) is columns
    step = restored("several", "sliding", chain)
    step.push(rows_of([("a", 3, 8)]), Epoch(MAX_EPOCH))
    found = {(key, value.start): value.value for key, value, _ in step.rows()}
    figures = [found["a", start] for start in (-8, -4, 0, 4, 8)]
    assert [(one["first"], one["last"], one["n"]) for one in figures] == [
        (5, 8, 2),
        (5, 8, 2),
        (5, 8, 3),
        (7, 7, 1),
        (7, 7, 1),
    ]
