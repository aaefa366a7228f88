"""The contract of sources, checked for every source of the library."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from malstrom_py.sources.base import PartitionedSource
from malstrom_py.sources.files import Files, frames
from malstrom_py.sources.files import parquet as parquet_part
from malstrom_py.sources.generator import Generator
from malstrom_py.sources.memory import Memory
from malstrom_py.testing.contracts import check_source
from tests.unit.sources.reading import file_with

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
    file_with(folder, "rows.csv", csv)
    return {
        "memory": Memory(list(range(40)), parts=2),
        "generator": Generator(squares, parts=2),
        "csv": Files(folder / "rows.csv"),
        "csv columns": Files(folder / "rows.csv", columns=["text"]),
        "csv.gz": Files(file_with(folder, "rows.csv.gz", gzip.compress(csv.encode()))),
        "json": Files(file_with(folder, "rows.jsonl", json_lines)),
        "text": Files(file_with(folder, "rows.txt", text)),
        "text.zst": Files(file_with(folder, "rows.log.zst", pa.compress(text, "zstd", asbytes=True))),
        "parquet": Files(folder / "rows.parquet"),
        "no rows": Files(file_with(folder, "none.csv", "n,text\n")),
    }


NAMES = ["memory", "generator", "csv", "csv columns", "csv.gz", "json", "text", "text.zst", "parquet", "no rows"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, PartitionedSource[Any]]]:
    """Yield every source; frames and batches are so small that each file has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "FRAME_BYTES", 64)
        patch.setattr(parquet_part, "_BATCH_ROWS_MIN", 5)
        yield files(tmp_path_factory.mktemp("contract"))


@pytest.mark.parametrize("name", NAMES)
def test_a_source_of_ours_keeps_the_contract(name: str, sources: dict[str, PartitionedSource[Any]]) -> None:
    check_source(sources[name])
