"""Split files: every record once, in order, wherever they are cut, and exactly the rest after any restore."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malstrom_py.errors import MalformedRecord, SourceError
from malstrom_py.sources.base import Part
from malstrom_py.sources.files import Files, frames
from malstrom_py.sources.files import parquet as parquet_part
from tests.unit.sources.reading import Bad, file_with, poll_once, polls, read_part, read_source

BOM = b"\xef\xbb\xbf"

TEXT = st.sampled_from([b"", b"a", b"some words", "é日本🎈".encode(), b"\r", b"x\ry", b"\xff", b"long" * 30])
JSON = st.sampled_from(
    [b"", b" \r", b"{broken", b"[1]", b"\xff", '{"n": 1, "t": "é日"}'.encode(), json.dumps({"t": "x" * 99}).encode()]
)
FIELDS = st.sampled_from(
    [b"", b"1", b"22", "é日本".encode(), '"quoted, ""é"""'.encode(), b'"open', b'st"ray', b"\xff", b"y" * 70]
)
CSV = st.lists(FIELDS, min_size=0, max_size=3).map(b",".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder; frames and batches are so small that each part has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "FRAME_BYTES", 64)
        patch.setattr(frames, "FRAME_BYTES_MIN", 16)
        patch.setattr(frames, "_CHUNK_BYTES", 3)
        patch.setattr(parquet_part, "_BATCH_ROWS_MIN", 3)
        yield tmp_path_factory.mktemp("splits")


def contents(lines: st.SearchStrategy[bytes], ends: list[bytes], head: bytes = b"") -> st.SearchStrategy[bytes]:
    """Draw files of lines with mixed line ends, with or without byte order mark and final line end."""
    ended = st.tuples(lines, st.sampled_from(ends)).map(b"".join)
    return st.tuples(st.sampled_from([b"", BOM]), st.just(head), st.lists(ended, max_size=25).map(b"".join), lines).map(
        b"".join
    )


def check_parts(source: Files[Any], expected: list[Any], sizes: list[int]) -> None:
    """Read all parts, each again from every position after polls of ``sizes``."""
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
    """Return the rows of the file read as one part."""
    source = Files(path, split_bytes=None, **options)
    assert source.list_parts() == [str(path)]
    return read_source(source)


SPLITS = st.integers(1, 200)
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=3)


LINES_OF = {
    "a.txt": contents(TEXT, [b"\n", b"\r\n"]),
    "a.jsonl": contents(JSON, [b"\n", b"\r\n"]),
    "a.csv": contents(CSV, [b"\n", b"\r\n", b"\r"], head=b"one,two\r\n")
    | contents(FIELDS, [b"\n", b"\r"], head=b"\n\none\r"),
}


def check_lines(folder: Path, name: str, content: bytes, split: int, sizes: list[int]) -> None:
    path = file_with(folder, name, content)
    options: dict[str, Any] = {"newlines_in_values": False} if name == "a.csv" else {}
    check_parts(Files(path, split_bytes=split, **options), in_one(path, **options), sizes)


@pytest.mark.parametrize("name", LINES_OF)
@given(data=st.data(), split=SPLITS, sizes=SIZES)
@settings(deadline=None)
def test_every_line_is_in_one_part(folder: Path, name: str, data: st.DataObject, split: int, sizes: list[int]) -> None:
    check_lines(folder, name, data.draw(LINES_OF[name]), split, sizes)


@pytest.mark.parametrize(
    ("name", "content", "split"),
    [
        ("a.txt", b"ab\ncd\n", 3),
        ("a.txt", b"ab\r\ncd", 3),
        ("a.txt", BOM + b"\n\n", 1),
        ("a.csv", b"one\n\n\n\n", 5),
        ("a.csv", b"one\r\r\n1\r\r", 1),
    ],
)
def test_a_cut_at_the_end_of_a_line_is_in_one_part(folder: Path, name: str, content: bytes, split: int) -> None:
    check_lines(folder, name, content, split, [1])


@pytest.mark.long
@given(groups=st.lists(st.integers(0, 40), max_size=6), split=st.integers(1, 2000), sizes=SIZES)
@settings(deadline=None, max_examples=25)
def test_every_row_group_is_in_one_part(folder: Path, groups: list[int], split: int, sizes: list[int]) -> None:
    path = folder / "a.parquet"
    schema = pa.schema([("at", pa.timestamp("ns")), ("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for number, rows in enumerate(groups):
            times = [1000 * row + (row % 13 == 12) for row in range(rows)]
            writer.write_table(pa.table({"at": times, "text": [f"{number}-é"] * rows}, schema=schema))
    check_parts(Files(path, split_bytes=split), in_one(path), sizes)


LINES = "".join(f"{n},{'é' * (n % 7)}\n" for n in range(40)).encode()


def test_parts_are_called_by_what_they_hold_and_a_small_file_by_its_path(tmp_path: Path) -> None:
    text = file_with(tmp_path, "a.txt", "x" * 25)
    assert Files(text, split_bytes=10).list_parts() == [f"{text}#bytes={part}" for part in ("0-10", "10-20", "20-30")]
    assert Files(text, split_bytes=25).list_parts() == [str(text)]
    assert Files(text).list_parts() == [str(text)]
    parquet = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1] * 50}), parquet, row_group_size=10)
    size = pq.ParquetFile(parquet).metadata.row_group(0).column(0).total_compressed_size
    names = [f"{parquet}#rowgroups={part}" for part in ("0-2", "2-4", "4-5")]
    assert Files(parquet, split_bytes=2 * size).list_parts() == names
    assert Files(parquet, split_bytes=5 * size).list_parts() == [str(parquet)]
    assert Files([parquet, parquet], split_bytes=None).list_parts() == [str(parquet)]


