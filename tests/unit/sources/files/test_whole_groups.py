"""Whole row groups: which ones are read so, one ahead, and how many files at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.errors import SourceError
from malstrom_py.sources.files import parquet as module
from malstrom_py.sources.files.footers import Footers, KnownFile
from malstrom_py.sources.files.parquet import WholeGroups, can_swell, whole_groups

if TYPE_CHECKING:
    import polars as pl

WIDE = Context(prec=60)


def written(folder: Path, columns: dict[str, pa.Array], *, group_rows: int = 3) -> Path:
    path = folder / "a=[1].parquet"
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)
    return path


@contextmanager
def known_file(path: Path) -> Iterator[tuple[pq.ParquetFile, KnownFile]]:
    file, known = Footers().open(path)
    assert known is not None
    try:
        yield file, known
    finally:
        file.close(force=True)


def opened(path: Path) -> WholeGroups | None:
    with known_file(path) as (file, known):
        return whole_groups(path.name, known, file, file.schema_arrow, file.num_row_groups)


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
    "kind",
    [pa.decimal256(50, 2), pa.timestamp("ns"), pa.list_(pa.int64()), pa.time64("us"), pa.duration("us")],
    ids=str,
)
def test_a_type_that_is_not_plain_is_left_to_the_ordinary_way(tmp_path: Path, kind: pa.DataType) -> None:
    assert opened(written(tmp_path, {"n": pa.nulls(3, kind)})) is None


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


def test_a_frame_of_other_types_than_expected_is_not_used(tmp_path: Path) -> None:
    path = written(tmp_path, {"n": pa.array([1, 2], pa.int64())}, group_rows=1)
    with known_file(path) as (file, known):
        groups = WholeGroups("a", known, file.metadata, pa.schema([("n", pa.int32())]), 2, 1)
    assert module._slots.acquire(blocking=False)  # released by close
    assert frames(groups, [0, 1]) == [None, None]


@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_decimals_are_those_that_arrow_reads(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, precision))
    whole = st.integers(1 - 10**precision, 10**precision - 1)
    values = data.draw(st.lists(st.none() | whole.map(lambda n: Decimal(n).scaleb(-scale, WIDE)), max_size=9))
    column = pa.array(values, pa.decimal128(precision, scale))
    path = tmp_path_factory.mktemp("in") / "a.parquet"
    as_integer = data.draw(st.booleans())
    pq.write_table(pa.table({"n": column}), path, row_group_size=4, store_decimal_as_integer=as_integer)
    groups = opened(path)
    assert groups is not None
    found = frames(groups, list(range(pq.read_metadata(path).num_row_groups)))
    assert [value for frame in found if frame is not None for value in frame["n"].to_list()] == values


@pytest.mark.parametrize("name", ["*", "^b.*$", "^.*$", "a*"])
def test_names_of_columns_are_no_patterns(tmp_path: Path, name: str) -> None:
    groups = opened(written(tmp_path, {"b1": pa.array([1]), name: pa.array([2]), "a1": pa.array([3])}))
    assert groups is not None
    (frame,) = frames(groups, [0])
    assert frame is not None
    assert frame.to_dicts() == [{"b1": 1, name: 2, "a1": 3}]


def test_after_a_group_that_is_far_larger_than_it_seemed_no_other_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DECODED_BYTES_MAX", 1 << 16)
    path = written(tmp_path, {"t": pa.array(["x" * 10_000] * 30 + ["y"] * 10)}, group_rows=10)
    groups = opened(path)
    assert groups is not None
    first, *others = frames(groups, [0, 1, 3])
    assert first is not None
    assert others == [None, None]


def test_groups_whose_rows_are_known_to_be_large_are_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DECODED_BYTES_MAX", 1 << 10)
    path = written(tmp_path, {"n": pa.array([1] * 200)}, group_rows=129)
    groups = opened(path)
    assert groups is not None
    large, small = frames(groups, [0, 1])
    assert large is None  # 129 numbers of 8 bytes, however few are stored
    assert small is not None
    with known_file(path) as (file, known):
        groups = whole_groups("a", known, file, file.schema_arrow, 2, row_bytes=20)
    assert groups is not None
    assert frames(groups, [1]) == [None]


def test_texts_that_are_stored_once_and_repeated_can_swell(tmp_path: Path) -> None:
    columns = {"n": pa.array([1, 1]), "t": pa.array(["x", "x"])}
    metadata = pq.read_metadata(written(tmp_path, columns))
    assert can_swell(metadata, ["n", "t"])
    assert not can_swell(metadata, ["n"])
    pq.write_table(pa.table(columns), tmp_path / "plain.parquet", use_dictionary=False)
    assert not can_swell(pq.read_metadata(tmp_path / "plain.parquet"), ["n", "t"])


def test_a_file_that_is_gone_or_another_is_told_when_a_group_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path, {"n": pa.array(range(8))})
    content = path.read_bytes()

    def replace() -> None:
        path.rename(tmp_path / "old")
        path.write_bytes(content)

    def damage() -> None:
        path.write_bytes(b"")

    for change in (replace, damage, path.unlink):
        path.write_bytes(content)
        groups = opened(path)
        assert groups is not None
        assert groups.frame(0) is not None
        change()
        with pytest.raises(SourceError, match=r"a=\[1\]\.parquet was replaced.*the file changed"):
            frames(groups, [1])
