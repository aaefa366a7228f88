"""The states of running figures by key, as a mapping over `Groups`, so that all that handles keyed state works on it.

Rule: the mapping is what the dict of the row path would be, also in which keys are found (1.0 finds 1). What arrays do
not hold raises `NotColumnar`; `KeyedState.to_rows` then makes the dict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

from malstrom_py.agg import Aggregation
from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.column_image import ColumnImage
from malstrom_py.state.column_image import Shape as StoredShape
from malstrom_py.state.group_index import GroupIndex, NotColumnar, ids_of
from malstrom_py.state.group_values import Array
from malstrom_py.state.groups import Groups
from malstrom_py.state.many_values import ArrayValues

if TYPE_CHECKING:
    import pyarrow as pa


class Shape(NamedTuple):
    """How the state of a key is made of the states of its aggregations: ``join`` and its inverse ``split``, for many.

    Both work by column: a list per aggregation, and a list of states. ``split`` raises `NotColumnar` if a state has
    another shape. ``stored`` is the shape in an image of columns, made of those of the aggregations.
    """

    join: Callable[[list[list[Any]]], list[Any]]
    split: Callable[[list[Any]], list[list[Any]]]
    stored: Callable[[list[StoredShape]], StoredShape]


def shape_of_one() -> Shape:
    """Return the shape of steps with one figure: its state."""
    return Shape(lambda columns: columns[0], lambda states: [states], lambda shapes: shapes[0])


def shape_of_many(width: int) -> Shape:
    """Return the shape of steps with ``width`` figures: a tuple of their states.

    >>> shape = shape_of_many(2)
    >>> shape.join([[1, 2], [3.0, 4.0]]), shape.split([(1, 3.0), (2, 4.0)])
    ([(1, 3.0), (2, 4.0)], [[1, 2], [3.0, 4.0]])
    """

    def split(states: list[Any]) -> list[list[Any]]:
        if any(type(state) is not tuple or len(state) != width for state in states):
            raise NotColumnar("a state that is not a tuple of figures")
        return [[state[place] for state in states] for place in range(width)]

    return Shape(lambda columns: list(zip(*columns, strict=True)), split, tuple)


def shape_of_records(names: Sequence[str]) -> Shape:
    """Return the shape of the last record of a key, in a tuple: a dict with the fields ``names``, each an `agg.last`.

    >>> shape = shape_of_records(["n", "least"])
    >>> shape.join([[(1,)], [(3,)]]), shape.split([({"n": 1, "least": 3},)])
    ([({'n': 1, 'least': 3},)], [[(1,)], [(3,)]])
    """
    fields = list(names)

    def split(states: list[Any]) -> list[list[Any]]:
        for state in states:
            if type(state) is not tuple or len(state) != 1 or type(state[0]) is not dict or list(state[0]) != fields:
                raise NotColumnar("a record with other fields")
        return [[(state[0][name],) for state in states] for name in fields]

    def join(columns: list[list[Any]]) -> list[Any]:
        rows = zip(*columns, strict=True)
        return [({name: value for name, (value,) in zip(fields, row, strict=True)},) for row in rows]

    def stored(shapes: list[Any]) -> StoredShape:
        return ({"record": {name: shape["is"][0] for name, shape in zip(fields, shapes, strict=True)}},)

    return Shape(join, split, stored)


def shape_of_fields(names: Sequence[str]) -> Shape:
    """Return the shape of a dict with the fields ``names``, each the state of an aggregation.

    >>> shape = shape_of_fields(["n", "least"])
    >>> shape.join([[1, 2], [3, 4]]), shape.split([{"n": 1, "least": 3}])
    ([{'n': 1, 'least': 3}, {'n': 2, 'least': 4}], [[1], [3]])
    """
    fields = list(names)

    def split(states: list[Any]) -> list[list[Any]]:
        if any(type(state) is not dict or list(state) != fields for state in states):
            raise NotColumnar("a state with other fields")
        return [[state[name] for state in states] for name in fields]

    def join(columns: list[list[Any]]) -> list[Any]:
        return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]

    return Shape(join, split, lambda shapes: {"record": dict(zip(fields, shapes, strict=True))})


class FigureStates(ArrayValues):
    """Key -> state, in ``groups``.

    >>> import pyarrow as pa
    >>> from malstrom_py import agg
    >>> states = FigureStates([agg.sum()], shape_of_one())
    >>> states.groups.fold(pa.array(["ann", "bob"]), [pa.array([3, 4])])
    >>> dict(states), states.pop("ann"), states.get("ann"), states.changed_keys()
    ({'ann': 3, 'bob': 4}, 3, None, ['bob'])
    >>> states["eve"] = 2**70
    Traceback (most recent call last):
    malstrom_py.state.group_index.NotColumnar: an integer beyond 64 bits
    """

    __slots__ = ("_aggregations", "_shape", "groups")

    def __init__(self, aggregations: Sequence[Aggregation[Any, Any]], shape: Shape) -> None:
        self._aggregations = aggregations
        self._shape = shape
        self.groups = Groups(aggregations)

    def live_ids(self) -> Array:
        return self.groups.live()

    def find(self, keys: pa.Array) -> Array:
        return self.groups.find(keys)

    def keys_of(self, ids: Array) -> pa.Array:
        return self.groups.keys(ids)

    def values_of(self, ids: Array) -> list[Any]:
        return self._shape.join(self.groups.states(ids))

    def drop_ids(self, ids: Array) -> None:
        self.groups.take(ids)

    def changed_ids(self) -> Array:
        import numpy as np

        ids = np.flatnonzero(self.groups.changed)
        self.groups.changed[ids] = False
        return ids

    sweeps = True

    def count_changed(self) -> int:
        import numpy as np

        return int(np.count_nonzero(self.groups.changed))

    def sweep(self, keys_max: int, *, of_all: bool) -> list[Iterator[pa.Array]]:
        groups = self.groups
        if of_all:
            groups.flag_all()
        return [map(groups.keys, groups.sweep(keys_max))]

    @property
    def in_arrays(self) -> bool:
        # No column at rest holds tuples: rows do.
        return not (isinstance(self.groups.index, GroupIndex) and self.groups.index.has_tuples)

    def image(self, keys: pa.Array | None, slots_of: SlotsOf | None) -> ColumnImage:
        import numpy as np
        import pyarrow as pa

        groups = self.groups
        if keys is None:
            ids = groups.live()
            return self._image_of(groups.keys(ids), ids, slots_of).without_absent()
        found = groups.find(keys)
        there = found >= 0
        ids, gone = found[there], keys.filter(pa.array(~there))
        gone_slots = np.array(slots_of(gone.to_pylist()) if slots_of and len(gone) else [0] * len(gone), np.int64)
        image = self._image_of(keys.filter(pa.array(there)), ids, slots_of)
        return image._replace(gone=gone, gone_slots=gone_slots).without_absent()

    def _image_of(self, keys: pa.Array, ids: Array, slots_of: SlotsOf | None) -> ColumnImage:
        groups = self.groups
        slots = groups.slots(ids, slots_of) if slots_of else ids * 0
        return ColumnImage(keys, slots, groups.columns(ids), self._shape.stored(groups.stored_shapes()))

    def in_slots(self, wanted: Collection[int], slots_of: SlotsOf) -> tuple[pa.Array, Any]:
        return self.groups.in_slots(wanted, slots_of)

    def put_image(self, image: ColumnImage) -> pa.Array:
        groups = self.groups
        if image.shape != self._shape.stored(groups.stored_shapes()) or image.panes is not None:
            raise NotColumnar("states of another shape")
        if len(image.states) != len(groups.columns(groups.live()[:0])):
            raise NotColumnar("states of another shape")
        return groups.put_columns(image.keys, image.states)

    def held(self) -> Iterable[Any]:
        states = self.values()
        held = [state is not None for state in states]
        return self if all(held) else compress(self, held)

    def set_many(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        if keys:
            self.groups.put(keys, self._shape.split(list(values)))

    def clear(self) -> None:
        self.groups = Groups(self._aggregations)

    def __len__(self) -> int:
        return len(self.groups)

    def __contains__(self, key: object) -> bool:
        return bool(ids_of(self.find, [key])[0] >= 0)  # a state may be None
