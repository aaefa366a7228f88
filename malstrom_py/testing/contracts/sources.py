"""The contract of sources: exact positions at every place of a part, for all sizes of polls."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from malstrom_py.data.batch import Batch
from malstrom_py.data.row_form import rows_of
from malstrom_py.errors import MalformedRecord
from malstrom_py.sources.base import Part, PartitionedSource, PolledRows, SourcePart, StatelessSource, as_part
from malstrom_py.testing.contracts.clauses import require, require_plain
from malstrom_py.testing.exact import same
from malstrom_py.worker_context import WorkerId, WorkerInfo

NAMES: Final = "stable parts"
SIZE: Final = "poll obeys rows_max"
PLAIN_POSITION: Final = "plain position"
EXACT: Final = "exact position"
FINISHED: Final = "finished stays finished"
UNCHANGED: Final = "polled rows stay unchanged"
CLOSE: Final = "close at any time"
CHOICE: Final = "the same rows by any poll"

_SIZES: Final = ((1,), (2, 1, 5), (7,))
_IDLE_MAX: Final = 100


@dataclass(frozen=True)
class UnreadableRecord:
    """A row for a record that could not be read."""

    record: Any


def check_source(source: Any, *, rows_max: int = 1000, cuts_max: int = 20) -> None:
    """Check the contract of sources (`malstrom_py.sources.base`) for ``source``, partition by partition.

    At most about ``rows_max`` rows of each partition are read, and it is stopped and restored at up to ``cuts_max``
    places. Polls may be empty; after 100 empty polls in a row the check leaves an unfinished partition.

    >>> from malstrom_py import sources
    >>> check_source(sources.Memory(range(20), parts=3))

    Raises:
        LawError: a clause is broken: "stable parts", "poll obeys rows_max", "plain position", "exact position",
            "finished stays finished", "polled rows stay unchanged", "close at any time", "the same rows by any poll".
    """
    if not isinstance(source, PartitionedSource):
        _check_stateless(source, rows_max)
        return
    parts = list(source.list_parts())
    require(all(isinstance(part, str) and part for part in parts), NAMES, "partitions have names", f"{parts}")
    require(len(set(parts)) == len(parts), NAMES, "partitions have different names", f"{parts}")
    require(parts == list(source.list_parts()), NAMES, "partitions have the same names each time", f"{parts}")
    for part in parts:
        _check_part(source, part, rows_max, cuts_max)


def _check_stateless(source: StatelessSource[Any], rows_max: int) -> None:
    worker = WorkerInfo("contract", "source", WorkerId(0))
    part = source.build(worker)
    _check_sizes(part, "the source", rows_max)
    _check_end(part, "the source", positions=False)
    _closed(part, "the source")
    _closed(source.build(worker), "the source, unread")


def _check_part(source: PartitionedSource[Any], part: Part, rows_max: int, cuts_max: int) -> None:
    where = f"partition {part!r}"
    opened = source.build_part(part, None)
    rows = _check_sizes(opened, where, rows_max)
    end = opened.snapshot() if opened.is_finished() else None
    for sizes in _SIZES:
        _check_cuts(source, part, rows, sizes, cuts_max)
    for polls in (0, 3):
        _check_choice(source, part, rows, polls)
    _check_end(opened, where, positions=True)
    _closed(opened, where)
    if end is not None:
        _check_restored_end(source.build_part(part, end), where)
    _closed(source.build_part(part, None), f"{where}, unread")


def _check_sizes(opened: SourcePart[Any], where: str, rows_max: int) -> list[Any]:
    """Read up to ``rows_max`` rows, three per poll, and return them."""
    rows: list[Any] = []
    kept: list[tuple[Any, Any]] = []
    for polled in _polls(opened, itertools.repeat(3)):
        require(
            len(polled) <= 6, SIZE, "a poll gives about rows_max rows", f"{where}: rows_max is 3, got {len(polled)}"
        )
        kept.append((polled, copy.deepcopy(polled)))
        rows.extend(polled)
        if len(rows) >= rows_max:
            break
    for polled, before in kept:
        require(same(polled, before), UNCHANGED, "polled rows are not changed later", f"{where}: {before}, {polled}")
    return rows


def _check_cuts(
    source: PartitionedSource[Any], part: Part, rows: list[Any], sizes: tuple[int, ...], cuts_max: int
) -> None:
    """Stop the part after some polls, restore it twice, and check that it continues at its position."""
    polls = len(rows) * len(sizes) // sum(sizes) + 1
    for cut in sorted({round(number * polls / cuts_max) for number in range(cuts_max + 1)}):
        where = f"partition {part!r}, restored after {cut} polls of {sizes} rows"
        opened = source.build_part(part, None)
        read = list(itertools.chain.from_iterable(itertools.islice(_polls(opened, itertools.cycle(sizes)), cut)))
        for _ in range(2):
            position = opened.snapshot()
            require_plain(position, PLAIN_POSITION, where)
            require(same(opened.snapshot(), position), EXACT, "reading the offset does not change it", where)
            _closed(opened, where)
            opened = source.build_part(part, copy.deepcopy(position))
            now = opened.snapshot()
            require(
                same(now, position),
                EXACT,
                "a restored partition has the saved offset",
                f"{where}: {position!r}, {now!r}",
            )
            read += next(_polls(opened, itertools.cycle(sizes)), [])
        for polled in _polls(opened, itertools.repeat(50)):
            if len(read) >= len(rows):
                break
            read += polled
        _closed(opened, where)
        _require_same_rows(read[: len(rows)], rows, where)


def _check_choice(source: PartitionedSource[Any], part: Part, rows: list[Any], polls: int) -> None:
    """Read some rows after `BasePart.set_polls`, which is called after ``polls`` polls, and the others without it."""
    where = f"partition {part!r}, by columns and with bad rows from poll {polls} on"
    opened = as_part(source.build_part(part, None), source, "source", positions=True)
    read = list(itertools.chain.from_iterable(itertools.islice(_polls(opened, itertools.repeat(7)), polls)))
    opened.set_polls(frames=True, bad_rows=True)
    for wanted in (len(rows) * 2 // 3, len(rows) + 7):  # a poll does not say where among its rows the bad ones were
        for polled in _polls(opened, itertools.repeat(7)):
            read += polled
            if len(read) >= wanted:
                break
        position = opened.snapshot()
        _closed(opened, where)
        opened = as_part(source.build_part(part, copy.deepcopy(position)), source, "source", positions=True)
    _closed(opened, where)
    for kind in (False, True):
        expected = [row for row in rows if isinstance(row, UnreadableRecord) is kind]
        got = [row for row in read if isinstance(row, UnreadableRecord) is kind][: len(expected)]
        require(same(got, expected), CHOICE, "a poll of another kind returns the same", f"{where}: {got}, {expected}")


def _require_same_rows(read: list[Any], rows: list[Any], where: str) -> None:
    for number, (got, expected) in enumerate(itertools.zip_longest(read, rows, fillvalue="nothing")):
        require(
            same(got, expected),
            EXACT,
            "the rows before and after a restore are those of one pass",
            f"{where}: row {number} is {got!r}, and was {expected!r} in one pass",
        )


def _check_end(opened: SourcePart[Any], where: str, *, positions: bool) -> None:
    if not opened.is_finished():
        return
    before = opened.snapshot() if positions else None
    for _ in range(2):
        polled = _poll(opened, 10)
        require(not polled, FINISHED, "a finished partition gives no more rows", f"{where}: {polled}")
        require(opened.is_finished(), FINISHED, "a finished partition stays finished", where)
    after = opened.snapshot() if positions else None
    require(same(after, before), FINISHED, "a finished partition keeps its offset", f"{where}: {before!r}, {after!r}")


def _check_restored_end(opened: SourcePart[Any], where: str) -> None:
    polled = _poll(opened, 10)
    require(not polled, FINISHED, "restored at its end, a partition gives no rows", f"{where}: {polled}")
    require(opened.is_finished(), FINISHED, "restored at its end, a partition is finished after one poll", where)
    _closed(opened, where)


def _polls(opened: SourcePart[Any], sizes: Iterable[int]) -> Iterator[list[Any]]:
    """Yield the rows of each poll, until the part is finished or idle for too long."""
    idle = 0
    for size in sizes:
        if opened.is_finished():
            return
        rows = _poll(opened, size)
        idle = 0 if rows else idle + 1
        if idle > _IDLE_MAX:
            return
        yield rows


def _poll(opened: SourcePart[Any], rows_max: int) -> list[Any]:
    try:
        polled: Any = opened.poll(rows_max)
    except MalformedRecord as error:
        return [UnreadableRecord(error.record)]
    if isinstance(polled, PolledRows):
        bad = [UnreadableRecord(error.record) for error in polled.errors]
        require(len(bad) == polled.bad, CHOICE, "each bad record has an error", f"{polled.bad}, {len(bad)}")
        return [*_rows(polled.rows), *bad]
    return _rows(polled)


def _rows(polled: Any) -> list[Any]:
    if polled is None:
        return []
    if isinstance(polled, Batch):
        return list(polled.values)
    if hasattr(polled, "schema"):
        return rows_of(polled)
    return polled if isinstance(polled, list) else list(polled)


def _closed(opened: SourcePart[Any], where: str) -> None:
    try:
        opened.close()
    except Exception as error:
        require(False, CLOSE, "a partition can be closed, read or not", f"{where}: {type(error).__name__}: {error}")
