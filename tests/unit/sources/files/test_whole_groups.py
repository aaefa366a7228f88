"""Row groups read as wholes: which are, one ahead, and how many files at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.exceptions import PolarsError

from malstrom_py.sources.files import whole_groups as module
from malstrom_py.sources.files.whole_groups import WholeGroups, whole_groups

if TYPE_CHECKING:
    import polars as pl


def written(folder: Path, columns: dict[str, pa.Array], *, group_rows: int = 3) -> Path:
    path = folder / "a=[1].parquet"
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)
    return path


def opened(path: Path) -> WholeGroups | None:
    with pq.ParquetFile(path) as file:
        return whole_groups(path, file, file.schema_arrow, file.num_row_groups)


def frames(groups: WholeGroups, order: list[int]) -> list[pl.DataFrame | None]:
    try:
        return [groups.frame(group) for group in order]
    finally:
        groups.close()


def test_groups_come_whole_in_any_order_whatever_the_file_is_called(tmp_path: Path) -> None:
    groups = opened(written(tmp_path, {"n": pa.array(range(8)), "s": pa.array([str(n) for n in range(8)])}))
    assert groups is not None
    found = frames(groups, [0, 1, 2, 0, 2])
    assert [frame["n"].to_list() for frame in found if frame is not None] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7],
        [0, 1, 2],
        [6, 7],
    ]


@pytest.mark.parametrize(
    "kind", [pa.decimal128(5, 2), pa.timestamp("ns"), pa.list_(pa.int64()), pa.time64("us"), pa.duration("us")], ids=str
)
def test_a_type_that_is_not_plain_is_left_to_the_ordinary_way(tmp_path: Path, kind: pa.DataType) -> None:
    assert opened(written(tmp_path, {"n": pa.nulls(3, kind)})) is None


def test_a_type_that_has_to_be_widened_is_left_to_the_ordinary_way(tmp_path: Path) -> None:
    path = written(tmp_path, {"n": pa.array([1], pa.int32())})
    with pq.ParquetFile(path) as file:
        assert whole_groups(path, file, pa.schema([("n", pa.int64())]), 1) is None


def test_a_group_that_is_too_large_is_none_and_not_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GROUP_BYTES_MAX", 1)
    groups = opened(written(tmp_path, {"n": pa.array(range(8))}))
    assert groups is not None
    assert frames(groups, [0, 1]) == [None, None]


def test_only_so_many_files_are_read_so_at_a_time_and_closing_makes_room(tmp_path: Path) -> None:
    path = written(tmp_path, {"n": pa.array(range(8))})
    first, second = opened(path), opened(path)
    assert first is not None
    assert second is not None
    assert opened(path) is None
    first.close()
    first.close()
    third = opened(path)
    assert third is not None
    assert opened(path) is None
    second.close()
    third.close()


def test_a_file_that_is_gone_is_told_when_a_group_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path, {"n": pa.array(range(8))})
    groups = opened(path)
    path.unlink()
    assert groups is not None
    with pytest.raises((OSError, PolarsError)):
        frames(groups, [0])
