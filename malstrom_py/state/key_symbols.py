"""The keys of several `Groups` as numbers: `KeySymbols` numbers the keys of a step once per batch, and a `SymbolIndex`
gives those of one `Groups` their ids, without a Python object per key.

Rule: a number means the same key in all indexes of a step, until `KeySymbols.forget` gives the keys that are left new
numbers; then the indexes get them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py import accelerator
from malstrom_py.data.schema import ColumnKind
from malstrom_py.state import group_kernels
from malstrom_py.state.group_index import GroupedRows, GroupIndex, NotColumnar, plain_keys

if TYPE_CHECKING:
    from malstrom_py.state.group_index import Keys

Symbols = Any
"""A vector of numbers of keys."""

_FORGET_FROM: Final = 4096
_TABLE_PER_KEY: Final = 8
_TABLE_MIN: Final = 1 << 14
"""The numbers that a table of ids spans, at most: so many per key, or so many."""


class KeySymbols:
    """The numbers of the distinct keys of columns: of integers themselves, of other keys from 0 on.

    >>> import pyarrow as pa
    >>> symbols = KeySymbols()
    >>> symbols.of(pa.array(["ann", "bob", None, "ann"])).tolist(), symbols.find(pa.array(["bob", "eve"]))[0].tolist()
    ([0, 1, 2, 0], [1, -1])
    """

    __slots__ = ("_has_integers", "_index", "_room")

    def __init__(self) -> None:
        self._index: GroupIndex | None = None
        """None: the keys are integers, or there are none yet."""
        self._has_integers = False
        self._room = _FORGET_FROM

    @property
    def has_tuples(self) -> bool:
        """Whether the keys are tuples."""
        return self._index is not None and self._index.has_tuples

    def of(self, column: Keys, *, rows: int | None = None) -> Symbols:
        """Return the number of each key of ``column``; new keys get the next ones. Raises like `GroupIndex.ids`.

        ``rows``: so many have the key of a column of one. Then the vector is of one number in memory.
        """
        import numpy as np
        import pyarrow as pa

        if rows is not None and rows > len(column):
            return np.broadcast_to(self.of(column), rows)
        if accelerator.library() is None:
            raise NotColumnar("no accelerator")
        if self._index is None and isinstance(column, pa.RecordBatch) and not self._has_integers:
            self._index = GroupIndex()
        elif self._index is None:
            plain, kind = plain_keys(column, ColumnKind.INT if self._has_integers else None)
            if kind is ColumnKind.INT and not plain.null_count:
                self._has_integers = True
                return plain.to_numpy()
            if self._has_integers:
                raise NotColumnar("None among integers")
            self._index = GroupIndex()
        return self._index.group(column).ids.astype(np.int64)  # what numpy takes places by without a conversion

    def find(self, column: Keys) -> tuple[Symbols, Any]:
        """Return the number of each key of ``column``, and whether it has one. Raises like `GroupIndex.find`."""
        import numpy as np

        if self._index is None:
            column, _ = plain_keys(column, ColumnKind.INT)
            known = column.is_valid().to_numpy(zero_copy_only=False)
            numbers = column.cast("int64").fill_null(0).to_numpy()
            return numbers, known if self._has_integers else np.zeros(len(column), np.bool_)
        symbols = self._index.find(column)
        return symbols, symbols >= 0

    def keys(self, symbols: Symbols) -> Keys:
        """Return the keys of ``symbols``, as an int64, large_string or large_binary column, or as columns of tuples."""
        import pyarrow as pa

        return pa.array(symbols) if self._index is None else self._index.keys(symbols)

    def forget(self, indexes: Sequence[SymbolIndex]) -> None:
        """Forget keys that none of ``indexes`` has, once there may be many: the cost per new key stays constant."""
        import numpy as np

        if not indexes:
            self._index, self._has_integers, self._room = None, False, _FORGET_FROM
        if self._index is None or len(self._index) < self._room:
            return
        left = np.unique(np.concatenate([index.symbols for index in indexes]))
        if 2 * len(left) <= len(self._index):
            keys = self.keys(left)
            self._index = GroupIndex()
            self.of(keys)
            for index in indexes:
                index.renumber(np.searchsorted(left, index.symbols))
        self._room = max(_FORGET_FROM, 2 * len(self._index))


class SymbolIndex:
    """The ids of the keys of one `Groups`, dense from 0 on, in the order of first arrival. Works as a `GroupIndex`, and
    takes numbers of keys where that takes columns of keys.

    While the numbers are close together, a table has their ids; otherwise an index of numbers.
    """

    __slots__ = ("_index", "_keys", "_low", "_span", "_table", "symbols")

    def __init__(self, keys: KeySymbols) -> None:
        import numpy as np

        self._keys = keys
        self.symbols: Symbols = np.zeros(0, np.int64)
        """The number of the key of each id."""
        self._index: GroupIndex | None = None
        self._table: Any = None
        self._low = 0
        self._span = (0, -1)  # the smallest and largest number

    def __len__(self) -> int:
        return len(self.symbols)

    def fresh(self) -> SymbolIndex:
        """Return an empty index of the same keys."""
        return SymbolIndex(self._keys)

    def raw(self, ids: Any) -> Symbols:
        """Return what `group` takes for the keys of ``ids``."""
        return self.symbols[ids]

    def group(self, keys: Any) -> GroupedRows:
        """Return the rows of ``keys``, numbers or a column, which have ids from now on."""
        import numpy as np
        import pyarrow as pa

        symbols = keys if isinstance(keys, np.ndarray) else self._keys.of(keys)
        n = len(symbols)
        if n:
            low, high = (int(symbols.min()), int(symbols.max())) if symbols.strides[0] else (int(symbols[0]),) * 2
            if low == high and n > 1:
                return GroupedRows(self.group(np.array([low])).ids, rows=n)
            self._span_to(low, high)
        if self._table is not None:
            ids, added = group_kernels.number(symbols, self._low, self._table, len(self))
            if len(added):
                self.symbols = np.concatenate([self.symbols, added])
            return GroupedRows(ids)
        if self._index is None:
            return GroupedRows(np.zeros(0, np.int32))
        known = len(self)
        rows = self._index.group(pa.array(symbols))
        if len(self._index) > known:
            self.symbols = np.concatenate([self.symbols, symbols[rows.first_rows(known)]])
        return rows

    def find(self, column: Keys) -> Any:
        """Return the id of each key of ``column``, -1 for a key without one. Raises like `GroupIndex.find`."""
        import numpy as np

        symbols, known = self._keys.find(column)
        return np.where(known, self._look_up(symbols), -1)

    def keys(self, ids: Any = None) -> Keys:
        """Return the keys of ``ids``, None: of all by id."""
        return self._keys.keys(self.symbols if ids is None else self.symbols[ids])

    def renumber(self, symbols: Symbols) -> None:
        """Set the number of the key of each id."""
        self.symbols, self._index, self._table = symbols, None, None
        if len(symbols):
            self._span_to(int(symbols.min()), int(symbols.max()))

    def _span_to(self, low: int, high: int) -> None:
        """Have room in the table for numbers from ``low`` to ``high``, or have no table."""
        import numpy as np
        import pyarrow as pa

        if len(self):
            low, high = min(low, self._span[0]), max(high, self._span[1])
        self._span, room = (low, high), high - low + 1
        if room > max(_TABLE_MIN, _TABLE_PER_KEY * len(self)):
            self._table = None
            if self._index is None:
                self._index = GroupIndex(ColumnKind.INT)
                self._index.ids(pa.array(self.symbols))
        elif self._table is None or low < self._low or high >= self._low + len(self._table):
            self._low, self._index = max(low - room // 4, -(2**63)), None
            self._table = np.full(room + room // 2, -1, np.int32)
            self._table[self.symbols - self._low] = np.arange(len(self))

    def _look_up(self, symbols: Symbols) -> Any:
        """Return the ids of ``symbols``, -1 for those without."""
        import numpy as np
        import pyarrow as pa

        if self._index is not None:
            return self._index.find(pa.array(symbols))
        if self._table is None:
            return np.full(len(symbols), -1, np.int64)
        places = symbols - self._low
        inside = (symbols >= self._low) & (places >= 0) & (places < len(self._table))  # a place may be beyond 64 bits
        return np.where(inside, self._table[np.where(inside, places, 0)], -1)
