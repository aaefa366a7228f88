"""The oracle sees state in arrays, and partial states before an exchange, that are wrong."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.operators.panes import Panes
from malstrom_py.state.column_table import ColumnTable
from malstrom_py.state.figure_states import FigureStates
from malstrom_py.state.groups import Groups
from malstrom_py.workers.engine.exchange import Exchange
from tests.simulation.jobs.runs import run
from tests.simulation.jobs.wrong_protocols import Right, WrongProtocol, nothing

SEEDS: Final = 4
"""How many seeds from the recorded one on are tried: what is right elsewhere may change what a seed does."""


def figures_stay(right: Right) -> Right:
    """Figures that move stay where they were, too."""
    return lambda states, keys: states.image(keys, lambda of_keys: [0] * len(of_keys))


def pane_lost(right: Right) -> Right:
    """Of several panes the last is not in a delta of columns."""

    def image(panes: Any, keys: Any, slots_of: Any) -> Any:
        made = right(panes, keys, slots_of)
        if keys is None or slots_of is None or made.panes is None or len(made.panes) == 0:
            return made
        of = made.panes.to_numpy()
        return made.take(np.flatnonzero(of < of.max())) if of.min() < of.max() else made

    return image


def none_changed(right: Right) -> Right:
    """What has changed in arrays is not in a delta."""

    def changed(states: Any) -> list[Any]:
        return [column[:0] for column in right(states)]

    return changed


def none_swept(right: Right) -> Right:
    """Nor is it in what is packed ahead of one."""

    def sweep(states: Any, keys_max: int, *, of_all: bool) -> Any:
        found = right(states, keys_max, of_all=of_all)
        return found if of_all else [(keys[:0] for keys in columns) for columns in found]

    return sweep


def counted_twice(right: Right) -> Right:
    """Partial states are added twice."""

    def fold(groups: Any, *given: Any) -> None:
        right(groups, *given)
        right(groups, *given)

    return fold


def held(right: Right) -> Right:
    """Partial states wait for the end of the stream."""

    def on_batch(exchange: Any, batch: Any, out: Any = None) -> None:
        made = exchange.combine(batch) if exchange.combine is not None and isinstance(batch, ColumnBatch) else batch
        if made is batch or not exchange.remote:
            right(exchange, batch, out)
        else:
            exchange.waiting = [*getattr(exchange, "waiting", ()), made]

    return on_batch


def after_the_epoch(right: Right) -> Right:
    """They leave after the epoch that closes their windows."""

    def on_epoch(exchange: Any, epoch: Any, out: Any = None) -> None:
        right(exchange, epoch, out)
        if epoch.time == MAX_EPOCH:
            waiting, exchange.waiting = getattr(exchange, "waiting", []), []
            for made in waiting:
                exchange.on_batch(made, out)
            exchange.flush()

    return on_epoch


def waiting_rows_that_stay(right: Right) -> Right:
    """Of a key that leaves, only the value goes: what waits for it is sent there and here."""

    def drop(table: Any, chosen: Any) -> None:
        waiting, waits = table.sides[0].blocks, table.by_id["waits"].copy()
        table.by_id["waits"][:] = False
        right(table, chosen)
        table.sides[0].blocks, table.by_id["waits"][:] = waiting, waits

    return drop


def unflagged(right: Right) -> Right:
    """What is set, or waits, is not in the next delta: a restore finds an older value, or loses what waited."""

    def change(table: Any, columns: Any, ids: Any, **options: Any) -> Any:
        before = table.by_id["changed"].copy()
        made = right(table, columns, ids, **options)
        table.by_id["changed"][:] = before
        return made

    return change


def one_side_only(right: Right) -> Right:
    """A move and a barrier find the waiting records only, not the values."""

    def image(table: Any, keys: Any, slots_of: Any) -> Any:
        made = right(table, keys, slots_of)
        return made.take((made.states[1].to_numpy() == 0).nonzero()[0])

    return image


WRONG: Final[dict[str, WrongProtocol]] = {
    "keys in arrays stay where they were": WrongProtocol(((Groups, "take", nothing),), shape="arrays"),
    "figures in arrays stay where they were": WrongProtocol(
        ((FigureStates, "take_image", figures_stay),), seed=25, shape="arrays"
    ),
    "a pane is lost in a delta of columns": WrongProtocol(((Panes, "image", pane_lost),), seed=12, shape="arrays"),
    "changed figures are not noted": WrongProtocol(
        ((FigureStates, "changed_columns", none_changed), (FigureStates, "sweep", none_swept)), seed=12, shape="arrays"
    ),
    "changed panes are not noted": WrongProtocol(
        ((Panes, "changed_columns", none_changed), (Panes, "sweep", none_swept)), seed=12, shape="arrays"
    ),
    "a table stays where it was": WrongProtocol(((ColumnTable, "drop", nothing),), shape="arrays"),
    "what waits for a value stays where it was": WrongProtocol(
        ((ColumnTable, "drop", waiting_rows_that_stay),), shape="arrays"
    ),
    "the values of a table do not move": WrongProtocol(
        ((ColumnTable, "image", one_side_only),), seed=6, shape="arrays"
    ),
    "new values of a table are not in a delta": WrongProtocol(
        ((ColumnTable, "_set", unflagged),), seed=6, shape="arrays"
    ),
    "what waits for a value is not in a delta": WrongProtocol(
        ((ColumnTable, "_wait", unflagged),), seed=6, shape="arrays"
    ),
    "partial states count twice": WrongProtocol(((Groups, "fold_partials", counted_twice),), seed=9, shape="arrays"),
    "partial states follow the epoch that closes them": WrongProtocol(
        ((Exchange, "on_batch", held), (Exchange, "on_epoch", after_the_epoch)), seed=9, shape="arrays"
    ),
}


@pytest.mark.long("139")
@pytest.mark.parametrize("seed", [107, 139])
def test_what_changed_in_arrays_is_in_a_delta_though_they_have_become_rows(seed: int) -> None:
    run(seed, shape="arrays")


@pytest.mark.parametrize("name", WRONG)
def test_the_oracle_catches(name: str) -> None:
    seed = WRONG[name].seed
    assert any(WRONG[name].caught(number) is not None for number in range(seed, seed + SEEDS))
