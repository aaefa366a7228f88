"""The index of keys, and the scans and folds of `group_kernels`, by the accelerator."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from malstrom_py import accelerator
from malstrom_py.errors import InternalError
from malstrom_py.state.group_index import GroupedRows, NotColumnar
from malstrom_py.state.group_kernels import sums_fit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "add_best",
    "add_count",
    "add_sum",
    "mark",
    "number",
    "running_best",
    "running_count",
    "running_edge",
    "running_sum",
]
__all__ += ["sums_fit"]

COMPARES_ALL: Final = True

Array = Any
"""A numpy array."""

_SEEDS: Final = tuple(int.from_bytes(os.urandom(8), "little") for _ in range(2))


class NativeIndex:
    """The ids of int64 keys or, ``is_text``, of bytes, which may have to be text (``is_utf8``); and of null."""

    __slots__ = ("_is_text", "_library", "_pointer")

    def __init__(self, *, is_text: bool, is_utf8: bool) -> None:
        native: Any = accelerator.library()
        self._library = native
        self._is_text = is_text
        self._pointer = native.ms_index_new(is_text + is_utf8, *_SEEDS)
        if not self._pointer:
            raise MemoryError

    def __del__(self) -> None:
        if getattr(self, "_pointer", None):
            self._library.ms_index_free(self._pointer)

    def __len__(self) -> int:
        return int(self._library.ms_index_len(self._pointer))

    def rows(self, column: pa.Array, *, add: bool) -> GroupedRows:
        """Return the rows of ``column``; a key without an id gets the next if ``add``, else its rows have -1."""
        import numpy as np

        ids = np.empty(len(column), np.int32)
        if not len(column):
            return GroupedRows(ids)
        valid, *data = (None if buffer is None else buffer.address for buffer in column.buffers())
        if not column.null_count:
            valid = None
        rest = (valid, column.offset, len(column), ids.ctypes.data, add)
        if self._is_text:
            offsets, text = data
            wide = column.type.id in _wide_types()
            failed = self._library.ms_index_text_ids(self._pointer, text, offsets, wide, *rest)
        else:
            failed = self._library.ms_index_numbers_ids(self._pointer, data[0], *rest)
        if failed == _NO_MEMORY:
            raise MemoryError
        if failed == _NOT_TEXT:
            raise NotColumnar("a key that is not UTF-8")
        if failed:
            raise InternalError("an index of keys holds 2^31 keys at most")
        return GroupedRows(ids)

    def keys(self, type_: pa.DataType) -> pa.Array:
        """Return the keys by id as an array of ``type_``, whose offsets have 64 bits."""
        import numpy as np
        import pyarrow as pa

        n, null = len(self), int(self._library.ms_index_null(self._pointer))
        valid = None
        if null >= 0:
            bits = np.full((n + 7) // 8, 255, np.uint8)
            bits[null >> 3] &= 255 ^ (1 << (null & 7))
            valid = pa.py_buffer(bits)
        numbers = _copied(self._library.ms_index_numbers(self._pointer), 8 * n)
        if not self._is_text:
            return pa.Array.from_buffers(type_, n, [valid, pa.py_buffer(numbers)])
        end = int(np.frombuffer(numbers, np.int64)[-1]) if n else 0
        text = _copied(self._library.ms_index_bytes(self._pointer), end)
        buffers = [valid, pa.py_buffer(bytes(8) + numbers), pa.py_buffer(text)]
        return pa.Array.from_buffers(type_, n, buffers)


_NO_MEMORY: Final = -1
_NOT_TEXT: Final = -3


def _copied(address: int | None, size: int) -> bytes:
    return ctypes.string_at(address, size) if address and size else b""


def _wide_types() -> set[int]:
    import pyarrow as pa

    return {pa.large_string().id, pa.large_binary().id}


def _at(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


def _like(values: Array, array: Array) -> Array:
    import numpy as np

    return np.ascontiguousarray(values, array.dtype)


def running_sum(rows: GroupedRows, values: Array, totals: Array) -> Array:
    """Add ``values`` to ``totals``, which are by id; return the total after each row."""
    import numpy as np

    results = np.empty(len(rows), totals.dtype)
    _sum(rows, values, totals, results)
    return results


def add_sum(rows: GroupedRows, values: Array, totals: Array) -> None:
    """Add ``values`` to ``totals``, which are by id."""
    _sum(rows, values, totals, None)


def _sum(rows: GroupedRows, values: Array, totals: Array, results: Array | None) -> None:
    native: Any = accelerator.library()
    values = _like(values, totals)
    add = native.ms_sum_float if totals.dtype.kind == "f" else native.ms_sum_int
    add(_at(rows.ids), _at(values), len(rows), _at(totals), _at(results))


def running_count(rows: GroupedRows, valid: Array | None, seen: Array) -> Array:
    """Count the rows, or those that are ``valid``, in ``seen``; return the count after each row."""
    import numpy as np

    results = np.empty(len(rows), np.int64)
    native: Any = accelerator.library()
    native.ms_count(_at(rows.ids), _at(valid), len(rows), _at(seen), _at(results))
    return results


def add_count(rows: GroupedRows, valid: Array | None, seen: Array) -> None:
    """Count the rows, or those that are ``valid``, in ``seen``."""
    native: Any = accelerator.library()
    native.ms_count(_at(rows.ids), _at(valid), len(rows), _at(seen), None)


def running_best(
    rows: GroupedRows, values: Array, valid: Array | None, best: Array, has: Array, *, largest: bool
) -> tuple[Array, Array]:
    """Keep the smallest (or ``largest``) value by id in ``best`` where ``has``; return it after each row, and whether
    there was one.
    """
    import numpy as np

    results, there = np.empty(len(rows), best.dtype), np.empty(len(rows), np.bool_)
    _best(rows, values, valid, best, has, results, there, largest=largest)
    return results, there


def add_best(rows: GroupedRows, values: Array, valid: Array | None, best: Array, has: Array, *, largest: bool) -> None:
    """Keep the smallest (or ``largest``) value by id in ``best`` where ``has``."""
    _best(rows, values, valid, best, has, None, None, largest=largest)


def _best(
    rows: GroupedRows,
    values: Array,
    valid: Array | None,
    best: Array,
    has: Array,
    results: Array | None,
    there: Array | None,
    *,
    largest: bool,
) -> None:
    native: Any = accelerator.library()
    values = _like(values, best)
    keep = native.ms_best_float if best.dtype.kind == "f" else native.ms_best_int
    keep(_at(rows.ids), _at(values), _at(valid), len(rows), largest, _at(best), _at(has), _at(results), _at(there))


def running_edge(
    rows: GroupedRows, valid: Array | None, has: Array, kept: Sequence[tuple[Array, Array]], *, latest: bool
) -> tuple[list[Array], Array]:
    """Keep the first (or ``latest``) row by id: of each pair (values of the rows, kept by id) of ``kept``. Return the
    values after each row, and whether there were any.
    """
    import numpy as np

    native: Any = accelerator.library()
    there = np.empty(len(rows), np.bool_)
    found = []
    for number, (values, by_id) in enumerate(kept):
        had = has if number == len(kept) - 1 else has.copy()
        values, results = _like(values, by_id), np.empty(len(rows), by_id.dtype)  # noqa: PLW2901
        keep = native.ms_edge_8 if by_id.dtype.itemsize == 8 else native.ms_edge_1
        arguments = _at(valid), len(rows), latest, _at(by_id), _at(had), _at(results), _at(there)
        keep(_at(rows.ids), _at(values), *arguments)
        found.append(results)
    return found, there


def mark(ids: Array, live: Array, changed: Array) -> None:
    """Set the flags of ``ids`` in both arrays."""
    import numpy as np

    native: Any = accelerator.library()
    ids = np.ascontiguousarray(ids, np.int32)
    native.ms_mark(_at(ids), len(ids), _at(live), _at(changed))


def number(symbols: Array, low: int, table: Array, known: int) -> tuple[Array, Array]:
    """Return the id that ``table`` has for each of ``symbols``, which count from ``low``; those without one get the
    next from ``known`` on, in the order of their first row, and are returned too.
    """
    import numpy as np

    native: Any = accelerator.library()
    symbols = np.ascontiguousarray(symbols, np.int64)
    ids, added = np.empty(len(symbols), np.int32), np.empty(min(len(symbols), len(table)), np.int64)
    found = native.ms_number(_at(symbols), len(symbols), low, _at(table), known, _at(ids), _at(added))
    return ids, added[:found]