def test_what_cannot_be_entered_in_the_middle_stays_whole(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.jsonl.gz", "c.txt.gz", "d.log.zst"):
        packed = pa.compress(LINES, "zstd", asbytes=True) if name.endswith("zst") else gzip.compress(LINES)
        path = file_with(tmp_path, name, packed)
        assert Files(path, split_bytes=5).list_parts() == [str(path)]
    path = file_with(tmp_path, "e.csv", b"n,t\n" + LINES)
    assert Files(path, split_bytes=5).list_parts() == [str(path)]
    assert len(Files(path, split_bytes=5, newlines_in_values=False).list_parts()) > 50
    packed = file_with(tmp_path, "f.csv.gz", gzip.compress(b"n,t\n" + LINES))
    source: Files[Any] = Files(packed, split_bytes=5, newlines_in_values=False)
    assert source.list_parts() == [str(packed)]
    assert read_source(source) == read_source(Files(path))


@pytest.mark.parametrize("name", ["a.txt#bytes=0-5", "a.txt#rowgroups=0-1", "a.txt#whole"])
def test_a_file_that_is_called_like_a_part_is_read_as_it_is(name: str, tmp_path: Path) -> None:
    file_with(tmp_path, "a.txt", b"another file\n" * 9)
    path = file_with(tmp_path, name, LINES)
    for split in (None, 30):
        source = Files(path, format="text", split_bytes=split)
        assert read_source(source) == LINES.decode().splitlines()


def test_a_value_over_several_lines_is_malformed_and_not_read_wrongly(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.csv", b'n,t\n1,fine\n2,"two\nlines"\n3,"one ""line"""\n')
    assert read_source(Files(path))[1:] == [{"n": 2, "t": "two\nlines"}, {"n": 3, "t": 'one "line"'}]
    expected = [{"n": 1, "t": "fine"}, Bad('2,"two'), Bad('lines"'), {"n": 3, "t": 'one "line"'}]
    for split in (None, 1, 12, 20, 1000):
        assert read_source(Files(path, split_bytes=split, newlines_in_values=False)) == expected


def test_a_header_over_several_lines_is_refused(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.csv", b'\nn,"t\nu"\n1,2\n')
    assert read_source(Files(path)) == [{"n": 1, "t\nu": 2}]
    with pytest.raises(SourceError, match=r"a\.csv cannot be read: it does not begin with a CSV header: its quotes"):
        read_source(Files(path, newlines_in_values=False))


def test_a_message_names_the_part_and_the_record_in_it(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.csv", b"n,t\n1,a\n2,b\n3,c\n4,d\nsecret\n")
    source: Files[Any] = Files(path, split_bytes=12, newlines_in_values=False)
    part = source.build_part(source.list_parts()[1], None)
    assert poll_once(part, 2) == [{"n": 3, "t": "c"}, {"n": 4, "t": "d"}]
    with pytest.raises(MalformedRecord) as raised:
        part.poll(1)
    assert str(raised.value).startswith(f"{path}#bytes=12-24, record 3: 1 field, where the header has 2")
    part.close()


def test_parts_cost_nothing_until_they_are_polled(tmp_path: Path) -> None:
    opened = Path("/proc/self/fd")
    for name in ("a.txt", "a.csv"):
        source: Files[Any] = Files(file_with(tmp_path, name, b"n,t\n" + LINES), split_bytes=9, newlines_in_values=True)
        before = len(list(opened.iterdir()))
        parts = [source.build_part(part, None) for part in source.list_parts()]
        assert len(list(opened.iterdir())) == before
        parts[0].poll(1)
        assert len(list(opened.iterdir())) == before + 1
        for part in parts:
            part.close()


def test_a_part_restored_at_its_end_needs_no_file(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.txt", LINES)
    source = Files(path, split_bytes=50)
    part = source.build_part(source.list_parts()[1], None)
    rows = sum(map(len, polls(part)))
    position = part.snapshot()
    part.close()
    path.unlink()
    resumed = Files(path, split_bytes=50).build_part(Part(f"{path}#bytes=50-100"), position)
    assert rows
    assert poll_once(resumed, 5) == []
    assert resumed.is_finished()
    assert resumed.snapshot() == position


@pytest.mark.parametrize("name", ["b.csv", "b.parquet"])
def test_resumed_parts_keep_their_types_though_the_first_file_is_gone_or_changed(name: str, tmp_path: Path) -> None:
    for file, values in (("a", [1.5]), ("b", [2.0, 3.0, 4.0, 5.0])):
        table = pa.table({"n": values})
        if name.endswith("csv"):
            file_with(tmp_path, f"{file}.csv", "n\n" + "".join(f"{value:g}\n" for value in values))
        else:
            pq.write_table(table, tmp_path / f"{file}.parquet", row_group_size=2)
    pattern = tmp_path / f"*{Path(name).suffix}"
    options: dict[str, Any] = {"split_bytes": 4, "newlines_in_values": not name.endswith("csv")}
    source: Files[Any] = Files(pattern, **options)
    parts = [part for part in source.list_parts() if name in part]
    assert len(parts) > 1
    positions = []
    for part in parts:
        built = source.build_part(part, None)
        positions.append((poll_once(built, 1), built.snapshot()))
        built.close()
    for content in (b"n\ntext\n", b"damaged \xff", None):
        first = tmp_path / f"a{Path(name).suffix}"
        first.unlink() if content is None else first.write_bytes(content)
        resumed_source: Files[Any] = Files(pattern, **options)
        assert set(parts) < {*resumed_source.list_parts(), "more"}
        rows: list[Any] = []
        for part, (read, position) in zip(parts, positions, strict=True):
            resumed = resumed_source.build_part(part, position)
            rows += [*read, *(row for polled in polls(resumed) for row in polled)]
            resumed.close()
        assert [row["n"] for row in rows] == [2.0, 3.0, 4.0, 5.0]
        assert all(type(row["n"]) is float for row in rows)


def test_a_file_that_has_become_shorter_since_it_was_split_is_told(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.txt", LINES)
    source = Files(path, split_bytes=50)
    part = source.list_parts()[2]
    path.write_bytes(LINES[:100])
    with pytest.raises(SourceError, match=r"a\.txt#bytes=100-150 cannot be read: it has 100 bytes.*file changed"):
        read_part(source, part)
    parquet = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1] * 50}), parquet, row_group_size=10)
    source = Files(parquet, split_bytes=1)
    part = source.list_parts()[4]
    pq.write_table(pa.table({"n": [1] * 20}), parquet, row_group_size=10)
    with pytest.raises(SourceError, match=r"a\.parquet#rowgroups=4-5 ends before .*row group 4.*file changed"):
        read_part(source, part)


def test_a_text_grows_within_its_last_part_without_another_name(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.txt", LINES)
    parts = Files(path, split_bytes=100).list_parts()
    with path.open("ab") as file:
        file.write(b"more\n")
    assert Files(path, split_bytes=100).list_parts() == parts
    assert read_source(Files(path, split_bytes=100))[-1] == "more"


@given(
    groups=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    split=st.sampled_from([None, 1, 700]),
    polled=st.lists(st.tuples(st.booleans(), st.integers(1, 12)), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=20)
def test_row_groups_taken_as_wholes_have_the_same_positions(
    folder: Path, groups: list[int], split: int | None, polled: list[tuple[bool, int]]
) -> None:
    path = folder / "plain.parquet"
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for number, rows in enumerate(groups):
            writer.write_table(pa.table({"n": range(rows), "text": [f"{number}-é"] * rows}, schema=schema))
    source = Files(path, split_bytes=split)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_part, "_WHOLE_ROWS_MIN", 1)
        for part in source.list_parts():
            rows_left = read_part(source, part)
            opened: Any = source.build_part(part, None)
            for by_columns, size in cycle(polled):
                resumed = source.build_part(part, opened.snapshot())
                assert [row for rows in polls(resumed, [size]) for row in rows] == rows_left
                resumed.close()
                opened.set_polls(frames=by_columns, bad_rows=False)
                batch = opened.poll(size)
                rows_left = rows_left[0 if batch is None else len(batch) :]
                if opened.is_finished():
                    break
            assert rows_left == []
            opened.close()


@pytest.mark.parametrize("name", ["long.txt", "long.csv"])
def test_a_line_that_is_too_long_is_one_malformed_record_wherever_the_cuts_are(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES", 16)
    monkeypatch.setattr(frames, "RECORD_BYTES_MAX", 32)
    content = b"n\n" + b"\n".join([b"ok", b"x" * 70, b"y" * 31, b"z" * 32, b"", b"w" * 33, b"end"])
    path = file_with(folder, name, content)
    options: dict[str, Any] = {"newlines_in_values": not name.endswith("csv")}
    expected = in_one(path, **options)
    assert sum(isinstance(row, Bad) for row in expected) == 3
    for split in range(1, 90, 4):
        check_parts(Files(path, split_bytes=split, **options), expected, [2, 1])
