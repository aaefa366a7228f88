"""The contract of sinks, which every sink of ours passes."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from malstrom_py import sinks
from malstrom_py.testing.contracts import check_sink
from tests.unit.sinks.writing import Format

VALUES = [{"n": number, "text": f'"{number}"\n'} for number in range(9)]


class Folder(sinks.Files):
    """A file sink that says where it writes."""

    def __init__(self, folder: Path, format: Format) -> None:
        super().__init__(folder, format=format)
        self.folder = folder
        self.format = format

    def rows(self) -> list[Any]:
        """What readers of the folder see: files in the order of their names, no folder with an underscore."""
        readers: dict[str, Any] = {"csv": pl.read_csv, "json": pl.read_ndjson, "parquet": pl.read_parquet}
        frames = [readers[self.format](path) for path in sorted(self.folder.glob(f"*.{self.format}"))]
        return [{"n": row["n"], "text": row["text"]} for frame in frames for row in frame.to_dicts()]


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_files_keep_the_contract(format: Format, tmp_path: Path) -> None:
    numbers = itertools.count()
    check_sink(lambda: Folder(tmp_path / str(next(numbers)), format), Folder.rows, values=VALUES)


def test_memory_keeps_the_contract() -> None:
    check_sink(sinks.Memory, lambda sink: sink.items, values=VALUES)


class Gathering(sinks.Callable):
    """Calls a function that gathers."""

    def __init__(self, *, batch: bool) -> None:
        self.rows: list[Any] = []
        super().__init__((lambda given: self.rows.extend(given.values)) if batch else self.rows.append, batch=batch)


@pytest.mark.parametrize("batch", [False, True])
def test_callable_keeps_the_contract(batch: bool) -> None:
    check_sink(lambda: Gathering(batch=batch), lambda sink: sink.rows, values=VALUES)


def test_stdout_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stdout", screen)

    def make() -> sinks.Stdout:
        screen.seek(0)
        screen.truncate()
        return sinks.Stdout()

    check_sink(make, lambda sink: screen.getvalue().splitlines(), values=list("abcdefghi"))
