"""Scans and folds by id over arrays, in C: per row, or per batch, what a loop over the rows would compute.

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
    if rows.only is not None and results is None and totals.dtype.kind != "f":
        totals[rows.only] += values.sum()
        return
    add = native.ms_sum_float if totals.dtype.kind == "f" else native.ms_sum_int
    add(_at(rows.ids), _at(values), len(rows), _at(totals), _at(results))


def sums_fit(rows: GroupedRows, values: Array, totals: Array) -> bool:
    """Return whether no order of adding could leave 62 bits."""
    import numpy as np

    sizes = np.bincount(rows.codes, weights=np.abs(values.astype(np.float64)), minlength=len(rows.which))
    return bool(np.all(sizes + np.abs(totals[rows.which].astype(np.float64)) < 2.0**62))


def running_count(rows: GroupedRows, valid: Array | None, seen: Array) -> Array:
    """Count the rows, or those that are ``valid``, in ``seen``; return the count after each row."""
    import numpy as np

    results = np.empty(len(rows), np.int64)
    native: Any = accelerator.library()
    native.ms_count(_at(rows.ids), _at(valid), len(rows), _at(seen), _at(results))
    return results


def add_count(rows: GroupedRows, valid: Array | None, seen: Array) -> None:
    """Count the rows, or those that are ``valid``, in ``seen``."""
    if rows.only is not None:
        seen[rows.only] += len(rows) if valid is None else int(valid.sum())
        return
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
    if rows.only is not None and best.dtype.kind != "f":
        some = values if valid is None else values[valid]
        if len(some):
            one = some.max() if largest else some.min()
            best[rows.only] = (max if largest else min)(one, best[rows.only]) if has[rows.only] else one
            has[rows.only] = True
        return
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
