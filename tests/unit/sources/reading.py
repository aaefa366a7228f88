"""Reads source parts to their end, for the tests of sources. A malformed record is returned as a `Bad`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from malstrom_py.data.batch import Batch
from malstrom_py.data.row_form import rows_of
from malstrom_py.errors import MalformedRecord
from malstrom_py.sources.base import Part, PartitionedSource, SourcePart
from malstrom_py.sources.files.frames import Run, Sifted


@dataclass(frozen=True)
class Bad:
    record: Any


def poll_once(part: SourcePart[Any], rows_max: int) -> list[Any]:
    """Return the rows of one poll as Python values."""
    try:
        polled = part.poll(rows_max)
    except MalformedRecord as error:
        return [Bad(error.record)]
    if polled is None:
        return []
    if isinstance(polled, Batch):
        return list(polled.values)
    return list(polled) if isinstance(polled, Sequence) else rows_of(polled)


def polls(part: SourcePart[Any], sizes: Iterable[int] = ()) -> Iterator[list[Any]]:
    """Return the rows of each poll until the part is finished: ``sizes`` first, then 1000 each."""
    for size in chain(sizes, repeat(1000)):
        rows = poll_once(part, size)
        yield rows
        if part.is_finished():
            return


def read_part(source: PartitionedSource[Any], part: Part, sizes: Iterable[int] = ()) -> list[Any]:
    """Return all rows of ``part`` from its start, and close it."""
    opened = source.build_part(part, None)
    try:
        return [row for rows in polls(opened, sizes) for row in rows]
    finally:
        opened.close()


def read_source(source: PartitionedSource[Any]) -> list[Any]:
    """Return all rows of all parts."""
    return [row for part in source.list_parts() for row in read_part(source, part)]


def runs_of(found: Sequence[Run]) -> Iterator[Any]:
    """Yield bad records, and rows between them."""
    for run in found:
        start = 0
        while isinstance(run, Sifted) and start < len(run):
            following = run.next_run(start)
            start += len(following)
            yield following
        if not isinstance(run, Sifted):
            yield run


def file_with(folder: Path, name: str, content: str | bytes) -> Path:
    """Write a new file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
