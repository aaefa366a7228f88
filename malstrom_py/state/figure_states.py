"""The states of running figures by key, as a mapping over `Groups`, so that all that handles keyed state works on it.

Rule: the mapping is what the dict of the row path would be, also in which keys are found (1.0 finds 1). What arrays do
not hold raises `NotColumnar`; `KeyedState.to_rows` then makes the dict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

from malstrom_py.agg import Aggregation
from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.column_image import ColumnImage
from malstrom_py.state.column_image import Shape as StoredShape
from malstrom_py.state.group_index import NotColumnar, ids_of
from malstrom_py.state.groups import Groups
from malstrom_py.state.many_values import ManyValues

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


class FigureStates(ManyValues):
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

    @classmethod
    def of(cls, states: Mapping[Any, Any], aggregations: Sequence[Aggregation[Any, Any]], shape: Shape) -> FigureStates:
        """Return ``states``, which change no more. `NotColumnar` if arrays do not hold them."""
        made = cls(aggregations, shape)
        made.set_many(list(states), list(states.values()))
        made.groups.changed[:] = False
        return made

    def _changed(self) -> Any:
        """Return the ids of the keys whose states have changed, and forget that they did."""
        groups = self.groups
        ids = groups.live()
        ids = ids[groups.changed[ids]]
        groups.changed[ids] = False
        return ids

    def changed_keys(self) -> list[Any]:
        keys: list[Any] = self.groups.keys(self._changed()).to_pylist()
        return keys

    @property
    def in_arrays(self) -> bool:
        return True

    def changed_columns(self) -> list[pa.Array]:
        return [self.groups.keys(self._changed())]

    def image(self, keys: pa.Array | None, slots_of: SlotsOf) -> ColumnImage:
        import numpy as np

        groups = self.groups
        if keys is None:
            ids = groups.live()
            return self._image_of(groups.keys(ids), ids, groups.slots(ids, slots_of)).without_absent()
        found = groups.find(keys)
        there = found >= 0
        ids, gone = found[there], keys.filter(pa_flags(~there))
        image = self._image_of(keys.filter(pa_flags(there)), ids, groups.slots(ids, slots_of))
        gone_slots = np.array(slots_of(gone.to_pylist()) if len(gone) else [], np.int64)
        return image._replace(gone=gone, gone_slots=gone_slots).without_absent()

    def _image_of(self, keys: pa.Array, ids: Any, slots: Any) -> ColumnImage:
        groups = self.groups
        return ColumnImage(keys, slots, groups.columns(ids), self._shape.stored(groups.stored_shapes()))

    def take_image(self, keys: pa.Array) -> ColumnImage:
        import numpy as np

        groups = self.groups
        found = groups.find(keys)
        there = found >= 0
        ids = found[there]
        image = self._image_of(keys.filter(pa_flags(there)), ids, np.zeros(len(ids), np.int64))
        groups.take(ids)
        return image

    def in_slots(self, wanted: Collection[int], slots_of: SlotsOf) -> tuple[pa.Array, Any]:
        return self.groups.in_slots(wanted, slots_of)

    def put_image(self, image: ColumnImage) -> pa.Array:
        groups = self.groups
        if image.shape != self._shape.stored(groups.stored_shapes()) or image.panes is not None:
            raise NotColumnar("states of another shape")
        if len(image.states) != len(groups.columns(groups.live()[:0])):
            raise NotColumnar("states of another shape")
        return groups.put_columns(image.keys, image.states)

    def many(self, keys: Sequence[Any]) -> list[Any]:
        found = self._found(keys)
        held = found >= 0
        if held.all():
            return self._states(found)
        states: list[Any] = [None] * len(keys)
        places = held.nonzero()[0].tolist()
        for place, state in zip(places, self._states(found[held]), strict=True):
            states[place] = state
        return states

    def take(self, keys: Sequence[Any]) -> list[Any]:
        states, found = self.many(keys), self._found(keys)
        self.groups.take(found[found >= 0])
        return states

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

    def __iter__(self) -> Iterator[Any]:
        return self.groups.names(self.groups.live())

    def __reversed__(self) -> Iterator[Any]:
        return self.groups.names(self.groups.live()[::-1])

    def values(self) -> Any:
        """Return the states, in the order of the keys."""
        return self._states(None)

    def items(self) -> Any:
        """Return (key, state) pairs."""
        return list(zip(self, self.values(), strict=True))

    def __contains__(self, key: object) -> bool:
        return bool(self._found([key])[0] >= 0)

    def _states(self, ids: Any) -> list[Any]:
        return self._shape.join(self.groups.states(ids))

    def _found(self, keys: Sequence[Any]) -> Any:
        """Return the id of each key, -1 of those without state."""
        return ids_of(self.groups.find, keys)


def pa_flags(flags: Any) -> pa.Array:
    """Return a vector of flags as a column."""
    import pyarrow as pa

    return pa.array(flags)
