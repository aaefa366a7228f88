"""The panes of sliding windows whose results depend on the order of arrival: `RunPanes`.

A pane holds, per key, runs: what records have gathered that arrived one after the other. The runs of a key are numbered
over all its panes, and those of a window are merged by their numbers. Rules: a record that arrives after one in another
pane starts a run, so a run is the same however batches are cut and keys move. What is merged or sent is a copy, for a
user's function may change what it is given, and the next window has the same run.

Columns are kept in arrays where only the first or last value depends on the order: of each the arrays have the number
of its row. Rule: either all panes are arrays or all are dicts, and as a mapping both are runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from malstrom_py.agg import Aggregation
from malstrom_py.operators.panes import Pane, Panes
from malstrom_py.state.column_image import ColumnImage
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.groups import Groups
from malstrom_py.state.key_symbols import Symbols

if TYPE_CHECKING:
    import pyarrow as pa

_ORDER_FREE: Final = frozenset({"count", "sum", "min", "max", "mean"})
"""Of other values than floats, these are the same in any order; of floats, also "count"."""

_MANY: Final = 16
"""So many rows of one pane in a row are taken key by key."""

UNNUMBERED: Final = -1
"""The number of a run from a snapshot without numbers; of several, those of earlier panes come first."""


class Rows(NamedTuple):
    """The runs of some rows. ``runs``: of each row, as a name; ``places``: of each run its key, number and pane;
    ``states``: what the runs that continue have gathered.
    """

    runs: Sequence[Any]
    places: dict[Any, tuple[Any, int, int]]
    states: dict[Any, Any]


class RunPanes(Panes):
    """``open`` is pane -> key -> number, state, number, state … As a mapping: key -> {(pane, number): state}.

    ``own`` copies a state. ``aggregations``: as of `Panes`, if `in_columns`; `fold_all` and `set_many` then use arrays.

    >>> panes = RunPanes(own=list)
    >>> for keys, starts, values in ((["ant", "ant"], [0, 10], [1, 2]), (["ant"], [0], [3])):
    ...     rows = panes.runs_of(keys, starts)
    ...     for run, value in zip(rows.runs, values):
    ...         rows.states.setdefault(run, []).append(value)
    ...     panes.put(rows)
    >>> panes["ant"]
    {(0, 0): [1], (0, 2): [3], (10, 1): [2]}
    >>> panes.merged([0, 10], lambda earlier, later: earlier + later)
    {'ant': [1, 2, 3]}
    """

    __slots__ = ("_arrived", "_held", "_latest", "_own")

    def __init__(
        self,
        aggregations: Sequence[Aggregation[Any, Any]] = (),
        *,
        own: Callable[[Any], Any],
        single: bool = True,
        note: Callable[[pa.Array], None] = lambda keys: None,
    ) -> None:
        super().__init__(aggregations, single=single, note=note)
        self._held = cast("dict[int, dict[Any, list[Any]]]", self.open)
        self._own = own
        self._latest: dict[Any, tuple[int | None, int]] = {}
        self._arrived = 0
        """More than the numbers of all runs in arrays."""

    @staticmethod
    def in_columns(aggregations: Sequence[Aggregation[Any, Any]]) -> bool:
        """Return whether arrays can hold what ``aggregations`` gather, of most columns."""
        return all(one.arrays in _ORDER_FREE or one.arrays in ("first", "last") for one in aggregations)

    @property
    def in_arrays(self) -> bool:
        """False: runs are stored as rows."""
        return False

    # Columns

    def fold_all(self, rows: int, spans: Iterable[tuple[int, Symbols, Any, Sequence[pa.Array | None]]]) -> bool:
        """Add the ``rows`` of a batch, by pane: the numbers of their keys, their places in the batch, and a column per
        aggregation. False: nothing has changed, and rows must do it.
        """
        if self._rows_only:
            return False
        try:
            self._to_arrays()
            prepared, touched = [], dict[int, Groups]()
            for pane, symbols, places, columns in spans:
                for one, column in zip(self._aggregations, columns, strict=True):
                    _check_order_free(one, column)
                groups = touched.setdefault(pane, self._groups_at(pane))
                of_pane = groups.prepared(symbols, columns)
                of_pane[0].arrived = places + self._arrived
                prepared.append((groups, of_pane))
        except NotColumnar:
            return False
        self._arrived += rows
        for groups, of_pane in prepared:
            groups.add(*of_pane)
        self.open.update(touched)
        return True

    def _groups_at(self, pane: int) -> Groups:
        there = self.open.get(pane)
        return there if isinstance(there, Groups) else self._groups()

    def _to_arrays(self) -> None:
        """Make arrays of all dicts; `NotColumnar` if one does not fit: then nothing has changed."""
        made = {pane: self._grouped(there) for pane, there in self.open.items() if isinstance(there, dict)}
        for groups in made.values():
            groups.changed[:] = False  # of a dict they have been noted
        self.open.update(made)
        self._latest.clear()

    def _put(self, groups: Groups, states: Mapping[Any, Any]) -> None:
        merged, arrivals = [], []
        for runs in states.values():
            numbers, of_runs = zip(*sorted(zip(runs[::2], runs[1::2], strict=True), key=itemgetter(0)), strict=True)
            of_ones = [of_runs] if self._single else list(zip(*of_runs, strict=True))
            merged.append([_merged(one, of_one) for one, of_one in zip(self._aggregations, of_ones, strict=True)])
            arrivals.append([_arrival(one, of, numbers) for one, of in zip(self._aggregations, of_ones, strict=True)])
            self._arrived = max(self._arrived, numbers[-1] + 1)
        groups.put(list(states), list(zip(*merged, strict=True)), list(zip(*arrivals, strict=True)))

    def to_rows(self, fixed: Iterable[int] = ()) -> None:
        """Make dicts of all arrays. The panes of ``fixed`` stay so, and as long as they do no other becomes arrays."""
        self._rows_only.update(fixed)
        for pane, groups in self._arrays():
            self._note(groups.keys(groups.changed.nonzero()[0]))
            self.open[pane] = self.as_dict(groups)

    def _states(self, groups: Groups, ids: Any = None) -> list[Any]:
        """Return runs as a dict has them: one for each row of which something is kept."""
        at = groups.live() if ids is None else ids
        absent = [one.init() for one in self._aggregations]
        found = []
        for states, arrivals in zip(
            zip(*groups.states(at), strict=True), zip(*groups.arrivals(at), strict=True), strict=True
        ):
            numbers = sorted({number for number in arrivals if number is not None}) or [UNNUMBERED]
            runs: list[Any] = []
            for number in numbers:
                kept = [number if arrived is None and number == numbers[0] else arrived for arrived in arrivals]
                run = [state if at == number else none for state, at, none in zip(states, kept, absent, strict=True)]
                runs += (number, run[0] if self._single else run)
            found.append(runs)
        return found

    # Rows

    def runs_of(self, keys: Sequence[Any], panes: Sequence[int]) -> Rows:
        """Return the runs of rows that arrive now, in their order, and that are in ``panes``."""
        self.to_rows()
        latest, runs, places = self._latest, list[Any](), dict[Any, tuple[Any, int, int]]()
        for key, pane in zip(keys, panes, strict=True):
            last = latest.get(key)
            if last is None or last[0] != pane:
                last = latest[key] = self._next(key, pane)
            run = (key, last[1])
            runs.append(run)
            places[run] = (key, last[1], pane)
        return Rows(runs, places, self._states_of(places))

    def runs_in(self, pane: int, keys: Sequence[Any]) -> Rows:
        """Do as `runs_of`, for rows that are all in ``pane``: one run per key."""
        self.to_rows()
        latest, places = self._latest, dict[Any, tuple[Any, int, int]]()
        for key in dict.fromkeys(keys):
            last = latest.get(key)
            if last is None or last[0] != pane:
                last = latest[key] = self._next(key, pane)
            places[key] = (key, last[1], pane)
        return Rows(keys, places, self._states_of(places))

    def _next(self, key: Any, pane: int) -> tuple[int, int]:
        """Return ``pane``, and the number of the run of ``key`` that a record continues there, or starts."""
        last = self._latest.get(key) or self._last_of(key)
        return pane, last[1] + (last[0] != pane)

    def _states_of(self, places: dict[Any, tuple[Any, int, int]]) -> dict[Any, Any]:
        states = {}
        for run, (key, number, pane) in places.items():
            there = self._held.get(pane)
            known = None if there is None else there.get(key)
            if known and known[-2] == number:
                states[run] = known[-1]
        return states

    def put(self, rows: Rows) -> None:
        """Set what the runs of ``rows`` have gathered; one that has no state is none."""
        states = rows.states
        for run, (key, number, pane) in rows.places.items():
            if run not in states:
                self._latest.pop(key, None)
                continue
            there = self._held.get(pane)
            if there is None:
                there = self._held[pane] = {}
            known = there.get(key)
            if known is None:
                there[key] = [number, states[run]]
            elif known[-2] == number:
                known[-1] = states[run]
            else:
                known += (number, states[run])

    def _last_of(self, key: Any) -> tuple[int | None, int]:
        """Return the pane and the number of the last run of ``key``."""
        last: tuple[int | None, int] = (None, UNNUMBERED)
        for pane in sorted(self._held):
            known = self._held[pane].get(key)
            if known and known[-2] >= last[1]:
                last = (pane, known[-2])
        return last

    def pop_pane(self, pane: int) -> Pane:
        latest = self._latest
        for key in self._held[pane] if latest else ():
            if key in latest and latest[key][0] == pane:
                del latest[key]
        return super().pop_pane(pane)

    def _merged_rows(
        self, panes: Sequence[int], merge: Callable[[Any, Any], Any], keys: Collection[Any] | None
    ) -> dict[Any, Any]:
        self.to_rows()
        of_keys: dict[Any, list[tuple[int, int, Any]]] = {}
        for pane in panes:
            there = self._held[pane]
            for key in there if keys is None else filter(there.__contains__, keys):
                known = there[key]
                if key in of_keys:
                    of_keys[key] += _numbered(known, pane)
                else:
                    of_keys[key] = _numbered(known, pane)
        own = self._own
        states = {}
        for key, runs in of_keys.items():
            if len(runs) == 1:
                states[key] = own(runs[0][2])
            else:
                runs.sort(key=_order)
                states[key] = reduce(merge, [own(state) for _, _, state in runs])
        return states

    # The mapping

    def many(self, keys: Sequence[Any]) -> list[Any]:
        found: list[dict[tuple[int, int], Any]] = [{} for _ in keys]
        for pane, there in sorted(self.open.items(), key=itemgetter(0)):
            for place, runs in self._found(there, keys):
                found[place].update(((pane, number), state) for number, _, state in _numbered(runs, pane))
        return [states or None for states in found]

    def take(self, keys: Sequence[Any]) -> list[Any]:
        for key in keys:
            self._latest.pop(key, None)
        return super().take(keys)

    def set_many(self, keys: Iterable[Any], values: Iterable[Mapping[Any, Any]]) -> None:
        of_panes: dict[int, dict[Any, list[Any]]] = {}
        for key, of_key in zip(keys, values, strict=True):
            self._latest.pop(key, None)
            for where, state in of_key.items():
                pane, number = where if isinstance(where, tuple) else (where, UNNUMBERED)
                of_panes.setdefault(pane, {}).setdefault(key, []).extend((number, state))
        if self._arrays():
            try:
                for pane, states in of_panes.items():
                    groups = self.open[pane] = self._groups_at(pane)
                    self._put(groups, states)
                return
            except NotColumnar:
                self.to_rows()
        for pane, states in of_panes.items():
            self._held.setdefault(pane, {}).update(states)

    def put_image(self, image: ColumnImage) -> pa.Array:
        raise NotColumnar("runs are stored as rows")

    def clear(self) -> None:
        super().clear()
        self._latest.clear()


_order = itemgetter(0, 1)


def _check_order_free(one: Aggregation[Any, Any], column: pa.Array | None) -> None:
    """Raise `NotColumnar` if parts of ``column`` may give other results in another order."""
    import pyarrow as pa

    if column is None or one.arrays not in _ORDER_FREE or one.arrays == "count":
        return
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_floating(kind):
        raise NotColumnar("floats, whose sum depends on the order")


def _merged(one: Aggregation[Any, Any], states: Sequence[Any]) -> Any:
    """Return ``states`` in one, which arrays may hold."""
    merged = reduce(one.merge, states)
    total = merged[1] if one.arrays == "mean" and merged else merged
    if one.arrays in _ORDER_FREE and isinstance(total, float):
        raise NotColumnar("floats, whose sum depends on the order")
    return merged


def _arrival(one: Aggregation[Any, Any], states: Sequence[Any], numbers: Sequence[int]) -> int:
    """Return the number of the run of which the first or last value is kept; any, if there is none."""
    if one.arrays == "last":
        states, numbers = states[::-1], numbers[::-1]
    return next((number for state, number in zip(states, numbers, strict=True) if state), UNNUMBERED)


def _numbered(known: Sequence[Any], pane: int) -> list[tuple[int, int, Any]]:
    """Return the number, the pane and the state of each run of a key in ``pane``."""
    if len(known) == 2:
        return [(known[0], pane, known[1])]
    return list(zip(known[::2], repeat(pane), known[1::2], strict=False))


def stretches(panes: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """Cut rows into stretches of one pane, or of several that alternate: first row, row after the last, whether of one.

    >>> [*stretches([0] * 20 + [10, 0, 10] + [10] * 19)]
    [(0, 20, True), (20, 22, False), (22, 42, True)]
    """
    begin = place = 0
    for _, same in groupby(panes):
        end = place + len(list(same))
        if end - place >= _MANY:
            if begin < place:
                yield begin, place, False
            yield place, end, True
            begin = end
        place = end
    if begin < place:
        yield begin, place, False
