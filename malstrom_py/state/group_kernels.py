"""Folds by id over arrays, in C: what a loop over the rows would compute, and with ``each`` what it has after each row.

Rule: results are those of the loop, bit for bit. So floats are added one row after the other in the order of a key's
rows; of equal values the first stays; and NaN is larger than all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from malstrom_py import accelerator
from malstrom_py.state.group_index import GroupedRows

Array = Any
"""A numpy array."""


def _native() -> Any:
    return accelerator.library()


def _results(rows: GroupedRows, like: Array, each: bool) -> Array | None:
    import numpy as np

    return np.empty(len(rows), like.dtype) if each else None


def _at(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data


def _like(values: Array, array: Array) -> Array:
    import numpy as np

    return np.ascontiguousarray(values, array.dtype)


def add_sum(rows: GroupedRows, values: Array, totals: Array, *, each: bool = False) -> Array | None:
    """Add ``values`` to ``totals``, which are by id. ``each``: return the total after each row."""
    values, is_float = _like(values, totals), totals.dtype.kind == "f"
    if rows.only is not None and not each and not is_float:
        totals[rows.only] += values.sum()
        return None
    results, native = _results(rows, totals, each), _native()
    add = native.ms_sum_float if is_float else native.ms_sum_int
    add(_at(rows.ids), _at(values), len(rows), _at(totals), _at(results))
    return results


def sums_fit(rows: GroupedRows, values: Array, totals: Array) -> bool:
    """Return whether no order of adding could leave 62 bits."""
    import numpy as np

    sizes = np.bincount(rows.codes, weights=np.abs(values.astype(np.float64)), minlength=len(rows.which))
    return bool(np.all(sizes + np.abs(totals[rows.which].astype(np.float64)) < 2.0**62))


def add_count(rows: GroupedRows, valid: Array | None, seen: Array, *, each: bool = False) -> Array | None:
    """Count the rows, or those that are ``valid``, in ``seen``. ``each``: return the count after each row."""
    if rows.only is not None and not each:
        seen[rows.only] += len(rows) if valid is None else int(valid.sum())
        return None
    results = _results(rows, seen, each)
    _native().ms_count(_at(rows.ids), _at(valid), len(rows), _at(seen), _at(results))
    return results


def add_best(
    rows: GroupedRows, values: Array, valid: Array | None, best: Array, has: Array, *, largest: bool, each: bool = False
) -> tuple[Array | None, Array | None]:
    """Keep the smallest (or ``largest``) value by id in ``best`` where ``has``. ``each``: return it after each row, and
    whether there was one.
    """
    if rows.only is not None and not each and best.dtype.kind != "f":
        some = values if valid is None else values[valid]
        if len(some):
            one = some.max() if largest else some.min()
            best[rows.only] = (max if largest else min)(one, best[rows.only]) if has[rows.only] else one
            has[rows.only] = True
        return None, None
    values, results, there = _like(values, best), _results(rows, best, each), _results(rows, has, each)
    keep = _native().ms_best_float if best.dtype.kind == "f" else _native().ms_best_int
    keep(_at(rows.ids), _at(values), _at(valid), len(rows), largest, _at(best), _at(has), _at(results), _at(there))
    return results, there


def add_edge(
    rows: GroupedRows, valid: Array | None, has: Array, kept: Sequence[tuple[Array, Array]], *, latest: bool
) -> tuple[list[Array], Array]:
    """Keep the first (or ``latest``) row by id: of each pair (values of the rows, kept by id) of ``kept``. Return the
    values after each row, and whether there were any.
    """
    import numpy as np

    native = _native()
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

    ids = np.ascontiguousarray(ids, np.int32)
    _native().ms_mark(_at(ids), len(ids), _at(live), _at(changed))


def number(symbols: Array, low: int, table: Array, known: int) -> tuple[Array, Array]:
    """Return the id that ``table`` has for each of ``symbols``, which count from ``low``; those without one get the
    next from ``known`` on, in the order of their first row, and are returned too.
    """
    import numpy as np

    symbols = np.ascontiguousarray(symbols, np.int64)
    ids, added = np.empty(len(symbols), np.int32), np.empty(min(len(symbols), len(table)), np.int64)
    found = _native().ms_number(_at(symbols), len(symbols), low, _at(table), known, _at(ids), _at(added))
    return ids, added[:found]
