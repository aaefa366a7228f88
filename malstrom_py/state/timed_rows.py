"""The rows of one stream of a join by time, as columns: found by key and span of time, and ended by time.

Rules. The moment of a row is 4 * time + `ALONE` + `GONE`. A row that has ended stays, as gone, until most rows of its
block are: an epoch (watermark) costs as much as what it ends. The rows of a block are found in its *order* by key and
time, which merged blocks inherit; the rows themselves are never sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.group_values import Array
from malstrom_py.state.kept_rows import Block, KeptRows, one_block

ALONE: Final = 2
"""In the moment of a row that has had no partner yet."""

GONE: Final = 1
"""In the moment of a row that is not state any more."""

FAR: Final = 1 << 59
"""Times, and spans, beyond it are rows: moments, and sums of times, might not fit 64 bits."""

CODES_MAX: Final = 1 << 62

_NARROW: Final = 1 << 16
"""So few ids are sorted as numbers of 16 bits, in a tenth of the time."""


class Found(NamedTuple):
    """Rows of a block, at the indices ``places``, and for each the number of the query that has found it."""

    block: Block
    queries: Array
    places: Array


class TimedRows(KeptRows):
    """Blocks of rows in order of arrival."""

    __slots__ = ()

    def merged(self, blocks: Sequence[Block]) -> Block:
        """Return blocks as one, whose rows will be in order sooner."""
        import numpy as np

        block, orders, before = one_block(blocks), list[Array](), 0
        for part in blocks:
            order = part.known.get("order")
            orders.append((np.arange(len(part.ids)) if order is None else order) + before)
            before += len(part.ids)
        block.known["order"] = np.concatenate(orders)
        return block

    def find(self, ids: Array, lows: Array, ends: Array, size: int) -> list[Found]:
        """Return the rows of an id that are not gone, from a time on and before an end: of each query, by time.

        ``size``: ids are below. `NotColumnar` if times and ids are too many for 64 bits.
        """
        import numpy as np

        found, rows = list[Found](), np.arange(len(ids))
        least, most = int(lows.min()), int(ends.max())
        near = _neighbours(ids, size)
        ids, lows, ends = ids[near].astype(np.int64), lows[near], ends[near]
        for block in self.blocks:
            first, last = span_of(block)
            if first >= most or last < least:
                continue
            codes, order, width = _in_order(block, size)
            starts, counts = np.empty_like(ids), np.empty_like(ids)
            starts[near] = froms = codes.searchsorted(ids * width + (_between(lows, first, last + 1) - first))
            counts[near] = codes.searchsorted(ids * width + (_between(ends, first, last + 1) - first)) - froms
            queries = rows.repeat(counts)
            if not len(queries):
                continue
            places = order[np.arange(len(queries)) + (starts - (counts.cumsum() - counts)).repeat(counts)]
            there = block.moments[places] & GONE == 0
            if not there.all():
                queries, places = queries[there], places[there]
            if len(queries):
                found.append(Found(block, queries, places))
        return found

    def nearest(self, ids: Array, times: Array, size: int, *, back: bool) -> tuple[Array, Array, Array]:
        """Return the time of the last row of an id at or before a time, or else of the first at or after it.

        Also its block, -1 if there is none, and its index. ``size`` as of `find`; no row may be gone.
        """
        import numpy as np

        near = _neighbours(ids, size)
        ids, times = ids[near].astype(np.int64), times[near]
        best, which, places = times, np.full(len(ids), -1), np.zeros(len(ids), np.int64)
        least, most = int(times.min()), int(times.max())
        for number, block in enumerate(self.blocks):
            first, last = span_of(block)
            if first > most if back else last < least:
                continue
            codes, order, width = _in_order(block, size)
            bounds = _between(times + 1 if back else times, first, last + 1) - first
            at = codes.searchsorted(ids * width + bounds) - back
            inside = (at >= 0) & (at < len(codes))
            place = order[np.where(inside, at, 0)]
            moments = block.moments[place] >> 2
            there = inside & (block.ids[place] == ids) & (moments <= times if back else moments >= times)
            there &= (which < 0) | (moments >= best if back else moments < best)
            best, which, places = (
                np.where(there, new, old) for new, old in ((moments, best), (number, which), (place, places))
            )
        back_again = np.empty_like(near)
        back_again[near] = np.arange(len(near))
        return best[back_again], which[back_again], places[back_again]

    def end(self, limit: int) -> list[tuple[Block, Array]]:
        """Let the rows up to a time be gone; return them, as blocks and indices of those that were not yet."""
        import numpy as np

        ended, left = list[tuple[Block, Array]](), list[Block]()
        for block in self.blocks:
            first, last = span_of(block)
            if first > limit:
                left.append(block)
                continue
            rows = np.arange(len(block.ids)) if last <= limit else np.sort(passed(block, limit))
            rows = rows[block.moments[rows] & GONE == 0]
            if len(rows):
                block.moments[rows] |= GONE
                ended.append((block, rows))
            if last > limit:
                left.append(_without_gone(block) if 2 * block.known["passed"] > len(block.ids) else block)
        self.blocks = left
        return ended

    def take_found(self, found: Sequence[Found]) -> tuple[Block | None, Array]:
        """Let rows be gone; return them in order of arrival, None if there are none, and the query that found each."""
        import numpy as np

        blocks, queries = list[Block](), [np.zeros(0, np.int64)]
        for block, finders, places in found:
            order = np.argsort(places)
            block.moments[places] |= GONE
            blocks.append(block.rows(places[order]))
            queries.append(finders[order])
        self.shrink()
        return one_block(blocks) if blocks else None, np.concatenate(queries)

    def shrink(self) -> None:
        """Drop the rows that are gone from the blocks of which they are most."""
        self.blocks = [block for block in map(_shrunk, self.blocks) if len(block.ids)]


def _shrunk(block: Block) -> Block:
    """Return a block without the rows that are gone, if they are most."""
    import numpy as np

    return _without_gone(block) if 2 * np.count_nonzero(block.moments & GONE) > len(block.ids) else block


def near_times(batch: ColumnBatch) -> Array:
    """Return the times of a batch. `NotColumnar` if one is `FAR`."""
    import numpy as np

    times = np.asarray(batch.timestamps if batch.time_column is None else batch.time_column, dtype=np.int64)
    if int(times.min()) < -FAR or int(times.max()) > FAR:
        raise NotColumnar("times too far for 64 bits")
    return times


def _neighbours(ids: Array, size: int) -> Array:
    """Return an order in which queries of the same id follow each other: they share cache lines."""
    import numpy as np

    return ids.argsort(kind="stable") if size > _NARROW else ids.astype(np.uint16).argsort(kind="stable")


def _between(times: Array, least: int, most: int) -> Array:
    """Do as `numpy.clip`, of which a call costs ten times as much."""
    import numpy as np

    bounded: Array = np.minimum(np.maximum(times, least), most)
    return bounded


def span_of(block: Block) -> tuple[int, int]:
    """Return the first and the last time of the rows of a block, of which some may be gone."""
    span = block.known.get("span")
    if span is None:
        span = block.known["span"] = int(block.moments.min()) >> 2, int(block.moments.max()) >> 2
    first, last = span
    return first, last


def _in_order(block: Block, size: int) -> tuple[Array, Array, int]:
    """Return a number per row that ascends by id and time, the indices of these rows, and the numbers per id."""
    import numpy as np

    known = block.known
    first, last = span_of(block)
    width = last - first + 2
    if size * width > CODES_MAX:
        raise NotColumnar("times and ids too many for 64 bits")
    if "codes" not in known:
        codes = block.ids * np.int64(width) + ((block.moments >> 2) - first)
        order = known.get("order")
        if order is not None:  # that of each part, which a stable sort finds
            codes = codes[order]
        new = np.argsort(codes, kind="stable")
        known["codes"], known["order"] = codes[new], new if order is None else order[new]
    return known["codes"], known["order"], width


def passed(block: Block, limit: int) -> Array:
    """Return the indices of rows up to a time, by time, except those that an earlier call has returned."""
    import numpy as np

    known = block.known
    if "times" not in known:
        times = block.moments >> 2
        known["by time"] = np.argsort(times, kind="stable")
        known["times"], known["passed"] = times[known["by time"]], 0
    before = known["passed"]
    known["passed"] = int(np.searchsorted(known["times"], limit, side="right"))
    rows: Array = known["by time"][before : known["passed"]]
    return rows


def _without_gone(block: Block) -> Block:
    import numpy as np

    there = block.moments & GONE == 0
    left = block.rows(there.nonzero()[0]).compact()
    order = block.known.get("order")
    if order is not None:
        left.known["order"] = (np.cumsum(there) - 1)[order[there[order]]]
    return left
