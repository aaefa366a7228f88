"""`Files`: what is written becomes visible whole, once, at the commit; and what the values look like then."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.files import Files
from malstrom_py.sinks.files.json_lines import json_line, plain_lines
from malstrom_py.sources.files import Files as FilesSource
from tests.unit.sinks.writing import WORKER, Format, everything, visible, write
from tests.unit.sources.reading import read_source

FORMATS: list[Format] = ["csv", "json", "parquet"]


@dataclasses.dataclass
class Leg:
    carrier: str
    delay: int | None


@dataclasses.dataclass
class Point:
    x: float


class Pair(NamedTuple):
    left: int
    right: int


DAY, AT = dt.date(2013, 1, 1), dt.datetime(2013, 1, 1, 5)  # noqa: DTZ001
ZONED = AT.replace(tzinfo=dt.timezone(dt.timedelta(hours=5)))


def rows(folder: Path, format: Format = "parquet") -> list[Any]:
    return read_source(FilesSource(folder / f"*.{format}"))


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_committed_can_be_read_back(format: Format, tmp_path: Path) -> None:
    values = [{"n": n, "x": n / 4, "t": ["é", '"quoted"\n', "", None][n % 4], "b": n % 2 == 0} for n in range(50)]
    write(tmp_path / "new" / "out", values[:20], values[20:], format=format)
    assert rows(tmp_path / "new" / "out", format) == values
    assert everything(tmp_path / "new" / "out") == [f"out-s1-00000.{format}"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_job_without_rows_makes_the_folder_and_no_file(format: Format, tmp_path: Path) -> None:
    write(tmp_path / "out", [], format=format)
    assert (tmp_path / "out").is_dir()
    assert everything(tmp_path) == ["out"]


def test_a_writer_that_is_closed_before_its_commit_leaves_no_folder_that_it_made(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "there", tmp_path / "new" / "out"):
        sink = Files(folder, format="json")
        first, second = sink.open(WORKER), sink.open(WORKER)
        first.close()
        second.write(Batch([{"n": 1}]))
        second.close()
    assert everything(tmp_path) == ["there"]


@pytest.mark.parametrize("format", FORMATS)
def test_files_roll_over_at_their_size_and_are_numbered_as_written(format: Format, tmp_path: Path) -> None:
    values = [{"n": n} for n in range(2000)]
    parts = [values[start : start + 50] for start in range(0, 2000, 50)]
    write(tmp_path, *parts, format=format, file_bytes_max=500)
    sizes = [(tmp_path / path).stat().st_size for path in visible(tmp_path)]
    assert len(sizes) > 10
    assert min(sizes[:-1]) >= 500
    assert rows(tmp_path, format) == values
    write(tmp_path / "one", *parts, format=format, file_bytes_max=1 << 20)
    assert len(everything(tmp_path / "one")) == 1


@pytest.mark.parametrize("size", [0, -1, 1.5, True, None, "1"])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(PlanError, match="file_bytes_max must be a whole number of at least 1"):
        Files("out", file_bytes_max=size)


def test_values_that_are_no_dict_become_columns(tmp_path: Path) -> None:
    for name, values, expected in (
        (
            "dataclass",
            [Leg("UA", None), Leg("B6", 3)],
            [{"carrier": "UA", "delay": None}, {"carrier": "B6", "delay": 3}],
        ),
        ("namedtuple", [Pair(1, 2)], [{"left": 1, "right": 2}]),
        ("number", [1, None, 2], [{"value": 1}, {"value": None}, {"value": 2}]),
        ("tuple", [(1, 2)], [{"value": [1, 2]}]),
    ):
        for format in ("parquet", "json"):
            write(tmp_path / name / format, values, format=format)
            assert rows(tmp_path / name / format, format) == expected


@pytest.mark.parametrize("format", FORMATS)
def test_the_key_comes_first_unless_the_value_has_one(format: Format, tmp_path: Path) -> None:
    write(tmp_path / "a", Batch([{"n": 1}, {"n": 2}], keys=["x", "y"]), format=format)
    assert rows(tmp_path / "a", format) == [{"key": "x", "n": 1}, {"key": "y", "n": 2}]
    assert list(rows(tmp_path / "a", format)[0]) == ["key", "n"]
    write(tmp_path / "b", Batch([{"key": 5}], keys=["x"]), format=format)
    assert rows(tmp_path / "b", format) == [{"key": 5}]
    write(tmp_path / "c", Batch([7], keys=["x"]), format=format)
    assert rows(tmp_path / "c", format) == [{"key": "x", "value": 7}]


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_field_that_is_lacking_is_none_and_one_too_many_is_an_error(format: Format, tmp_path: Path) -> None:
    write(tmp_path / "a", [{"n": 1}, {"m": 2}], [{"n": 3}], format=format)
    assert rows(tmp_path / "a", format) == [{"n": 1, "m": None}, {"n": None, "m": 2}, {"n": 3, "m": None}]
    with pytest.raises(SinkError, match="columns 'm' are not among those of the first batch \\('n'\\)"):
        write(tmp_path / "b", [{"n": 1}], [{"n": 2, "m": 3}], format=format)


def test_json_lines_have_their_own_fields(tmp_path: Path) -> None:
    write(tmp_path, [{"n": 1}], [{"m": "x"}, 5], format="json")
    assert rows(tmp_path, "json") == [{"n": 1}, {"m": "x"}, {"value": 5}]


@pytest.mark.parametrize("file_bytes_max", [1, 100, 1 << 20])
def test_types_widen_and_the_files_of_a_commit_are_alike(file_bytes_max: int, tmp_path: Path) -> None:
    batches: list[list[Any]] = [
        [{"x": None, "y": 1, "z": {"a": 1}, "w": None}],
        [{"x": 5, "y": 2.5, "z": {"a": None, "b": "t"}, "w": None}],
        [{"x": None, "y": 3, "z": None, "w": None}],
    ]
    write(tmp_path, *batches, file_bytes_max=file_bytes_max)
    schemas = [pq.read_schema(path) for path in sorted(tmp_path.glob("*.parquet"))]
    expected = pa.schema(
        [
            ("x", pa.int64()),
            ("y", pa.float64()),
            ("z", pa.struct([("a", pa.int64()), ("b", pa.string())])),
            ("w", pa.string()),
        ]
    )
    assert all(schema.equals(expected) for schema in schemas)
    table = pa.concat_tables([pq.read_table(path) for path in sorted(tmp_path.glob("*.parquet"))])
    assert table["y"].to_pylist() == [1.0, 2.5, 3.0]
    assert table["x"].to_pylist() == [None, 5, None]


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize(("first", "then"), [(1, 2**70), (0.5, 2**53 + 1), (2**70, 0.5)])
def test_values_that_do_not_go_into_one_column_name_it(first: Any, then: Any, format: Format, tmp_path: Path) -> None:
    apart: list[list[Any]] = [[{"n": first}], [{"n": then}]]
    together: list[list[Any]] = [[{"n": first}, {"n": then}]]
    for number, batches in enumerate([apart, together]):
        with pytest.raises(SinkError, match=r"column 'n' holds (values of type|an int beyond 64 bits)"):
            write(tmp_path / str(number), *batches, format=format)


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("one", "other"),
    [(DAY, AT), (AT, DAY), (AT, ZONED), (ZONED, AT), (ZONED, DAY), ("a", b"a"), (b"\xff", "a"), (1, "a"), (True, 1)],
)
def test_kinds_that_arrow_would_mix_never_share_a_column(one: Any, other: Any, format: Format, tmp_path: Path) -> None:
    said = set()
    for batches in ([[one, other]], [[one], [other]], [[None, one], [None], [other]]):
        with pytest.raises(SinkError, match=r"column 'value' holds .* and .*: convert them to one type") as raised:
            write(tmp_path, *batches, format=format)
        said.add(str(raised.value))
    assert len(said) == 1


def test_kinds_are_told_apart_inside_lists_and_dicts_and_keys_too(tmp_path: Path) -> None:
    for values, column in (
        ([{"n": [DAY]}, {"n": [None, AT]}], r"n\[\]"),
        ([{"n": {"m": AT}}, {"n": {"m": ZONED}}], r"n\.m"),
        ([{"n": [{"m": "a"}, {"m": b"a"}]}], r"n\[\]\.m"),
    ):
        for batches in ([values], [[value] for value in values]):
            with pytest.raises(SinkError, match=f"column '{column}' holds"):
                write(tmp_path, *batches)
    with pytest.raises(SinkError, match="column 'key' holds bytes and str"):
        write(tmp_path, Batch([1, 2], keys=["a", b"a"]))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("values", [[{"a": 1}, {"a": 2, "key": 9}], [{"a": 2, "key": 9}, {"a": 1}]])
def test_a_key_of_the_stream_and_one_of_the_values_never_share_a_column(
    values: list[Any], format: Format, tmp_path: Path
) -> None:
    for batches in ([Batch(values, keys=["x", "y"])], [Batch([value], keys=["x"]) for value in values]):
        with pytest.raises(SinkError, match="column 'key' would hold"):
            write(tmp_path, *batches, format=format)


@pytest.mark.parametrize("values", [[1, None, 3], [None], ["a", None, "", None]])
def test_none_in_a_csv_of_one_column_comes_back(values: list[Any], tmp_path: Path) -> None:
    write(tmp_path, values, format="csv")
    assert rows(tmp_path, "csv") == [{"value": value} for value in values]


def test_values_that_arrow_does_not_know_name_their_column(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="column 'n' holds values of type 'object'"):
        write(tmp_path, [{"n": object()}])
    for format in FORMATS:
        with pytest.raises(SinkError, match="column's name is of type int"):
            write(tmp_path, [{1: 2, "1": 3}], format=format)
    with pytest.raises(SinkError, match="no fields"):
        write(tmp_path, [{}])


def test_csv_refuses_what_is_no_plain_value(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"column 'n' holds list<item: int64>, and csv holds only plain values"):
        write(tmp_path, [{"n": [1, 2]}], format="csv")


def test_times_in_csv_and_parquet(tmp_path: Path) -> None:
    east = dt.timezone(dt.timedelta(hours=9))
    value = {
        "at": dt.datetime(2013, 1, 1, 5, 0, 0, 250, tzinfo=east),
        "day": dt.date(2013, 1, 1),
        "clock": dt.time(5, 30),
        "money": Decimal("1.25"),
        "number": np.float64(1.5),
    }
    later = {**value, "at": dt.datetime(2013, 1, 1, tzinfo=dt.UTC)}
    for format in ("csv", "parquet"):
        write(tmp_path / format, [value], [later], format=format)
        found = rows(tmp_path / format, format)
        assert [row["at"] for row in found] == [value["at"], later["at"]]
        assert found[0]["day"] == value["day"]
        assert str(found[0]["clock"]).startswith("05:30:00")
        assert float(found[0]["money"]) == 1.25


PLAIN = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.floats(-1e17, 1e17), st.text(), st.booleans(), st.none()
)


@given(st.lists(st.dictionaries(st.text(max_size=3), PLAIN | st.lists(PLAIN, max_size=1), max_size=4), max_size=4))
@example([{"a": value} for value in (0.0, -0.0, 1e-4, 9.9e-5, 9999999999999998.0, 1e16, math.nan, -math.inf)])
@example([{"".join(map(chr, range(0x300))): "".join(map(chr, range(0x300)))}])
@example([{"a": "\ud800"}])
def test_json_of_plain_values_is_what_the_general_encoder_writes(rows: list[dict[str, Any]]) -> None:
    for some in (rows, *([row] for row in rows)):
        lines = plain_lines(some)
        assert lines is None or lines == "".join(f"{json_line(row)}\n" for row in some).encode() or not some


def test_json_of_values_that_json_does_not_know(tmp_path: Path) -> None:
    value = {
        "at": dt.datetime(2013, 1, 1, tzinfo=dt.UTC),
        "nan": float("nan"),
        "deep": [{"inf": float("-inf")}],
        "money": Decimal("1.25"),
        "number": np.int64(3),
        "leg": Leg("é", 1),
        "nans": [Point(float("nan")), np.float32("nan"), np.float64("inf")],
    }
    write(tmp_path, [value, {"n": 1}], format="json")
    (file,) = tmp_path.glob("*.json")
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {
            "at": "2013-01-01T00:00:00+00:00",
            "nan": None,
            "deep": [{"inf": None}],
            "money": "1.25",
            "number": 3,
            "leg": {"carrier": "é", "delay": 1},
            "nans": [{"x": None}, None, None],
        },
        {"n": 1},
    ]
    circle: dict[str, Any] = {}
    circle["self"] = circle
    for wrong in ({"n": object()}, {"n": {(1, 2): 3}}, circle):
        with pytest.raises(SinkError, match="cannot be written as JSON"):
            write(tmp_path, [wrong], format="json")


def test_many_small_batches_are_collected_into_large_row_groups(tmp_path: Path) -> None:
    write(tmp_path, *([{"n": n}] for n in range(1000)))
    assert rows(tmp_path) == [{"n": n} for n in range(1000)]
    assert pq.ParquetFile(tmp_path / "out-s1-00000.parquet").num_row_groups == 1


def test_a_wrong_format_is_refused_at_once() -> None:
    wrong: Any = "xml"
    with pytest.raises(PlanError, match="format must be one of csv, json, parquet"):
        Files("out", format=wrong)
