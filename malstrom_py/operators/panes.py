"""The state of windows of time by pane: what the keys have gathered in a span of time, as a dict or as arrays.

A pane is a dict, key -> state, or the `Groups` of its rows in columns. Rule: both hold the same states, so a pane
becomes a dict when arrays cannot hold what comes (`NotColumnar`) or when rows come, and stays one until it closes; a
dict that came with a move or from a snapshot becomes arrays with the next columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from malstrom_py.agg import Aggregation
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.column_image import ColumnImage, distinct, states_of
from malstrom_py.state.column_image import Shape as StoredShape
from malstrom_py.state.group_index import NotColumnar, keys_as_columns, listed_keys
from malstrom_py.state.groups import Groups
from malstrom_py.state.key_symbols import KeySymbols, SymbolIndex, Symbols
from malstrom_py.state.many_values import ManyValues

if TYPE_CHECKING:
    import pyarrow as pa

Pane = dict[Any, Any] | Groups

_SPANS_FEW: Final = 16
"""The rows of as many spans are picked span by span, which is faster than to sort them."""

_TOGETHER: Final = 1024
"""So many keys of a pane become Python objects together."""

_SAMPLE: Final = 16
"""Of so many keys is counted in how many panes they are."""

_ROWS_MANY: Final = 1 << 15
"""With as many rows for each span, only those that are out of order are picked: more calls, but fewer copies."""


class Panes(ManyValues):
    """``open`` is pane -> its states. As a mapping: key -> {pane: state}. Its length is that of the largest pane.

    ``aggregations``: those of which arrays can hold the states, if all can; ``single``: a state is that of the only
    aggregation, otherwise a list of one per aggregation; ``note``: is called with the changed keys of arrays
    that become a dict. A batch touches few panes, so this is faster than a dict of panes for each key.

    >>> import pyarrow as pa
    >>> from malstrom_py import agg
    >>> panes = Panes([agg.count()])
    >>> numbers = panes.symbols.of(pa.array(["ant", "bee", "ant"]))
    >>> panes.fold(0, numbers, [None]), panes.fold(10, numbers[2:], [None])
    (True, True)
    >>> panes["ant"], panes.rows_at(0), len(panes)
    ({0: 2, 10: 1}, {'ant': 2, 'bee': 1}, 2)
    """

    __slots__ = ("_aggregations", "_note", "_rows_only", "_single", "open", "symbols")

    def __init__(
        self,
        aggregations: Sequence[Aggregation[Any, Any]] = (),
        *,
        single: bool = True,
        note: Callable[[pa.Array], None] = lambda keys: None,
    ) -> None:
        self.open: dict[int, Pane] = {}
        self._aggregations = aggregations
        self._single = single
        self._rows_only: set[int] = set()
        self._note = note
        self.symbols = KeySymbols()
        """The keys of all panes that are arrays, as numbers."""

    # Adding

    def fold(self, pane: int, symbols: Symbols, columns: Sequence[pa.Array | None], *, partials: bool = False) -> bool:
        """Add rows to a pane: the numbers of their keys in `symbols`, and a column per aggregation.

        ``partials``: rows and columns are of `Groups.partials`. False: nothing has changed, and rows must do it.
        """
        groups = self.open.get(pane)
        try:
            if groups is None:
                groups = self._groups()
            elif isinstance(groups, dict):
                if pane in self._rows_only:
                    return False
                groups = self._grouped(groups)
            if partials:
                groups.fold_partials(symbols, columns)
            else:
                groups.fold(symbols, columns)
        except NotColumnar:
            self._rows_only.add(pane)
            return False
        self.open[pane] = groups
        return True

    def rows_at(self, pane: int) -> dict[Any, Any]:
        """Return the dict of a pane, to add rows to it."""
        there = self.open.get(pane)
        if isinstance(there, dict) and (pane in self._rows_only or not self._aggregations):
            return there
        self._rows_only.add(pane)
        if isinstance(there, Groups):
            self._note(_changed_in(there))
        states = self.open[pane] = {} if there is None else self.as_dict(there)
        return states

    def merge_rows(
        self, pane: int, keys: Sequence[Any], columns: Sequence[pa.Array], merge: Callable[[Any, Any], Any]
    ) -> None:
        """Add partial states to the dict of a pane, one by one."""
        there = self.rows_at(pane)
        for key, state in zip(keys, self._joined(self._groups().partial_states(columns)), strict=True):
            there[key] = merge(there[key], state) if key in there else state

    # Closing

    def pop_pane(self, pane: int) -> Pane:
        """Remove a pane."""
        self._rows_only.discard(pane)
        return self.open.pop(pane)

    def forget_keys(self) -> None:
        """Forget the keys of panes that were removed, which are no longer used."""
        indexes = (pane.index for pane in self.open.values() if isinstance(pane, Groups))
        self.symbols.forget([index for index in indexes if isinstance(index, SymbolIndex)])

    def merged(
        self, panes: Sequence[int], merge: Callable[[Any, Any], Any], keys: Collection[Any] | None = None
    ) -> Pane:
        """Return the states of ``panes``, ascending, merged by key; of ``keys``, None: of all."""
        parts = [self.open[pane] for pane in panes]
        groups = [part for part in parts if isinstance(part, Groups)]
        if groups and len(groups) == len(parts) and keys is None:
            try:
                return Groups.merged(groups)
            except NotColumnar:
                """As rows."""
        return self._merged_rows(panes, merge, keys)

    def _merged_rows(
        self, panes: Sequence[int], merge: Callable[[Any, Any], Any], keys: Collection[Any] | None
    ) -> dict[Any, Any]:
        states: dict[Any, Any] = {}
        for part in [self.open[pane] for pane in panes]:
            there = self.as_dict(part)
            for key in there if keys is None else filter(there.__contains__, keys):
                state = there[key]
                states[key] = merge(states[key], state) if key in states else state
        return states

    def as_dict(self, pane: Pane) -> dict[Any, Any]:
        """Return the states of a pane by key."""
        if isinstance(pane, dict):
            return pane
        return dict(zip(listed_keys(pane.keys()), self._states(pane), strict=True))

    def as_results(self, merged: Pane) -> dict[Any, Any]:
        """Return the states of a window, which `merged` returned, by key."""
        if isinstance(merged, dict):
            return merged
        return dict(zip(listed_keys(merged.keys()), self._joined(merged.states()), strict=True))

    def changed_keys(self) -> Iterator[Any]:
        return chain.from_iterable(map(listed_keys, self.changed_columns()))

    def changed_columns(self) -> list[pa.Array]:
        return [_changed_in(groups) for _, groups in self._arrays()]

    sweeps = True

    def count_changed(self) -> int:
        import numpy as np

        return sum(int(np.count_nonzero(groups.changed)) for _, groups in self._arrays())

    def sweep(self, keys_max: int, *, of_all: bool) -> list[Iterator[pa.Array]]:
        for _, groups in self._arrays() if of_all else ():
            groups.flag_all()
        return [self._swept(pane, groups, keys_max) for pane, groups in self._arrays()]

    def _swept(self, pane: int, groups: Groups, keys_max: int) -> Iterator[pa.Array]:
        """Sweep a pane: the image of a key has all its panes, so it counts as unchanged in the others too."""
        for ids in groups.sweep(keys_max):
            if self.open.get(pane) is not groups:
                return  # all keys of a pane that was closed are noted
            keys = groups.keys(ids)
            for _, other in self._arrays():
                if other is not groups:
                    found = other.find(keys)
                    other.changed[found[found >= 0]] = False
            yield keys

    def key_column(self) -> pa.Array:
        return one_column([groups.keys() for _, groups in self._arrays()]).unique()

    def _arrays(self) -> list[tuple[int, Groups]]:
        """Return the panes in arrays."""
        return [(pane, there) for pane, there in self.open.items() if isinstance(there, Groups)]

    # As columns

    @property
    def in_arrays(self) -> bool:
        if self.symbols.has_tuples:
            return False  # no column at rest holds tuples: rows do
        return bool(self._aggregations) and not any(isinstance(there, dict) for there in self.open.values())

    def image(self, keys: pa.Array | None, slots_of: SlotsOf | None) -> ColumnImage:
        import numpy as np
        import pyarrow as pa

        parts = []
        missing = np.ones(0 if keys is None else len(keys), np.bool_)
        for pane, groups in self._arrays():
            ids = groups.live()
            if keys is not None:
                found = groups.find(keys)
                missing &= found < 0
                ids = found[found >= 0]
            slots = groups.slots(ids, slots_of) if slots_of else np.zeros(len(ids), np.int64)
            parts.append((groups.keys(ids), slots, np.full(len(ids), pane), groups.columns(ids)))
        empty = Groups(self._aggregations)
        parts.append((empty.keys(), np.zeros(0, np.int64), np.zeros(0, np.int64), empty.columns(empty.live())))
        columns = [one_column([part[3][number] for part in parts]) for number in range(len(parts[0][3]))]
        gone, gone_slots = None, None
        if keys is not None and missing.any():
            gone = keys.filter(pa.array(missing))
            gone_slots = np.array(slots_of(gone.to_pylist()) if slots_of else [0] * len(gone), np.int64)
        return ColumnImage(
            one_column([*(part[0] for part in parts), *([gone[:0]] if gone else ())]),
            np.concatenate([part[1] for part in parts]),
            columns,
            self._stored_shape(),
            pa.array(np.concatenate([part[2] for part in parts])),
            gone,
            gone_slots,
        )

    def in_slots(self, wanted: Collection[int], slots_of: SlotsOf) -> tuple[pa.Array, Any]:
        import numpy as np
        import pyarrow as pa

        parts = [groups.in_slots(wanted, slots_of) for _, groups in self._arrays()]
        keys = one_column([part for part, _ in parts])
        _, first = np.unique(distinct(keys)[1], return_index=True)
        slots = np.concatenate([np.zeros(0, np.int64), *(part for _, part in parts)])
        return keys.take(pa.array(first)), slots[first]

    def drop_keys(self, keys: pa.Array) -> None:
        for _, groups in self._arrays():
            ids = groups.find(keys)
            groups.take(ids[ids >= 0])

    def _with_states(self, keys: pa.Array) -> pa.Array:
        """Return those of ``keys`` that have a state in a pane."""
        import numpy as np
        import pyarrow as pa

        there = np.zeros(len(keys), np.bool_)
        for _, groups in self._arrays():
            there |= groups.find(keys) >= 0
        return keys.filter(pa.array(there))

    def put_image(self, image: ColumnImage) -> pa.Array:
        import numpy as np

        if image.panes is None or image.shape != self._stored_shape():
            raise NotColumnar("states of another shape")
        held = self._with_states(image.keys)
        if len(held):
            return held
        panes = image.panes.to_numpy()
        for pane in np.unique(panes).tolist():
            of_pane = image.take(np.flatnonzero(panes == pane))
            groups = self.open.setdefault(pane, self._groups())
            try:
                if isinstance(groups, Groups):
                    groups.put_columns(of_pane.keys, of_pane.states)
                    continue
            except NotColumnar:
                """As rows."""
            keys, states = states_of(of_pane._replace(panes=None))
            self.rows_at(pane).update(zip(keys, states, strict=True))
        return held

    def _stored_shape(self) -> StoredShape:
        shapes = Groups(self._aggregations).stored_shapes()
        return shapes[0] if self._single else shapes

    # The mapping

    def many(self, keys: Sequence[Any]) -> list[Any]:
        found: list[dict[int, Any]] = [{} for _ in keys]
        for pane, there in sorted(self.open.items(), key=itemgetter(0)):  # so that a state is the same however it came
            for place, state in self._found(there, keys):
                found[place][pane] = state
        return [states or None for states in found]

    def take(self, keys: Sequence[Any]) -> list[Any]:
        taken = self.many(keys)
        for pane, there in list(self.open.items()):
            if isinstance(there, dict):
                for key in keys:
                    there.pop(key, None)
            else:
                _, ids = _places(there, keys)
                there.take(ids)
            if not len(there):  # its windows may be closed
                self.pop_pane(pane)
        self.forget_keys()
        return taken

    def set_many(self, keys: Iterable[Any], values: Iterable[Mapping[int, Any]]) -> None:
        of_panes: dict[int, dict[Any, Any]] = {}
        for key, of_key in zip(keys, values, strict=True):
            for pane, state in of_key.items():
                of_panes.setdefault(pane, {})[key] = state
        for pane, states in of_panes.items():
            there = self.open.setdefault(pane, {})
            if isinstance(there, Groups):
                try:
                    self._put(there, states)
                    continue
                except NotColumnar:
                    there = self.rows_at(pane)
            there.update(states)

    @property
    def keys_about(self) -> int:
        some, panes = list(islice(self, _SAMPLE)), self.open.values()
        of_some = sum(1 for there in panes for _ in self._found(there, some))
        return sum(map(len, panes)) * len(some) // of_some if some else 0

    def objects(self, keys: Sequence[Any]) -> list[Any] | None:
        if not any(isinstance(there, dict) for there in self.open.values()):
            return None
        return list(chain.from_iterable(states.values() for states in self.many(keys)))

    def __iter__(self) -> Iterator[Any]:
        panes = [there for there in self.open.values() if len(there)]
        for there in panes[:1]:  # of which a sample is taken without a list of all
            yield from there if isinstance(there, dict) else _keys_in_turn(there)
        if panes[1:]:
            yield from islice(dict.fromkeys(chain.from_iterable(map(keys_in, panes))), len(panes[0]), None)

    def __reversed__(self) -> Iterator[Any]:
        return iter(tuple(self)[::-1])

    def __len__(self) -> int:
        return max(map(len, self.open.values()), default=0)

    def clear(self) -> None:
        self.open.clear()
        self._rows_only.clear()

    # Arrays and dicts

    def _found(self, there: Pane, keys: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the place in ``keys`` and the state of each that has one in a pane."""
        if isinstance(there, dict):
            for place, key in enumerate(keys):
                if key in there:
                    yield place, there[key]
            return
        places, ids = _places(there, keys)
        yield from zip(places, self._states(there, ids), strict=True)

    def _states(self, groups: Groups, ids: Any = None) -> list[Any]:
        """Return states as a dict has them."""
        return self._joined(groups.states(ids))

    def _joined(self, states: list[list[Any]]) -> list[Any]:
        return states[0] if self._single else [list(of_key) for of_key in zip(*states, strict=True)]

    def _groups(self) -> Groups:
        return Groups(self._aggregations, SymbolIndex(self.symbols))

    def _grouped(self, states: dict[Any, Any]) -> Groups:
        groups = self._groups()
        if states:
            self._put(groups, states)
        return groups

    def _put(self, groups: Groups, states: Mapping[Any, Any]) -> None:
        values = list(states.values())
        groups.put(list(states), [values] if self._single else list(zip(*values, strict=True)))


