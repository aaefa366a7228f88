"""The error of a failed job names the part and the row that it had read, and shows no schema and no raw bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import MalstromError, OperatorError

FRAME = pl.DataFrame({"n": [4, 2, 0]})


def csv(folder: Path) -> Any:
    FRAME.write_csv(folder / "n.csv")
    return sources.Files(folder / "n.csv")


def json_lines(folder: Path) -> Any:
    FRAME.write_ndjson(folder / "n.jsonl")
    return sources.Files(folder / "n.jsonl")


def parquet(folder: Path) -> Any:
    FRAME.write_parquet(folder / "n.parquet")
    return sources.Files(folder / "n.parquet")


def followed(folder: Path) -> Any:
    FRAME.write_csv(folder / "n.csv")
    return sources.Files(str(folder / "*.csv"), follow=True)


def memory(folder: Path) -> Any:
    return sources.Memory(FRAME.to_dicts())


def generated(folder: Path) -> Any:
    def rows(part: int, start: int) -> Iterator[dict[str, int]]:
        return iter(FRAME.to_dicts()[start:])

    return sources.Generator(rows)


def text_of(error: MalstromError) -> str:
    return "\n".join((str(error), *getattr(error, "__notes__", ())))


@pytest.mark.parametrize(
    ("source", "upto"),
    [
        (memory, "position 3"),
        (generated, "position 3"),
        (csv, "row 3"),
        (json_lines, "row 3"),
        (parquet, "row 3"),
        (followed, "row 3 of 'n.csv'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_error_says_how_far_a_source_was_read(source: Callable[[Path], Any], upto: str, tmp_path: Path) -> None:
    job = mp.Job("job")
    job.source("in", source(tmp_path)).map("ratio", lambda row: 1 / row["n"]).sink("out", sinks.Memory())
    with pytest.raises(OperatorError) as caught:
        mp.run(job)
    text = text_of(caught.value)
    assert re.search(rf"a batch of part '.+' of source 'in', which ended at {re.escape(upto)}(\n|$)", text), text
    assert not re.search(r"\bb['\"]|\{'|schema", text), text
