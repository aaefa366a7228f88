"""The states of running figures by key, as a mapping over `Groups`, so that all that handles keyed state works on it.

Rule: the mapping is what the dict of the row path would be, also in which keys are found (1.0 finds 1). A state that
arrays cannot hold makes it keep a dict from then on, which `FigureStates.as_rows` returns at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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


class FigureStates(ManyValues):
    """Key -> state, in ``groups``; None once they are in a dict.

    >>> import pyarrow as pa
    >>> from malstrom_py import agg
    >>> states = FigureStates([agg.sum()], shape_of_one())
    >>> states.groups.fold(pa.array(["ann", "bob"]), [pa.array([3, 4])])
    >>> dict(states), states.pop("ann"), states.get("ann"), states.changed_keys()
    ({'ann': 3, 'bob': 4}, 3, None, ['bob'])
    >>> states["eve"] = 2**70                                  # arrays do not hold it
    >>> states.groups, states.as_rows()
    (None, {'bob': 4, 'eve': 1180591620717411303424})
    """

    __slots__ = ("_aggregations", "_left", "_rows", "_shape", "groups")

    def __init__(self, aggregations: Sequence[Aggregation[Any, Any]], shape: Shape) -> None:
        self._aggregations = aggregations
        self._shape = shape
        self._rows: dict[Any, Any] = {}
        self._left: list[Any] = []
        self.groups: Groups | None = Groups(aggregations)

    def as_rows(self) -> dict[Any, Any]:
        """Return the states as a dict, which this mapping is about from now on."""
        if self.groups is not None:
            self._rows = dict(self.items())
            self._left = self.changed_keys()
            self.groups = None
        return self._rows

    def changed_keys(self) -> list[Any]:
        groups, left = self.groups, self._left
        self._left = []
        if groups is None:
            return left
        ids = groups.live()
        ids = ids[groups.changed[ids]]
        groups.changed[ids] = False
        return [*left, *groups.keys(ids).to_pylist()]

    @property
    def in_arrays(self) -> bool:
        return self.groups is not None and not self._left

    def changed_columns(self) -> list[pa.Array]:
        groups = self._groups()
        ids = groups.live()
        ids = ids[groups.changed[ids]]
        groups.changed[ids] = False
        return [groups.keys(ids)]

    def image(self, keys: pa.Array | None, slots_of: SlotsOf) -> ColumnImage:
        import numpy as np

        groups = self._groups()
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
        groups = self._groups()
        return ColumnImage(keys, slots, groups.columns(ids), self._shape.stored(groups.stored_shapes()))

    def take_image(self, keys: pa.Array) -> ColumnImage:
        import numpy as np

        groups = self._groups()
        found = groups.find(keys)
        there = found >= 0
        ids = found[there]
        image = self._image_of(keys.filter(pa_flags(there)), ids, np.zeros(len(ids), np.int64))
        groups.take(ids)
        return image

    def in_slots(self, wanted: Collection[int], slots_of: SlotsOf) -> tuple[pa.Array, Any]:
        return self._groups().in_slots(wanted, slots_of)

    def put_image(self, image: ColumnImage) -> pa.Array:
        groups = self.groups
        if groups is None or image.shape != self._shape.stored(groups.stored_shapes()) or image.panes is not None:
            raise NotColumnar("states of another shape")
        if len(image.states) != len(groups.columns(groups.live()[:0])):
            raise NotColumnar("states of another shape")
        return groups.put_columns(image.keys, image.states)

    def _groups(self) -> Groups:
        if self.groups is None:
            raise NotColumnar("states that are in a dict")
        return self.groups

    def many(self, keys: Sequence[Any]) -> list[Any]:
        if self.groups is None:
            return list(map(self._rows.get, keys))
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
        if self.groups is None:
            return [self._rows.pop(key, None) for key in keys]
        states, found = self.many(keys), self._found(keys)
        self.groups.take(found[found >= 0])
        return states

    def held(self) -> Iterable[Any]:
        states = self.values()
        held = [state is not None for state in states]
        return self if all(held) else compress(self, held)

    def set_many(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        new = dict(zip(keys, values, strict=True))
        groups = self.groups
        if groups is not None and new:
            try:
                groups.put(list(new), self._shape.split(list(new.values())))
            except NotColumnar:
                self.as_rows().update(new)
        else:
            self._rows.update(new)

    def clear(self) -> None:
        self._left = self.changed_keys()
        self._rows = {}
        self.groups = Groups(self._aggregations)

    def __len__(self) -> int:
        return len(self._rows) if self.groups is None else len(self.groups)

    def __iter__(self) -> Iterator[Any]:
        if self.groups is None:
            return iter(self._rows)
        return self.groups.names(self.groups.live())

    def __reversed__(self) -> Iterator[Any]:
        return iter(reversed(self._rows)) if self.groups is None else self.groups.names(self.groups.live()[::-1])

    def values(self) -> Any:
        """Return the states, in the order of the keys."""
        return self._rows.values() if self.groups is None else self._states(None)

    def items(self) -> Any:
        """Return (key, state) pairs."""
        return self._rows.items() if self.groups is None else list(zip(self, self.values(), strict=True))

    def __contains__(self, key: object) -> bool:
        return key in self._rows if self.groups is None else bool(self._found([key])[0] >= 0)

    def __getitem__(self, key: Any) -> Any:
        if self.groups is None:
            return self._rows[key]
        found = self._found([key])
        if found[0] < 0:
            raise KeyError(key)
        return self._states(found)[0]

    def __setitem__(self, key: Any, state: Any) -> None:
        self.set_many([key], [state])

    def __delitem__(self, key: Any) -> None:
        if self.groups is None:
            del self._rows[key]
            return
        found = self._found([key])
        if found[0] < 0:
            raise KeyError(key)
        self.groups.take(found)

    def _states(self, ids: Any) -> list[Any]:
        return [] if self.groups is None else self._shape.join(self.groups.states(ids))

    def _found(self, keys: Sequence[Any]) -> Any:
        """Return the id of each key, -1 of those without state."""
        import numpy as np

        return np.full(len(keys), -1) if self.groups is None else ids_of(self.groups, keys)


def pa_flags(flags: Any) -> pa.Array:
    """Return a vector of flags as a column."""
    import pyarrow as pa

    return pa.array(flags)


def figure_states_of(
    states: Iterable[tuple[Any, Any]], aggregations: Sequence[Aggregation[Any, Any]], shape: Shape
) -> FigureStates:
    """Return ``states``, which change no more, as `FigureStates`. `NotColumnar` if arrays do not hold them."""
    made, rows = FigureStates(aggregations, shape), dict(states)
    if rows and made.groups is not None:
        made.groups.put(list(rows), shape.split(list(rows.values())))
        made.groups.changed[:] = False
    return made
