"""Running figures of many keys as arrays: `Groups` holds, by the id of a key, the states of a list of aggregations.

Rule: results and states are those of the row path, to the bit and in type. What arrays cannot do likewise (a sum beyond
62 bits, None where it is an error, an int among floats, a Decimal) raises `NotColumnar` before anything has changed;
the caller then takes `Groups.states` into a dict and continues with rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.agg import Aggregation
from malstrom_py.state import group_kernels
from malstrom_py.state.column_image import Shape as StoredShape
from malstrom_py.state.group_index import GroupedRows, GroupIndex, NotColumnar, keys_as_columns, listed_keys
from malstrom_py.state.group_lanes import CAPACITY
from malstrom_py.state.group_values import Array, Values, longer, swept
from malstrom_py.state.kept_lanes import LANES, lane_of
from malstrom_py.state.key_symbols import SymbolIndex

if TYPE_CHECKING:
    import pyarrow as pa

_COMPACT_FROM: Final = 4096

_TOGETHER: Final = 1 << 16
"""As many keys are Python objects at a time."""


class Groups:
    """The states of ``aggregations`` by key. One Arrow column of values per aggregation; None for a plain count.

    >>> import pyarrow as pa
    >>> from malstrom_py import agg
    >>> groups = Groups([agg.count(), agg.sum("price")])
    >>> groups.fold(pa.array(["ann", "bob", "ann"]), [None, pa.array([3, 5, 4])])
    >>> keys, (counts, sums) = groups.finish()
    >>> keys.to_pylist(), counts.to_pylist(), sums.to_pylist()
    (['ann', 'bob'], [2, 1], [7, 5])
    >>> [column.to_pylist() for column in groups.scan(pa.array(["bob", "bob"]), [None, pa.array([1, 1])])]
    [[2, 3], [6, 7]]
    >>> evening = Groups([agg.count(), agg.sum("price")])
    >>> evening.fold(pa.array(["eve", "ann"]), [None, pa.array([8, 9])])
    >>> day = Groups.merged([groups, evening])
    >>> day.keys().to_pylist(), day.states()                          # per aggregation, by key
    (['ann', 'bob', 'eve'], [[3, 3, 1], [16, 7, 8]])

    ``fold`` adds rows; ``scan`` adds them and returns, per aggregation, the result after each row; ``merged``
    adds what comes after in others; ``finish`` returns keys and results; ``states``, ``put`` and ``take`` exchange
    states with the row path. ``changed`` has a flag per id, set by what adds; who tracks changes clears it.

    Raises:
        NotColumnar: at construction, if an aggregation has no arrays; of ``fold``, ``scan``, ``merged`` and ``put``,
            if rows must do it: nothing has changed then.
    """

    __slots__ = ("_lanes", "_live", "_slots", "aggregations", "changed", "index")

    def __init__(
        self, aggregations: Sequence[Aggregation[Any, Any]], index: GroupIndex | SymbolIndex | None = None
    ) -> None:
        import numpy as np

        self.aggregations = aggregations
        self.index = GroupIndex() if index is None else index
        self._lanes = [lane_of(one) for one in aggregations]
        self._live = np.zeros(CAPACITY, np.bool_)
        self.changed = np.zeros(CAPACITY, np.bool_)
        self._slots = np.zeros(0, np.int32)  # by id: the slot of the key and 1; 0: unknown

    @staticmethod
    def supports(aggregations: Sequence[Aggregation[Any, Any]]) -> bool:
        """Return whether all of ``aggregations`` have arrays."""
        return all(one.arrays in LANES for one in aggregations)

    def __len__(self) -> int:
        return int(self._live[: len(self.index)].sum())

    def fold(self, keys: pa.Array, columns: Sequence[pa.Array | None]) -> None:
        """Add rows: ``keys`` and, per aggregation, a column of as many values."""
        self.add(*self.prepared(keys, columns))

    def add(self, rows: GroupedRows, values: Sequence[Values | None]) -> None:
        """Add what `prepared` returned: nothing fails."""
        self._add(rows, values, each=False)

    def _add(self, rows: GroupedRows, values: Sequence[Values | None], *, each: bool) -> list[Any]:
        results = [lane.add(rows, of_lane, each=each) for lane, of_lane in zip(self._lanes, values, strict=True)]
        self._mark(rows.touched)
        return results

    def scan(self, keys: pa.Array, columns: Sequence[pa.Array | None]) -> list[pa.Array]:
        """Add rows, as `fold`. Per aggregation return the result after each row."""
        return self._add(*self.prepared(keys, columns), each=True)

    @staticmethod
    def merged(parts: Sequence[Groups]) -> Groups:
        """Return the states of ``parts``, at least one, merged by key; the rows of each came before those of the next.

        Raises:
            NotColumnar: a state of several does not fit arrays. ``parts`` are unchanged.
        """
        made = Groups(parts[0].aggregations, parts[0].index.fresh())
        ids = made._grown(_joined([part.index.raw(part.live()) for part in parts])).ids
        start = 0
        for part in parts:
            theirs = part.live()
            of_part = ids[start : start + len(theirs)]
            start += len(theirs)
            for lane, other in zip(made._lanes, part._lanes, strict=True):
                lane.merge(other, of_part, theirs)
        made._mark(ids)
        return made

    @property
    def is_exact(self) -> bool:
        """Whether the states do not depend on the order of the rows, nor on how they are cut into parts."""
        return all(lane.is_exact for lane in self._lanes)

    def partials(self) -> list[pa.Array]:
        """Return all states as columns, for `fold_partials`."""
        return self.columns(self.live())

    def fold_partials(self, keys: Any, columns: Sequence[pa.Array]) -> None:
        """Add states that `partials` returned: ``keys`` and states, one per row. Raises like `fold`."""
        of_lanes = list(zip(self._lanes, self._of_lanes(columns), strict=True))
        rows, values = self._checked(keys, [lane.partial_values(some) for lane, some in of_lanes])
        for lane, of_lane in zip(self._lanes, values, strict=True):
            lane.fold_partials(rows, of_lane)
        self._mark(rows.touched)

    def partial_states(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """Return per aggregation the states in ``columns`` of `partials`, as the row path holds them."""
        return [lane.states_in(some) for lane, some in zip(self._lanes, self._of_lanes(columns), strict=True)]

    def _of_lanes(self, columns: Sequence[pa.Array]) -> list[list[pa.Array]]:
        """Return per aggregation those of `columns` that are its own."""
        left, nothing = iter(columns), self.live()[:0]
        return [list(islice(left, len(lane.columns(nothing)))) for lane in self._lanes]

    def live(self) -> Array:
        """Return the ids of the keys that have states, ascending."""
        import numpy as np

        return np.flatnonzero(self._live[: len(self.index)])

    def keys(self, ids: Array | None = None) -> pa.Array:
        """Return the keys of ``ids``, None: of all that have states, in the order of ids."""
        if ids is None:
            live: Any = self.live()
            return self.index.keys() if len(live) == len(self.index) else self.index.keys(live)
        return self.index.keys(ids)

    def find(self, keys: pa.Array) -> Array:
        """Return the id of each of ``keys``; -1 of those without states. `NotColumnar` as of `GroupIndex.find`."""
        import numpy as np

        ids = self.index.find(keys)
        found = ids >= 0
        found[found] = self._live[ids[found]]
        return np.where(found, ids, -1)

    def finish(self, ids: Array | None = None) -> tuple[pa.Array, list[pa.Array]]:
        """Return the keys of ``ids``, None: of all, and per aggregation their results."""
        at = self.live() if ids is None else ids
        return self.keys(ids), [lane.finish(at) for lane in self._lanes]

    def ids(self, keys: pa.Array) -> Array:
        """Return the ids of ``keys``, which get one if they have none."""
        return self._grown(keys).ids

    def is_live(self, ids: Array) -> Array:
        """Return whether each of ``ids`` has a state."""
        return self._live[ids]

    def results(self, ids: Array) -> list[pa.Array]:
        """Return per aggregation the results of ``ids``, of those without a state what it begins with."""
        return [lane.finish(ids) for lane in self._lanes]

    def undo(self, ids: Array) -> Callable[[], None]:
        """Return what gives ``ids`` back the states that they have now, before rows do the rest."""
        import numpy as np

        which = np.unique(ids)
        kept = [(lane, name, getattr(lane, name)[which]) for lane in self._lanes for name in lane.fields()]
        live, changed = self._live[which], self.changed[which]

        def restore() -> None:
            for lane, name, values in kept:
                getattr(lane, name)[which] = values
            self._live[which], self.changed[which] = live, changed

        return restore

    def states(self, ids: Array | None = None) -> list[list[Any]]:
        """Return per aggregation the states of ``ids``, None: of all, as the row path holds them."""
        at = self.live() if ids is None else ids
        return [lane.states(at) for lane in self._lanes]

    def arrivals(self, ids: Array) -> list[list[int | None]]:
        """Return per aggregation when what ``ids`` keep has arrived; None for what does not depend on that."""
        return [lane.arrivals(ids) for lane in self._lanes]

    def put(
        self, keys: Sequence[Any], states: Sequence[Sequence[Any]], arrivals: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Set the states of Python ``keys``, which differ: per aggregation one state for each.

        ``arrivals``: as of the method, where the order of arrival counts.
        """
        column = keys_as_columns(keys)
        arrays = [lane.arrays_of(list(of_lane)) for lane, of_lane in zip(self._lanes, states, strict=True)]
        ids = self._grown(column).ids
        for lane, of_lane in zip(self._lanes, arrays, strict=True):
            lane.set(ids, of_lane)
        for lane, of_keys in zip(self._lanes, arrivals or (), strict=arrivals is not None):
            lane.set_arrivals(ids, of_keys)
        self._mark(ids)

    def begin(self, keys: pa.Array, states: Sequence[Any]) -> None:
        """Let those of ``keys`` without a state begin with one: per aggregation a constant, None: with nothing.

        They have none before something is added.
        """
        if all(state is None for state in states):
            return
        rows = self._grown(keys)
        ids = rows.which[~self._live[rows.which]]
        for lane, state in zip(self._lanes, states, strict=True):
            if state is not None and len(ids):
                lane.set(ids, lane.arrays_of([state] * len(ids)))

    def columns(self, ids: Array) -> list[pa.Array]:
        """Return the states of ``ids`` as columns, of which `stored_shapes` make the states of the row path."""
        return [column for lane in self._lanes for column in lane.columns(ids)]

    def stored_shapes(self) -> list[StoredShape]:
        """Return per aggregation the shape of its states in `columns`."""
        shapes, first = [], 0
        nothing = self.live()[:0]
        for lane in self._lanes:
            shapes.append(lane.shape(first))
            first += len(lane.columns(nothing))
        return shapes

    def put_columns(self, keys: pa.Array, columns: Sequence[pa.Array]) -> pa.Array:
        """Set the states of ``keys``, which differ, to what `columns` returned.

        Return those of the keys that have states already: then nothing is set.
        """
        import pyarrow as pa

        of_lanes = zip(self._lanes, self._of_lanes(columns), strict=True)
        arrays = [lane.arrays_of_columns(some) for lane, some in of_lanes]
        ids = self._grown(keys).ids
        held = keys.filter(pa.array(self._live[ids]))
        if not len(held):
            for lane, of_lane in zip(self._lanes, arrays, strict=True):
                lane.set(ids, of_lane)
            self._mark(ids)
        return held

    def slots(self, ids: Array, slots_of: Callable[[Sequence[Any]], Sequence[int]]) -> Array:
        """Return the slots of the keys of ``ids``. ``slots_of`` is called for each key once; it is always the same."""
        import numpy as np

        if len(self._slots) < len(self._live):
            self._slots = longer(self._slots, len(self._live), 0)
        unknown = ids[self._slots[ids] == 0]
        for start in range(0, len(unknown), _TOGETHER):
            some = unknown[start : start + _TOGETHER]
            self._slots[some] = np.array(slots_of(listed_keys(self.keys(some))), np.int32) + 1
        return self._slots[ids].astype(np.int64) - 1

    def in_slots(
        self, wanted: Collection[int], slots_of: Callable[[Sequence[Any]], Sequence[int]]
    ) -> tuple[pa.Array, Array]:
        """Return the keys with state in ``wanted`` slots, and the slot of each. ``slots_of`` as of `slots`."""
        import numpy as np

        ids = self.live()
        slots = self.slots(ids, slots_of)
        there = np.isin(slots, list(wanted))
        return self.keys(ids[there]), slots[there]

    def flag_all(self) -> None:
        """Set ``changed`` for all keys with states."""
        self.changed = self._live.copy()

    def sweep(self, keys_max: int) -> Iterator[Array]:
        """Clear ``changed``, and yield the ids that had it, ``keys_max`` together, as `swept` does."""
        index = self.index
        return swept(lambda: self.changed if self.index is index else None, len(index), keys_max)

    def take(self, ids: Array) -> None:
        """Drop the states of ``ids``. Ids may change."""
        for lane in self._lanes:
            lane.clear(ids)
        self._live[ids] = False
        self.changed[ids] = False
        self._compact()

    def prepared(self, keys: pa.Array, columns: Sequence[pa.Array | None]) -> tuple[GroupedRows, list[Values | None]]:
        """Do of `fold` all that may refuse: afterwards nothing can fail."""
        return self._checked(keys, [lane.values(column) for lane, column in zip(self._lanes, columns, strict=True)])

    def _checked(self, keys: Any, values: list[Values | None]) -> tuple[GroupedRows, list[Values | None]]:
        rows = self._grown(keys)
        for lane, of_lane in zip(self._lanes, values, strict=True):
            lane.check(rows, of_lane)
        return rows, values

    def _grown(self, keys: pa.Array) -> GroupedRows:
        import numpy as np

        rows = self.index.group(keys)
        if len(self.index) > len(self._live):
            capacity = 2 * len(self.index)
            self._live = longer(self._live, capacity, np.False_)
            self.changed = longer(self.changed, capacity, np.False_)
            for lane in self._lanes:
                lane.grow(capacity)
        return rows

    def _mark(self, ids: Array) -> None:
        group_kernels.mark(ids, self._live, self.changed)

    def _compact(self) -> None:
        """Forget keys without states, once most are: the cost per key taken stays constant."""
        n, live = len(self.index), self.live()
        if n < _COMPACT_FROM or 2 * len(live) > n:
            return
        keys = self.index.raw(live)
        self.index = self.index.fresh()
        self.index.group(keys)
        self._live = self._live[live]
        self.changed = self.changed[live]
        self._slots = self._slots[:0]
        for lane in self._lanes:
            lane.pick(live)


def _joined(keys: list[Any]) -> Any:
    """Join what `GroupIndex.raw` or `SymbolIndex.raw` returned. `NotColumnar` if it is of several types."""
    import numpy as np
    import pyarrow as pa

    if isinstance(keys[0], np.ndarray):
        return np.concatenate(keys)
    if len({of_part.type for of_part in keys}) > 1:
        raise NotColumnar("keys of several types")
    return pa.concat_arrays(keys)
