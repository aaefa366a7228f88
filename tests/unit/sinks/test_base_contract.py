"""The contract of sinks, which every sink of ours passes."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py import sinks
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.testing.contracts import check_sink
from tests.unit.sinks.writing import READERS, Format

VALUES = [{"n": number, "text": f'"{number}"\n'} for number in range(9)]


class Folder(sinks.Files):
    """A file sink that says where it writes."""

    def __init__(self, folder: Path, format: Format, **options: Any) -> None:
        super().__init__(folder, format=format, **options)
        self.folder = folder
        self.format = format

    def rows(self) -> list[Any]:
        """What readers of the folder see: files in the order of their names, no folder with an underscore."""
        found = []
        for path in sorted(self.folder.glob(f"**/*.{self.format}"), key=lambda path: path.name):
            if not path.relative_to(self.folder).parts[0].startswith("_"):
                # Partition columns are part of the names of folders.
                named = dict(part.split("=") for part in path.relative_to(self.folder).parts[:-1])
                found += [row | named for row in READERS[self.format](path).to_dicts()]
        return [{"n": int(row["n"]), "text": row["text"]} for row in found]


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_files_keep_the_contract(format: Format, tmp_path: Path) -> None:
    numbers = itertools.count()
    check_sink(lambda: Folder(tmp_path / str(next(numbers)), format), Folder.rows, values=VALUES)


@pytest.mark.long(but=("None-*", "n-1-csv", "n-1-parquet", "partition_by2-1-parquet", "partition_by2-1048576-parquet"))
@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize("partition_by", [None, "n", ["key", "n"]])
def test_files_keep_the_contract_partitioned_and_rolled(
    partition_by: Any, size: int, format: Format, tmp_path: Path
) -> None:
    numbers = itertools.count()

    def make() -> Folder:
        return Folder(tmp_path / str(next(numbers)), format, partition_by=partition_by, file_bytes_max=size)

    # Rows are in order within each partition, not from one to the next.
    check_sink(make, lambda sink: sorted(sink.rows(), key=lambda row: row["n"]), values=VALUES)


class OfColumns:
    """Writes what it is given as columns."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self.pre_commit, self.close = writer.pre_commit, writer.close

    def write(self, batch: Batch) -> None:
        columns = pa.RecordBatch.from_pylist(batch.values)
        self._writer.write(ColumnBatch(columns, keys=batch.keys, timestamps=batch.timestamps))


class FolderOfColumns(Folder):
    def open(self, worker: sinks.WorkerInfo) -> Any:
        return OfColumns(super().open(worker))


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
@pytest.mark.parametrize("partition_by", [None, "n"])
def test_files_keep_the_contract_of_columns(partition_by: Any, format: Format, tmp_path: Path) -> None:
    numbers = itertools.count()

    def make() -> Folder:
        return FolderOfColumns(tmp_path / str(next(numbers)), format, partition_by=partition_by)

    check_sink(make, Folder.rows, values=VALUES)


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
