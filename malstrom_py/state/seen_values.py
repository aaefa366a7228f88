"""The values seen per key, as arrays: `SeenValues`, a mapping key -> set, so that all that handles state works on it.

A key with state has a place, in the order of arrival; a pair of place and value is one integer, which a `GroupIndex`
holds. Of 32 bits each value has a code: integers that are near each other their distance from the first one, so that
they need no index; other values an id. Rule: the mapping is what the dict of the row path would be. What
arrays do not hold raises `NotColumnar`; `KeyedState.to_rows` then makes the dict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import ColumnKind
from malstrom_py.state.group_index import GroupIndex, NotColumnar, keys_as_column, plain_keys
from malstrom_py.state.group_values import Array, longer
from malstrom_py.state.many_values import ArrayValues

if TYPE_CHECKING:
    import pyarrow as pa

_VALUE_BITS: Final = 32
_OF_VALUE: Final = (1 << _VALUE_BITS) - 1
_NEAR: Final = 1 << (_VALUE_BITS - 1)
"""The code of the first integer; 0 is that of None."""

_COMPACT_FROM: Final = 4096


class SeenValues(ArrayValues):
    """Key -> the set of values seen.

    >>> import pyarrow as pa
    >>> seen = SeenValues()
    >>> seen.add(pa.array(["ann", "bob", "ann", "ann"]), pa.array([1, 1, 1, None])).tolist()
    [0, 1, 3]
    >>> dict(seen), seen.pop("ann"), seen.changed_keys()
    ({'ann': {1, None}, 'bob': {1}}, {1, None}, ['bob'])
    >>> seen["eve"] = {2**70}
    Traceback (most recent call last):
    malstrom_py.state.group_index.NotColumnar: a key that no column holds
    """

    __slots__ = ("_changed", "_first", "_keys", "_live", "_met", "_owners", "_pairs", "_place_of", "_places", "_values")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        import numpy as np

        self._keys, self._pairs = GroupIndex(), GroupIndex()
        self._values: GroupIndex | None = None  # None: values are integers near `_first`, or None
        self._first: int | None = None
        self._places = 0  # given so far
        self._met = 0  # so many keys had ids when places were given
        self._place_of = np.full(0, -1)  # by the id of a key; -1: it has no state
        self._owners = np.zeros(0, np.int64)  # by place: the id of its key
        self._live = np.zeros(0, np.bool_)  # by place
        self._changed = np.zeros(0, np.bool_)  # by place

    def add(self, keys: pa.Array, values: pa.Array) -> Array:
        """Add rows. Return the indices of those with a value that is new to their key, ascending.

        Raises:
            NotColumnar: rows must do it; no state has changed.
        """
        import pyarrow as pa

        codes, key_ids = self._codes(values), self._keys.ids(keys)
        places = self._placed(key_ids)
        known = len(self._pairs)
        # Ids are given in the order of arrival, so the first rows of new pairs ascend.
        first: Array = self._pairs.group(pa.array((places << _VALUE_BITS) | codes)).first_rows(known)
        self._changed[places[first]] = True
        return first

    def live_ids(self) -> Array:
        return _places(self._live)

    def find(self, keys: pa.Array) -> Array:
        """Return the place of each key, -1 of those without state."""
        import numpy as np

        ids = self._keys.find(keys)
        return np.where(ids >= 0, self._place_of[ids], -1) if len(self._place_of) else np.full(len(keys), -1)

    def keys_of(self, ids: Array) -> pa.Array:
        return self._keys.keys(self._owners[ids])

    def changed_ids(self) -> Array:
        places = _places(self._changed & self._live)
        self._changed[:] = False
        return places

    @property
    def in_arrays(self) -> bool:
        return False  # no image has sets

    def clear(self) -> None:
        self._begin()

    def _codes(self, values: pa.Array) -> Array:
        """Return the code of each value. Raises like `GroupIndex.ids`."""
        if self._values is None:
            codes = self._distances(values)
            if codes is not None:
                return codes
            self._index_values()
        assert self._values is not None
        return self._values.ids(values)

    def _distances(self, values: pa.Array) -> Array | None:
        """Return how far integers are from the first one, as codes; None if the values need ids."""
        import numpy as np

        if not GroupIndex.supports(values.type):
            return None
        column, kind = plain_keys(values, None if self._first is None else ColumnKind.INT)
        nulls = column.null_count
        if nulls == len(column):
            return np.zeros(len(column), np.int64)
        if kind is not ColumnKind.INT:
            return None
        first: int = column.drop_null()[0].as_py() if self._first is None else self._first
        self._first = first
        numbers = column.fill_null(first).to_numpy()
        if int(numbers.min()) <= first - _NEAR or int(numbers.max()) >= first + _NEAR:
            return None
        codes: Array = numbers - first + _NEAR
        if nulls:
            codes[column.is_null().to_numpy(zero_copy_only=False)] = 0
        return codes

    def _values_of(self, codes: Array) -> pa.Array:
        import pyarrow as pa

        if self._values is not None:
            return self._values.keys(codes)
        if self._first is None:
            return pa.nulls(len(codes))
        return pa.array(codes - _NEAR + self._first, mask=codes == 0)

    def _index_values(self) -> None:
        """Give ids to the values from now on, also to those that are there."""
        import pyarrow as pa

        pairs = self._all_pairs()
        values = self._values_of(pairs & _OF_VALUE)
        self._values, self._pairs = GroupIndex(), GroupIndex()
        self._pairs.ids(pa.array((pairs & ~_OF_VALUE) | self._values.ids(values)))

    def _all_pairs(self) -> Array:
        import numpy as np

        pairs: Array = self._pairs.keys().to_numpy(zero_copy_only=False) if len(self._pairs) else np.zeros(0, np.int64)
        return pairs

    def _placed(self, key_ids: Any) -> Array:
        """Return the place of the key of each row, which every one has from now on."""
        import numpy as np

        if len(self._keys) > len(self._place_of):
            self._place_of = longer(self._place_of, 2 * len(self._keys), -1)
        places = self._place_of[key_ids]
        missing = key_ids[places < 0]
        if len(missing):
            first, self._met = self._met, len(self._keys)
            if missing.min() >= first:  # all of them are new, and ids are in the order of arrival
                new = np.arange(first, self._met)
            else:
                new, at = np.unique(missing, return_index=True)
                new = new[np.argsort(at)]  # in the order of arrival, also of keys that come back
            end = self._places + len(new)
            if end > len(self._live):
                self._owners = longer(self._owners, 2 * end, 0)
                self._live = longer(self._live, 2 * end, np.False_)
                self._changed = longer(self._changed, 2 * end, np.False_)
            self._place_of[new] = np.arange(self._places, end)
            self._owners[self._places : end] = new
            self._live[self._places : end] = True
            self._places = end
            places = self._place_of[key_ids]
        return places

    def values_of(self, ids: Array) -> list[set[Any]]:
        import numpy as np

        sets: list[set[Any]] = [set() for _ in ids]
        if len(ids) and len(self._pairs):
            order = np.full(self._places, -1)
            order[ids] = np.arange(len(ids))
            pairs = self._all_pairs()
            at = order[pairs >> _VALUE_BITS]
            values = self._values_of(pairs[at >= 0] & _OF_VALUE)
            for place, value in zip(at[at >= 0].tolist(), values.to_pylist(), strict=True):
                sets[place].add(value)
        return sets

    def set_many(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        import numpy as np
        import pyarrow as pa

        if any(type(seen) is not set for seen in values):
            raise NotColumnar("a state that is not a set")
        codes = self._codes(keys_as_column([value for seen in values for value in seen]))
        key_ids = self._keys.ids(keys_as_column(keys))
        there = self._place_of[key_ids[key_ids < len(self._place_of)]]
        self._drop(there[there >= 0])
        places = self._placed(key_ids)
        each = np.repeat(places, list(map(len, values)))
        self._pairs.ids(pa.array((each << _VALUE_BITS) | codes))
        self._changed[places] = True

    def drop_ids(self, ids: Array) -> None:
        """Forget places. Their pairs remain until most are of no use: the cost per key stays constant."""
        self._drop(ids)
        if self._places > _COMPACT_FROM and 2 * len(self) < self._places:
            self._compact()

    def _drop(self, places: Array) -> None:
        self._place_of[self._owners[places]] = -1
        self._live[places] = False
        self._changed[places] = False

    def _compact(self) -> None:
        import numpy as np
        import pyarrow as pa

        live, changed, owners = _places(self._live), self._changed, self._owners
        keys, pairs = self._keys.keys(), self._all_pairs()
        kept = pairs[self._live[pairs >> _VALUE_BITS]]
        values = self._values_of(kept & _OF_VALUE)
        place_of = np.zeros(self._places, np.int64)
        self._begin()
        place_of[live] = self._placed(self._keys.ids(keys.take(pa.array(owners[live]))))
        codes = self._codes(values)
        self._pairs.ids(pa.array((place_of[kept >> _VALUE_BITS] << _VALUE_BITS) | codes))
        self._changed[place_of[live]] = changed[live]


def _places(flags: Array) -> Array:
    """Return the places of the true ``flags``."""
    import numpy as np

    return np.flatnonzero(flags)