def one_column(columns: Sequence[pa.Array]) -> pa.Array:
    """Return ``columns`` as one. Those of nothing but None get the type of the others.

    Raises:
        NotColumnar: they have several types.
    """
    import pyarrow as pa

    if not columns:
        return pa.nulls(0)
    kinds = {column.type for column in columns if column.null_count < len(column)}
    if len(kinds) > 1:
        raise NotColumnar("columns of several types")
    (kind,) = kinds or {max((column.type for column in columns), key=lambda kind: not pa.types.is_null(kind))}
    return pa.concat_arrays([pa.nulls(len(column), kind) if column.type != kind else column for column in columns])


def _changed_in(groups: Groups) -> pa.Array:
    """Return the changed keys of a pane, and forget that they changed."""
    ids = groups.changed.nonzero()[0]
    groups.changed[ids] = False
    return groups.keys(ids)


def _keys_in_turn(groups: Groups) -> Iterator[Any]:
    ids = groups.live()
    for start in range(0, len(ids), _TOGETHER):
        yield from listed_keys(groups.keys(ids[start : start + _TOGETHER]))


def keys_in(pane: Pane) -> list[Any]:
    """Return the keys of a pane."""
    return list(pane) if isinstance(pane, dict) else listed_keys(pane.keys())


class Piece(NamedTuple):
    """Rows of a batch in the span of time that begins ``at``: from ``start`` to ``end``, or the ``places``."""

    at: int
    start: int
    end: int
    places: Any = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.end - self.start if self.places is None else len(self.places)

    def of(self, column: pa.Array | None) -> Any:
        """Return the rows of a column."""
        import pyarrow as pa

        if column is None or self.places is None:
            return None if column is None else column.slice(self.start, self.end - self.start)
        return column.take(pa.array(self.places))

    def of_array(self, array: Any) -> Any:
        """Return the rows of a numpy array."""
        if self.places is None:
            return array[self.start : self.end]
        return array[self.places] if array.strides[0] else array[: self.rows]  # all rows have one value


