"""Keys of columns as dense numbers: `GroupIndex` gives each distinct key an id, in the order of first arrival.

Rule: keys that are equal in Python have one id (F4), so integers of all widths are one kind. An index holds keys of
one kind: integers that fit 64 bits, text, or bytes; None beside any of them. What it does not take raises
`NotColumnar`, and the caller continues with rows, to which the same rules apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress, count, repeat
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import ColumnKind, kind_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Ids = np.ndarray[tuple[int], np.dtype[np.int32]]

ROWS_OF_CODES: Final = 1 << 16

_KINDS: Final = {ColumnKind.INT: int, ColumnKind.STR: str, ColumnKind.BYTES: bytes}


class NotColumnar(Exception):
    """Keys, values or states that arrays do not hold as Python would; nothing has changed. Rows can take them."""


class GroupedRows:
    """The ids of the rows of a batch: ``ids``, one per row.

    ``which`` are its distinct ids; ``order`` sorts the rows by these, earlier rows first; the rows of ``which[i]`` are
    then the ``lengths[i]`` from ``starts[i]`` on. All but ``ids`` are made when they are first asked for.
    """

    __slots__ = ("_codes", "_lengths", "_order", "_which", "ids")

    def __init__(self, ids: Ids, codes: Any = None, which: Any = None) -> None:
        self.ids = ids
        self._codes = codes
        self._which = which
        self._order: Any = None
        self._lengths: Any = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def which(self) -> Any:
        """The distinct ids, each once."""
        self._code()
        return self._which

    @property
    def codes(self) -> Any:
        """The place in ``which`` of each row."""
        self._code()
        return self._codes

    @property
    def order(self) -> Any:
        """The places of the rows, sorted by the place of their id in ``which``, stable."""
        if self._order is None:
            import numpy as np

            codes = self.codes
            if len(self._which) <= ROWS_OF_CODES:
                codes = codes.astype(np.uint16)  # sorted by radix, at a sixth of the cost
            self._order = np.argsort(codes, kind="stable")
        return self._order

    @property
    def lengths(self) -> Any:
        """The number of rows of each of ``which``."""
        if self._lengths is None:
            import numpy as np

            self._lengths = np.bincount(self.codes, minlength=len(self._which))
        return self._lengths

    @property
    def starts(self) -> Any:
        """Where the rows of each of ``which`` begin in ``order``."""
        return self.lengths.cumsum() - self.lengths

    def only(self, chosen: Any) -> GroupedRows:
        """Return the rows for which the boolean array ``chosen`` is true."""
        return GroupedRows(self.ids[chosen])

    def _code(self) -> None:
        if self._codes is None:
            import numpy as np

            self._which, self._codes = np.unique(self.ids, return_inverse=True)


class GroupIndex:
    """The ids of the distinct keys of columns, dense from 0 on, in the order of first arrival.

    >>> import pyarrow as pa
    >>> index = GroupIndex()
    >>> index.ids(pa.array(["ann", "bob", None, "ann"])).tolist(), len(index)
    ([0, 1, 2, 0], 3)
    >>> index.find(pa.array(["bob", "eve"])).tolist(), index.keys().to_pylist()
    ([1, -1], ['ann', 'bob', None])
    """

    __slots__ = ("_ids", "_kind")

    def __init__(self) -> None:
        self._kind: ColumnKind | None = None
        self._ids: dict[Any, int] = {}

    @staticmethod
    def supports(type_: pa.DataType) -> bool:
        """Return whether keys of an Arrow type may have ids: integers, text and bytes, also as a dictionary."""
        return _plain_kind(type_) is not None

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, column: pa.Array) -> Ids:
        """Return the id of each key of ``column``, as int32; new keys get the next ones.

        Raises:
            NotColumnar: the column's type has no ids, is of another kind than earlier keys, or has a key that Python
                cannot hold, or an integer beyond 64 bits.
        """
        return self.group(column).ids

    def group(self, column: pa.Array) -> GroupedRows:
        """Return the rows of ``column``, whose keys have ids from now on. Raises like `ids`."""
        import numpy as np

        codes, keys = self._encoded(column)
        ids = self._ids
        if not ids:
            ids.update(zip(keys, range(len(keys)), strict=True))
            return GroupedRows(codes, codes, np.arange(len(keys), dtype=np.int32))
        known = list(map(ids.get, keys))
        if None in known:
            new = compress(keys, map(is_, known, repeat(None)))
            ids.update(zip(new, count(len(ids)), strict=False))
            known = list(map(ids.__getitem__, keys))
        which = np.array(known, np.int32)
        return GroupedRows(which[codes], codes, which)

    def fresh(self) -> GroupIndex:
        """Return an empty index."""
        return GroupIndex()

    def raw(self, ids: Any) -> pa.Array:
        """Return what `group` takes for the keys of ``ids``."""
        import pyarrow as pa

        return self.keys().take(pa.array(ids))

    def find(self, column: pa.Array) -> Ids:
        """Return the id of each key of ``column``, as int32; -1 for a key without one. Raises like `ids`."""
        codes, keys = self._encoded(column)
        get = self._ids.get
        return _int32([get(key, -1) for key in keys])[codes] if keys else _int32([])

    def keys(self) -> pa.Array:
        """Return the keys by id: an int64, large_string or large_binary column."""
        return keys_column(self._ids, self._kind)

    def _encoded(self, column: pa.Array) -> tuple[Any, list[Any]]:
        """Return ``column`` as places in a list of its distinct keys."""
        import numpy as np

        column, kind = plain_keys(column, self._kind)
        coded = column.dictionary_encode(null_encoding="encode")
        keys = _python_keys(coded.dictionary)
        if self._kind is None and keys != [None]:
            self._kind = kind
        return coded.indices.to_numpy(zero_copy_only=False).astype(np.int32, copy=False), keys


def plain_keys(column: pa.Array, known: ColumnKind | None) -> tuple[pa.Array, ColumnKind | None]:
    """Return a column of keys as int64, text or bytes, and its kind, which must be the ``known`` one.

    Raises:
        NotColumnar: it is of another kind, or of a type whose keys have no ids.
    """
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = _plain_kind(column.type)
    if kind is None or (known is not None and kind is not known and kind is not ColumnKind.NULL):
        raise NotColumnar(f"keys of Arrow type {column.type}")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        if kind is ColumnKind.INT:
            column = column.cast(pa.int64())
        elif pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
            column = column.cast(pa.large_string() if kind is ColumnKind.STR else pa.large_binary())
        elif kind is ColumnKind.NULL:
            column = column.cast(pa.int64() if known is ColumnKind.INT else pa.large_binary())
    except pa.ArrowInvalid:
        raise NotColumnar("an integer key beyond 64 bits") from None
    return column, None if kind is ColumnKind.NULL else kind


def keys_as_column(keys: Sequence[Any]) -> pa.Array:
    """Return Python ``keys`` as a column. `NotColumnar` unless all are int, str or bytes, or None.

    >>> keys_as_column([3, None]).type, keys_as_column(["a"]).type
    (DataType(int64), DataType(large_string))
    """
    kinds = set(map(type, keys)) - {type(None)}
    for kind, of_python in _KINDS.items():
        if kinds == {of_python}:
            return keys_column(keys, kind)
    if kinds:
        raise NotColumnar(f"keys of {', '.join(sorted(one.__name__ for one in kinds))}")
    return keys_column(keys, None)


def keys_column(keys: Iterable[Any], kind: ColumnKind | None) -> pa.Array:
    """Return Python ``keys`` of one kind as a column. `NotColumnar` if one does not fit Arrow."""
    import pyarrow as pa

    types = {ColumnKind.INT: pa.int64(), ColumnKind.STR: pa.large_string(), ColumnKind.BYTES: pa.large_binary()}
    try:
        return pa.array(list(keys), pa.large_binary() if kind is None else types[kind])
    except (OverflowError, ValueError):  # an integer beyond 64 bits; text that is not UTF-8
        raise NotColumnar("a key that no column holds") from None


def _plain_kind(type_: pa.DataType) -> ColumnKind | None:
    import pyarrow as pa

    kind = kind_of(type_)
    if pa.types.is_dictionary(type_):
        kind = kind_of(type_.value_type)
    return kind if kind in _KINDS or kind is ColumnKind.NULL else None


def _python_keys(column: pa.Array) -> list[Any]:
    try:
        keys: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        raise NotColumnar("a key that is not UTF-8") from None
    return keys


def _int32(values: Sequence[int]) -> Ids:
    import numpy as np

    return np.array(values, dtype=np.int32)
