"""The contract of `SourcePart`, which every source passes: exact positions, whatever the sizes of the polls."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.sources.base import PartitionedSource
from malstrom_py.sources.files import Files, frames, parquet_part
from malstrom_py.sources.generator import Generator
from malstrom_py.sources.memory import Memory
from tests.unit.sources.reading import file_with, poll_once, polls, read_part

CSV_HEADER = "n,text\r\n"
CSV_GOOD = [f'{n},"row ""{n}""\nof {n * n}"\n' for n in range(30)]
CSV_BAD = ["1,2,3\n", "x,not a number\r\n", "too few\n"]
JSON_LINES = [json.dumps({"n": n, "text": "é" * n}) for n in range(30)] + ["", "{broken", "[1]", "  "] * 2
TEXT_LINES = [f"line {n} é".encode() for n in range(30)] + [b"", b"\xff\xfe", b"x\ry", b"end"]


def squares(part: int, start: int) -> Iterator[int]:
    yield from (n * n + part for n in range(start, 40))


def files(folder: Path) -> dict[str, PartitionedSource[Any]]:
    csv = CSV_HEADER + "".join([*CSV_GOOD[:10], *CSV_BAD, "\n\n", *CSV_GOOD[10:], *CSV_BAD, '4,"the end"'])
    json_lines = "\r\n".join([*JSON_LINES[:10], *JSON_LINES[30:], *JSON_LINES[10:]])
    text = b"\n".join([*TEXT_LINES[:10], *TEXT_LINES[30:], *TEXT_LINES[10:]]) + b"\n"
    table = pa.table({"n": pa.array([*range(1000, 40_000, 1000), 1], pa.timestamp("ns"))})
    pq.write_table(table, folder / "rows.parquet", row_group_size=17)
    return {
        "memory": Memory(list(range(40)), parts=2),
        "generator": Generator(squares, parts=2),
        "csv": Files(file_with(folder, "rows.csv", csv)),
        "csv.gz": Files(file_with(folder, "rows.csv.gz", gzip.compress(csv.encode()))),
        "json": Files(file_with(folder, "rows.jsonl", json_lines)),
        "text": Files(file_with(folder, "rows.txt", text)),
        "text.zst": Files(file_with(folder, "rows.log.zst", pa.compress(text, "zstd", asbytes=True))),
        "parquet": Files(folder / "rows.parquet"),
        "no rows": Files(file_with(folder, "none.csv", "n,text\n")),
    }


NAMES = ["memory", "generator", "csv", "csv.gz", "json", "text", "text.zst", "parquet", "no rows"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, PartitionedSource[Any]]]:
    """Every source, with frames and batches so small that each file has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "FRAME_BYTES", 64)
        patch.setattr(parquet_part, "_BATCH_ROWS", 5)
        yield files(tmp_path_factory.mktemp("contract"))


@pytest.fixture(params=NAMES)
def source(request: pytest.FixtureRequest, sources: dict[str, PartitionedSource[Any]]) -> PartitionedSource[Any]:
    return sources[request.param]


def test_parts_have_stable_names(source: PartitionedSource[Any]) -> None:
    parts = source.list_parts()
    assert parts == source.list_parts()
    assert len(set(parts)) == len(parts) > 0
    assert all(isinstance(part, str) for part in parts)


@pytest.fixture(scope="module")
def all_rows(sources: dict[str, PartitionedSource[Any]]) -> dict[str, dict[str, list[Any]]]:
    """Source -> part -> what one pass reads."""
    return {name: {part: read_part(one, part) for part in one.list_parts()} for name, one in sources.items()}


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 12), max_size=40), saved_at=st.integers(0, 40), more=st.integers(0, 5))
def test_a_part_goes_on_exactly_behind_its_saved_position(
    name: str,
    sources: dict[str, PartitionedSource[Any]],
    all_rows: dict[str, dict[str, list[Any]]],
    sizes: list[int],
    saved_at: int,
    more: int,
) -> None:
    source = sources[name]
    for part in source.list_parts():
        opened = source.build_part(part, None)
        rows: list[Any] = []
        for count, polled in enumerate(polls(opened, sizes)):
            rows += polled
            if count >= saved_at:
                break
        # Saved twice, with some polls between: what was restored can be saved and restored again.
        for _ in range(2):
            state = msgpack.unpackb(msgpack.packb(opened.snapshot()))
            opened.close()
            opened = source.build_part(part, state)
            assert opened.snapshot() == state
            for _ in range(more):
                rows += poll_once(opened, 2)
        rows += [row for polled in polls(opened) for row in polled]
        opened.close()
        assert rows == all_rows[name][part]


def test_a_poll_gives_no_more_rows_than_asked(source: PartitionedSource[Any]) -> None:
    for part in source.list_parts():
        opened = source.build_part(part, None)
        assert all(len(rows) <= 3 for rows in polls(opened, [3] * 200))
        opened.close()


def test_a_finished_part_stays_finished(source: PartitionedSource[Any]) -> None:
    for part in source.list_parts():
        opened = source.build_part(part, None)
        for _ in polls(opened):
            pass
        position = opened.snapshot()
        assert opened.is_finished()
        assert poll_once(opened, 10) == []
        assert opened.is_finished()
        assert opened.snapshot() == position
        opened.close()
        restored = source.build_part(part, position)
        assert poll_once(restored, 10) == []
        assert restored.is_finished()
        restored.close()


def test_a_part_can_be_closed_unread_and_half_read(source: PartitionedSource[Any]) -> None:
    for part in source.list_parts():
        source.build_part(part, None).close()
        opened = source.build_part(part, None)
        poll_once(opened, 1)
        opened.close()


def test_rows_that_were_polled_do_not_change_afterwards(source: PartitionedSource[Any]) -> None:
    for part in source.list_parts():
        opened = source.build_part(part, None)
        first = opened.poll(2)
        before = list(first) if isinstance(first, list) else first
        for _ in polls(opened, [1] * 5):
            pass
        assert first == before
        opened.close()