class Split(NamedTuple):
    """The pieces of a batch; those of a span are in the order of their rows. ``order``: how rows are taken first."""

    order: Any
    pieces: Sequence[Piece]

    def sorted(self, symbols: Any, columns: Sequence[pa.Array | None]) -> tuple[Any, list[pa.Array | None]]:
        """Return a numpy array and columns in ``order``."""
        if self.order is None:
            return symbols, list(columns)
        import pyarrow as pa

        order: Any = pa.array(self.order)
        taken = [None if column is None else column.take(order) for column in columns]
        return symbols[self.order] if symbols is not None and symbols.strides[0] else symbols, taken

    def places(self, piece: Piece) -> Any:
        """Return the places in the batch of the rows of a piece."""
        import numpy as np

        if piece.places is not None:
            return piece.places
        return np.arange(piece.start, piece.end) if self.order is None else self.order[piece.start : piece.end]


def split_by_span(times: pa.Array, span: int, origin: int, *, reach: int) -> Split | None:
    """Split rows by the spans of time from ``origin`` on; None if a moment within ``reach`` of one is beyond 64 bits.

    >>> import pyarrow as pa
    >>> split = split_by_span(pa.array([5, 12, 7, 13]), 10, 0, reach=10)
    >>> [(piece.at, split.places(piece).tolist()) for piece in split.pieces]
    [(0, [0, 2]), (10, [1, 3])]
    >>> split_by_span(pa.array([5, 7, 32]), 10, 0, reach=10).pieces  # in order: no place is computed
    [Piece(at=0, start=0, end=2, places=None), Piece(at=30, start=2, end=3, places=None)]
    """
    import numpy as np

    moments = times.to_numpy()
    smallest, largest = int(moments.min()), int(moments.max())
    if smallest - origin - reach < MIN_EPOCH or max(largest + reach, largest - smallest + span) > MAX_EPOCH:
        return None
    first, last = (smallest - origin) // span * span + origin, (largest - origin) // span * span + origin
    edges = range(first + span, last + 1, span)
    if len(edges) < len(moments) and not (moments[1:] < moments[:-1]).any():
        starts = np.searchsorted(moments, np.array(edges, np.int64)).tolist()
        rows = zip([0, *starts], [*starts, len(moments)], [first, *edges], strict=True)
        return Split(None, [Piece(at, start, end) for start, end, at in rows if start < end])
    if len(moments) < _ROWS_MANY * len(edges):
        parts = _sorted_by_span(moments, 0, span, origin)
        ends = list(accumulate(part.rows for part in parts))
        rows = zip([0, *ends], ends, parts, strict=False)
        return Split(np.concatenate([part.places for part in parts]), [Piece(part.at, *ends) for *ends, part in rows])
    pieces, row = [], 0
    for start, end in _mixed(moments, edges):
        if row < start:
            pieces.append(Piece(first + (int(moments[row]) - first) // span * span, row, start))
        if start < end:
            pieces += _sorted_by_span(moments[start:end], start, span, origin)
        row = end
    if row < len(moments):
        pieces.append(Piece(last, row, len(moments)))
    return Split(None, pieces)


def _mixed(moments: Any, edges: Iterable[int]) -> list[list[int]]:
    """Return where rows on both sides of one of ``edges`` alternate: the first row, and the row after the last one.

    Both are the same where rows are in order. There are rows before the first edge, and after the last one.
    """
    mixed: list[list[int]] = []
    for edge in edges:
        later = moments >= edge
        start, end = int(later.argmax()), len(later) - int(later[::-1].argmin())
        if mixed and start < mixed[-1][1]:
            mixed[-1][1] = end
        else:
            mixed.append([start, end])
    return mixed


def _sorted_by_span(moments: Any, row: int, span: int, origin: int) -> list[Piece]:
    """Return the pieces of rows in any order, of which the first is ``row`` in its batch: one for each span."""
    import numpy as np

    first = (int(moments.min()) - origin) // span * span + origin
    numbers, spans = (moments - first) // span, (int(moments.max()) - first) // span + 1
    if spans <= _SPANS_FEW:
        small = numbers.astype(np.uint8)
        found = [(first + number * span, np.flatnonzero(small == number) + row) for number in range(spans)]
        return [Piece(at, 0, 0, places) for at, places in found if len(places)]
    # Sorted by radix, if they are of 16 bits.
    order = np.argsort(numbers.astype(np.uint16) if spans <= 1 << 16 else numbers, kind="stable")
    numbers = numbers[order]
    starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
    begins, order = (first + numbers[starts] * span).tolist(), order + row
    return [Piece(at, 0, 0, places) for at, places in zip(begins, np.split(order, starts[1:]), strict=True)]


def _places(groups: Groups, keys: Sequence[Any]) -> tuple[Collection[int], Any]:
    """Return the places in ``keys`` of those that have a state, and their ids."""
    import numpy as np

    try:
        ids = groups.find(keys_as_columns(keys))
    except NotColumnar:  # keys of several types, of which some may be equal to those here
        known = dict(zip(listed_keys(groups.keys()), groups.live().tolist(), strict=True))
        ids = np.array([known.get(key, -1) for key in keys], np.int64)
    places = np.flatnonzero(ids >= 0)
    return places.tolist(), ids[places]
