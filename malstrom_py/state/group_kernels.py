"""Scans and folds by id over numpy arrays: per row, or per batch, what a Python loop over the rows would compute.

Rule: results are those of the loop, bit for bit. So floats are added one row after the other in the order of a key's
rows, never by differences of sums; of equal values the first stays; and NaN is larger than all others.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from malstrom_py import accelerator
from malstrom_py.state.group_index import GroupedRows

Array = Any
"""A numpy array."""

COMPARES_ALL: Final = False
"""Whether `add_best` takes NaN and zeros of two signs."""

_ROUNDS_MAX: Final = 64


def kernels() -> ModuleType:
    """Return the module whose scans and folds run: `native_kernels`, or this one."""
    if accelerator.library() is None:
        return sys.modules[__name__]
    from malstrom_py.state import native_kernels

    return native_kernels


def running_sum(rows: GroupedRows, values: Array, totals: Array) -> Array:
    """Add ``values`` to ``totals``, which are by id; return the total after each row."""
    return (
        _running_float_sum(rows, values, totals) if totals.dtype.kind == "f" else _running_int_sum(rows, values, totals)
    )


def _running_int_sum(rows: GroupedRows, values: Array, totals: Array) -> Array:
    import numpy as np

    order, starts, which = rows.order, rows.starts, rows.which
    sums = values[order].cumsum()
    # Where a group begins: what was known of it, without the sum of the groups before it. It may wrap around, twice.
    before = totals[which] - np.where(starts > 0, sums[starts - 1], 0)
    sums += np.repeat(before, rows.lengths)
    totals[which] = sums[starts + rows.lengths - 1]
    results = np.empty_like(sums)
    results[order] = sums
    return results


def _running_float_sum(rows: GroupedRows, values: Array, totals: Array) -> Array:
    """Add the first row of each group, then the second of each, and so on; long groups one by one."""
    import numpy as np

    order, starts, lengths, which = rows.order, rows.starts, rows.lengths, rows.which
    sums = values[order]
    long_first = np.argsort(-lengths, kind="stable")
    n_long = int(np.count_nonzero(lengths > _ROUNDS_MAX))
    with np.errstate(all="ignore"):
        for group in long_first[:n_long].tolist():
            piece = sums[starts[group] : starts[group] + lengths[group]]
            piece[0] += totals[which[group]]
            np.add.accumulate(piece, out=piece)
        short = long_first[n_long:]
        places, left, known = starts[short], lengths[short], totals[which[short]]
        for turn in range(int(left[0]) if len(left) else 0):
            n = int(np.searchsorted(-left, -turn))  # those with more than `turn` rows
            at = places[:n] + turn
            known = known[:n] + sums[at]
            sums[at] = known
    totals[which] = sums[starts + lengths - 1]
    results = np.empty_like(sums)
    results[order] = sums
    return results


def add_sum(rows: GroupedRows, values: Array, totals: Array) -> None:
    """Add ``values`` to ``totals``, which are by id, in the order of the rows."""
    import numpy as np

    with np.errstate(all="ignore"):
        np.add.at(totals, rows.ids, values)


def running_count(rows: GroupedRows, valid: Array | None, seen: Array) -> Array:
    """Count the rows, or those that are ``valid``, in ``seen``; return the count after each row."""
    import numpy as np

    if valid is not None:
        return _running_int_sum(rows, valid.astype(np.int64), seen)
    order, starts, lengths, which = rows.order, rows.starts, rows.lengths, rows.which
    counts = np.arange(1, len(rows) + 1) + np.repeat(seen[which] - starts, lengths)
    seen[which] += lengths
    results = np.empty(len(rows), np.int64)
    results[order] = counts
    return results


def add_count(rows: GroupedRows, valid: Array | None, seen: Array) -> None:
    """Count the rows, or those that are ``valid``, in ``seen``."""
    import numpy as np

    np.add.at(seen, rows.ids if valid is None else rows.ids[valid], 1)


def sums_fit(rows: GroupedRows, values: Array, totals: Array) -> bool:
    """Return whether no order of adding could leave 62 bits."""
    import numpy as np

    sizes = np.bincount(rows.codes, weights=np.abs(values.astype(np.float64)), minlength=len(rows.which))
    return bool(np.all(sizes + np.abs(totals[rows.which].astype(np.float64)) < 2.0**62))


def running_choice(rows: GroupedRows, ranks: Array, none: int) -> tuple[Array, Array]:
    """Choose by the smallest rank: after each row the choice of its group, and the last of each group.

    ``ranks``: first one for what each of ``rows.which`` had before, then one per row; below ``none``, or equal to it
    if there is nothing to choose. A choice is a rank.
    """
    import numpy as np

    n_groups = len(rows.which)
    in_groups, order = np.arange(n_groups), rows.order
    groups = np.repeat(in_groups, rows.lengths)
    # One place before each group for what it had.
    places = np.arange(len(rows)) + groups + 1
    before = rows.starts + in_groups
    line = np.empty(len(ranks), np.int64)
    line[before] = ranks[:n_groups]
    line[places] = ranks[n_groups:][order]
    apart = none + 1
    line[before] -= in_groups * apart
    line[places] -= groups * apart
    line = np.minimum.accumulate(line)
    line[places] += groups * apart
    chosen = np.empty(len(rows), np.int64)
    chosen[order] = line[places]
    return chosen, line[before + rows.lengths]


def running_best(
    rows: GroupedRows, values: Array, valid: Array | None, best: Array, has: Array, *, largest: bool
) -> tuple[Array, Array]:
    """Keep the smallest (or ``largest``) value by id in ``best`` where ``has``; return it after each row, and whether
    there was one.
    """
    import numpy as np

    which = rows.which
    both = np.concatenate([best[which], values])
    there = np.concatenate([has[which], np.ones(len(values), np.bool_) if valid is None else valid])
    n, is_float = len(both), both.dtype.kind == "f"
    order = np.argsort((-both if is_float else ~both) if largest else both, kind="stable")
    ranks = np.empty(n, np.int64)
    ranks[order] = np.arange(n, 2 * n)
    if is_float and largest:
        ranks[np.isnan(both)] -= n  # NaN, which is sorted last, is the largest
    ranks[~there] = 2 * n
    chosen, last = running_choice(rows, ranks, 2 * n)
    known = last < 2 * n
    best[which[known]] = both[order[last[known] % n]]
    has[which[known]] = True
    return both[order[chosen % n]], chosen < 2 * n


def add_best(rows: GroupedRows, values: Array, valid: Array | None, best: Array, has: Array, *, largest: bool) -> None:
    """Keep the smallest (or ``largest``) value by id, without NaN and zeros of two signs; absent ones are infinite."""
    import numpy as np

    ids = rows.ids if valid is None else rows.ids[valid]
    (np.maximum if largest else np.minimum).at(best, ids, values if valid is None else values[valid])
    has[ids] = True


def running_edge(
    rows: GroupedRows, valid: Array | None, has: Array, kept: Sequence[tuple[Array, Array]], *, latest: bool
) -> tuple[list[Array], Array]:
    """Keep the first (or ``latest``) row by id: of each pair (values of the rows, kept by id) of ``kept``. Return the
    values after each row, and whether there were any.
    """
    import numpy as np

    which = rows.which
    there = np.concatenate([has[which], np.ones(len(rows), np.bool_) if valid is None else valid])
    n = len(there)
    places = np.arange(n)
    chosen, last = running_choice(rows, np.where(there, n - 1 - places if latest else places, n), n)
    known, now = last < n, chosen < n
    last, chosen = last[known], np.where(now, chosen, 0)
    if latest:
        last, chosen = n - 1 - last, n - 1 - chosen
    results = []
    for values, by_id in kept:
        both = np.concatenate([by_id[which], values])
        by_id[which[known]] = both[last]
        results.append(both[chosen])
    has[which[known]] = True
    return results, now


def mark(ids: Array, live: Array, changed: Array) -> None:
    """Set the flags of ``ids`` in both arrays."""
    live[ids] = True
    changed[ids] = True


def number(symbols: Array, low: int, table: Array, known: int) -> tuple[Array, Array]:
    """Return the id that ``table`` has for each of ``symbols``, which count from ``low``; those without one get the
    next from ``known`` on, in the order of their first row, and are returned too.
    """
    import numpy as np

    places = symbols - low if low else symbols
    ids = table[places]
    new = np.flatnonzero(ids < 0)
    if not len(new):
        return ids, symbols[:0]
    places, rows = places[new], np.arange(len(new))
    table[places[::-1]] = rows[::-1]  # of equal places the last one counts
    added = places[np.flatnonzero(table[places] == rows)]
    table[added] = np.arange(known, known + len(added))
    ids[new] = table[places]
    return ids, added + low
