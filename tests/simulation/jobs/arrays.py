"""The tail of keyed state in arrays: running figures and windows of records that are columns from the source on.

Some batches become rows, or some sums leave 64 bits, so that a step goes back to rows in the middle of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, Final
from unittest.mock import patch

from malstrom_py import agg, windows
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.operators import pre_aggregation
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.operators.panes import Panes
from malstrom_py.operators.pre_aggregation import PreAggregation
from malstrom_py.operators.table_join import TableJoin
from malstrom_py.state.column_table import ColumnTable
from malstrom_py.state.figure_states import FigureStates
from malstrom_py.state.groups import Groups
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.state.top_lane import TopLane
from malstrom_py.testing import as_step
from tests.simulation.jobs.layouts import Tail
from tests.simulation.jobs.panes import width_of, windows_of
from tests.simulation.jobs.records import KEYS, Record
from tests.simulation.jobs.seen import Row, Seen
from tests.simulation.jobs.verdicts import Item, by, require, require_same, require_way_order
from tests.simulation.jobs.watching import watched

Stream = Any
Rows = Mapping[str, Sequence[Row]]
Hit = Callable[[str], None]

_CHANGING: Final = partial(TableJoin, keeps=True, waits=True)
"""`join_table` refuses a table of one source that changes; this one is judged by what it may send."""

ARRAYS: Final = ("figures", "top", "tumbling", "sliding", "table")

ARRAY_CASES: Final = (
    "state of columns moved",
    "restored as columns",
    "delta of columns",
    "figures gone back to rows",
    "largest taken in as columns",
    "table taken in as columns",
    "waiting rows taken in as columns",
    "pane gone back to rows",
    "partials sent (F5)",
    "partials of rows sent (F5)",
    "partials taken in",
)
"""What runs with state in arrays must meet."""

_EVERY: Final = 8
_THIRD: Final = 3
_LARGE: Final = 1 << 31
_LARGEST: Final = 3
_CHANGES: Final = 4
"""Each fourth record also changes the table."""


def weight(tail: Tail, record: Record) -> int:
    """What is summed up; no two records have the same. Two large ones are more than 64 bits."""
    return record.check * _LARGE if tail.demoted == "overflow" and _is_special(record.number) else record.check


def _is_special(number: int) -> bool:
    return number % _EVERY == _EVERY - 1


class AsRows(Operator):
    """Makes rows of each batch that has a third record."""

    takes_columns = True

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        third = any(row["number"] % _THIRD == 0 for row in batch.values)
        out.send(Batch(batch.values, timestamps=batch.timestamps) if third else batch)


def arrays(columns: Stream, tail: Tail, seen: Seen) -> dict[str, Stream]:
    """Figures, and windows with and without several panes, each after one exchange: only then F5 applies."""
    import polars as pl

    name, width, key = tail.name, width_of(tail), f"by_{tail.key}"
    check, special = pl.col("check"), pl.col("number") % _EVERY == _EVERY - 1
    heavy = pl.when(special).then(check * _LARGE).otherwise(check) if tail.demoted == "overflow" else check
    weighed = columns.with_columns(f"{name}-weighed", weight=heavy)
    if tail.demoted == "rows":
        weighed = as_step(AsRows, name=f"{name}-rows")(weighed)
    changes = weighed.filter(f"{name}-changes", pl.col("number") % _CHANGES == 0)
    table = changes.key_by(f"{name}-changes-key", key)
    running, largest, tumbling, sliding, looking = (weighed.key_by(f"{name}-{kind}-key", key) for kind in ARRAYS)
    aggregations = {"n": agg.count(), "weight": agg.sum("weight"), "top": agg.max("weight")}
    largest = largest.select(f"{name}-top-columns", "number", "weight")
    made = {
        "top": largest.top_n(f"{name}-top-step", _LARGEST, by="weight"),
        "figures": running.aggregate(f"{name}-figures-step", **aggregations),
        "tumbling": tumbling.window(f"{name}-tumbling-step", windows.tumbling(width)).aggregate(**aggregations),
        "table": looking._joined("join_table", f"{name}-table-step", table, _CHANGING, "", {}),
        "sliding": sliding.window(f"{name}-sliding-step", windows.sliding(2 * width, width)).aggregate(**aggregations),
    }
    return {f"{name}-{kind}": watched(stream, f"{name}-{kind}-out", seen) for kind, stream in made.items()}


def judge_arrays(tail: Tail, rows: Rows, came: list[Item]) -> None:
    """Each figure is that of the records up to it, and each window comes once with those of all its records."""
    items, width = by(came, lambda item: KEYS[tail.key](item.record)), width_of(tail)
    _judge_figures(tail, rows[f"{tail.name}-figures"], items)
    _judge_table(tail, rows[f"{tail.name}-table"], items)
    _judge_largest(tail, rows[f"{tail.name}-top"], items)
    for kind, size in (("tumbling", width), ("sliding", 2 * width)):
        where, found = f"{kind} windows of {tail.name}", rows[f"{tail.name}-{kind}"]
        wanted = {
            (key, start, start + size): there
            for key, of_key in items.items()
            for start, there in windows_of(of_key, size, width).items()
        }
        require_same(((row.key, row.value.start, row.value.end) for row in found), wanted, where)
        for row in found:
            start, end, value = row.value[:3]
            right = _figures_of([weight(tail, item.record) for item in wanted[row.key, start, end]])
            require(row.time == end - 1, f"{where}: {start} has the timestamp {row.time}, not its end")
            require(value == right, f"{where}: {start} of key {row.key!r} is {value}, not {right}")


def _figures_of(weights: list[int]) -> dict[str, int]:
    return {"n": len(weights), "weight": sum(weights), "top": max(weights)}


def _judge_figures(tail: Tail, found: Sequence[Row], items: Mapping[Any, list[Item]]) -> None:
    """The growth of a sum shows which record came."""
    by_key = by(found, lambda row: row.key)
    require_same(by_key, items, f"keys of figures of {tail.name}")
    for key, wanted in items.items():
        where = f"figures of {tail.name}, key {key!r}"
        taken = by_key[key]
        weights = [after - before for before, after in pairwise([0, *(row.value["weight"] for row in taken)])]
        known = {weight(tail, item.record): item for item in wanted}
        require_same(weights, known, where)
        require_way_order((known[weight] for weight in weights), where)
        for n, row in enumerate(taken):
            right = _figures_of(weights[: n + 1])
            time = known[weights[n]].record.time
            require(row.value == right, f"{where}: {row.value}, not {right}")
            require(row.time == time, f"{where}: {row.value} has the timestamp {row.time}, not {time}")


def _judge_largest(tail: Tail, found: Sequence[Row], items: Mapping[Any, list[Item]]) -> None:
    """One list per record, of which each is what was there before and perhaps one more; the last has the largest."""
    by_key = by(found, lambda row: row.key)
    require_same(by_key, items, f"keys of the largest of {tail.name}")
    for key, wanted in items.items():
        where = f"the largest of {tail.name}, key {key!r}"
        lists = [[record["weight"] for record in row.value] for row in by_key[key]]
        weights = sorted((weight(tail, item.record) for item in wanted), reverse=True)
        require(len(lists) == len(wanted), f"{where}: {len(lists)} lists of {len(wanted)} records")
        require(lists[-1] == weights[:_LARGEST], f"{where}: {lists[-1]}, not {weights[:_LARGEST]}")
        for before, after in pairwise([[], *lists]):
            new = set(after) - set(before)
            best = sorted([*before, *new], reverse=True)[:_LARGEST]
            require(len(new) <= 1 and after == best, f"{where}: {after} after {before}")


def _judge_table(tail: Tail, found: Sequence[Row], items: Mapping[Any, list[Item]]) -> None:
    """Each record comes once, with a value of its key if there is one; the values of a part are never older ones."""
    by_key = by(found, lambda row: row.key)
    require_same(by_key, items, f"keys of the table of {tail.name}")
    for key, wanted in items.items():
        where = f"the table of {tail.name}, key {key!r}"
        known = {weight(tail, item.record): item for item in wanted}
        pairs = [(row.value.left, row.value.right) for row in by_key[key]]
        require_same((left["weight"] for left, _ in pairs), known, where)
        changes = {heavy for heavy, item in known.items() if item.record.number % _CHANGES == 0}
        newest: dict[Any, int] = {}
        for left, right in pairs:
            require((right is None) == (not changes), f"{where}: {left} is with {right}")
            if right is not None:
                require(right["weight"] in changes, f"{where}: {right} did not change the table")
                ways = known[left["weight"]].way, known[right["weight"]].way
                number = known[right["weight"]].record.number
                require(newest.get(ways, -1) <= number, f"{where}: {left} is with an older value than one before it")
                newest[ways] = number


# -- what runs have met --


@contextmanager
def arrays_watched(hit: Hit) -> Iterator[None]:
    """As long as this lasts `ARRAY_CASES` are noted, and few rows are enough for F5."""
    watches: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (KeyedState, "_collect_column", lambda right: _moved(right, hit)),
        (KeyedState, "_take_in_columns", lambda right: _restored(right, hit)),
        (KeyedState, "image_of", lambda right: _written(right, hit)),
        (ColumnTable, "put_image", lambda right: _table_put(right, hit)),
        (TopLane, "set", lambda right: _largest_set(right, hit)),
        (KeyedState, "to_rows", lambda right: _figures_as_rows(right, hit)),
        (Panes, "rows_at", lambda right: _pane_as_rows(right, hit)),
        (PreAggregation, "__call__", lambda right: _combined(right, hit)),
        (Groups, "fold_partials", lambda right: _taken_in(right, hit)),
    ]
    with ExitStack() as stack:
        for name, few in (("_ROWS_MIN", 2), ("_LISTS", 1), ("_PAUSE", 0), ("_WORTH", 1)):
            stack.enter_context(patch.object(pre_aggregation, name, few))
        for place, name, watch in watches:
            stack.enter_context(patch.object(place, name, watch(getattr(place, name))))
        yield


def _moved(right: Any, hit: Hit) -> Any:
    def collect(state: Any, keys: Any) -> Any:
        taken = right(state, keys)
        if taken is not None:
            hit("state of columns moved")
        return taken

    return collect


def _restored(right: Any, hit: Hit) -> Any:
    def take_in(state: Any, image: Any, how: str) -> Any:
        taken = right(state, image, how)
        if taken and len(image.keys) and how.startswith("restored"):
            hit("restored as columns")
        return taken

    return take_in


def _written(right: Any, hit: Hit) -> Any:
    def written(state: Any, keys: Any, *, is_full: bool) -> Any:
        made = right(state, keys, is_full=is_full)
        if made is not None and not is_full and len(state.values):
            hit("delta of columns")
        return made

    return written


def _largest_set(right: Any, hit: Hit) -> Any:
    def put(lane: Any, ids: Any, arrays: Any) -> Any:
        hit("largest taken in as columns")
        return right(lane, ids, arrays)

    return put


def _table_put(right: Any, hit: Hit) -> Any:
    def put(table: Any, image: Any) -> Any:
        held = right(table, image)
        if len(table):
            hit("table taken in as columns")
        if len(table.sides[0]):
            hit("waiting rows taken in as columns")
        return held

    return put


def _figures_as_rows(right: Any, hit: Hit) -> Any:
    def to_rows(state: KeyedState, **options: bool) -> None:
        if isinstance(state.values, FigureStates) and len(state.values):
            hit("figures gone back to rows")
        right(state, **options)

    return to_rows


def _pane_as_rows(right: Any, hit: Hit) -> Any:
    def rows_at(panes: Any, pane: int) -> Any:
        if isinstance(panes.open.get(pane), Groups):
            hit("pane gone back to rows")
        return right(panes, pane)

    return rows_at


def _combined(right: Any, hit: Hit) -> Any:
    def combine(step: Any, batch: Any) -> Any:
        made = right(step, batch)
        if made is not batch:
            hit("partials sent (F5)" if isinstance(batch, ColumnBatch) else "partials of rows sent (F5)")
        return made

    return combine


def _taken_in(right: Any, hit: Hit) -> Any:
    def fold_partials(groups: Any, *given: Any) -> Any:
        hit("partials taken in")
        return right(groups, *given)

    return fold_partials
