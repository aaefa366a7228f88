"""Large files in parts: every record once, in order, wherever the cuts are, and exactly the rest after any restore."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from malstrom_py.sources.files import Files, frames, parquet_part
from tests.unit.sources.reading import file_with, poll_once, polls, read_part, read_source

BOM = b"\xef\xbb\xbf"

TEXT = st.sampled_from([b"", b"a", b"some words", "é日本🎈".encode(), b"\r", b"x\ry", b"\xff", b"long" * 30])
JSON = st.sampled_from(
    [b"", b" \r", *(json.dumps({"n": n, "t": t}, ensure_ascii=False).encode() for n, t in ((1, "é日"), (2, "x" * 99)))]
    + [b"{broken", b"[1]", b"\xff"]
)
FIELDS = st.sampled_from(
    [b"", b"1", b"22", "é日本".encode(), '"quoted, ""é"""'.encode(), b'"open', b'st"ray', b"\xff", b"y" * 70]
)
CSV = st.lists(FIELDS, min_size=0, max_size=3).map(b",".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where files are, with frames and batches so small that each part has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "FRAME_BYTES", 64)
        patch.setattr(frames, "FRAME_BYTES_MIN", 16)
        patch.setattr(parquet_part, "_BATCH_ROWS_MIN", 3)
        yield tmp_path_factory.mktemp("splits")


def contents(lines: st.SearchStrategy[bytes], ends: list[bytes], head: bytes = b"") -> st.SearchStrategy[bytes]:
    """Files of such lines: their ends mixed, with or without a byte order mark and an end of the last line."""
    ended = st.tuples(lines, st.sampled_from(ends)).map(b"".join)
    return st.tuples(st.sampled_from([b"", BOM]), st.just(head), st.lists(ended, max_size=25).map(b"".join), lines).map(
        b"".join
    )


def check_parts(source: Files[Any], expected: list[Any], sizes: list[int]) -> None:
    """Read all parts, each again from every position that polls of ``sizes`` have."""
    parts = list(source.list_parts())
    rows = {part: read_part(source, part) for part in parts}
    assert [row for part in parts for row in rows[part]] == expected
    for part in parts:
        opened, taken = source.build_part(part, None), 0
        for step, size in enumerate(cycle(sizes)):
            resumed = source.build_part(part, opened.snapshot())
            assert [row for polled in polls(resumed, sizes[::-1]) for row in polled] == rows[part][taken:]
            resumed.close()
            if opened.is_finished():
                break
            if step % 3 == 2:
                position = opened.snapshot()
                opened.close()
                opened = source.build_part(part, position)
            taken += len(poll_once(opened, size))
        opened.close()


def in_one(path: Path, **options: Any) -> list[Any]:
    """What the file gives as one part."""
    source = Files(path, split_bytes=None, **options)
    assert source.list_parts() == [str(path)]
    return read_source(source)


SPLITS = st.integers(1, 200)
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@given(content=contents(TEXT, [b"\n", b"\r\n"]), split=SPLITS, sizes=SIZES)
@example(content=b"ab\ncd\n", split=3, sizes=[1])
@example(content=b"ab\r\ncd", split=3, sizes=[1])
@example(content=BOM + b"\n\n", split=1, sizes=[1])
@settings(deadline=None)
def test_every_line_of_a_text_is_in_one_part(folder: Path, content: bytes, split: int, sizes: list[int]) -> None:
    path = file_with(folder, "a.txt", content)
    check_parts(Files(path, split_bytes=split), in_one(path), sizes)


@given(content=contents(JSON, [b"\n", b"\r\n"]), split=SPLITS, sizes=SIZES)
@settings(deadline=None)
def test_every_json_line_is_in_one_part(folder: Path, content: bytes, split: int, sizes: list[int]) -> None:
    path = file_with(folder, "a.jsonl", content)
    check_parts(Files(path, split_bytes=split), in_one(path), sizes)


@given(
    content=contents(CSV, [b"\n", b"\r\n", b"\r"], head=b"one,two\r\n")
    | contents(FIELDS, [b"\n", b"\r"], head=b"\n\none\r"),
    split=SPLITS,
    sizes=SIZES,
)
@example(content=b"one\n\n\n\n", split=5, sizes=[1])
@example(content=b"one\r\r\n1\r\r", split=1, sizes=[1])
@settings(deadline=None)
def test_every_csv_line_is_in_one_part(folder: Path, content: bytes, split: int, sizes: list[int]) -> None:
    path = file_with(folder, "a.csv", content)
    source: Files[Any] = Files(path, split_bytes=split, newlines_in_values=False)
    check_parts(source, in_one(path, newlines_in_values=False), sizes)


@given(groups=st.lists(st.integers(0, 40), max_size=6), split=st.integers(1, 2000), sizes=SIZES)
@settings(deadline=None, max_examples=60)
def test_every_row_group_is_in_one_part(folder: Path, groups: list[int], split: int, sizes: list[int]) -> None:
    path = folder / "a.parquet"
    schema = pa.schema([("at", pa.timestamp("ns")), ("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for number, rows in enumerate(groups):
            times = [1000 * row + (row % 13 == 12) for row in range(rows)]
            writer.write_table(pa.table({"at": times, "text": [f"{number}-é"] * rows}, schema=schema))
    check_parts(Files(path, split_bytes=split), in_one(path), sizes)
