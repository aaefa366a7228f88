"""Some columns of csv: the accelerator reads what Arrow's csv reader reads of whole records, bad ones included."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from malstrom_py import accelerator
from malstrom_py.sources.files.csv import CsvDecoder, arrow_type
from malstrom_py.sources.files.csv_records import Dialect, cut_records
from malstrom_py.sources.files.csv_scan import Projection
from malstrom_py.sources.files.frames import BadRecord
from tests.unit.sources.reading import runs_of
from tests.unit.state.accelerators import COMPILER, PATHS, library_of

NAMES = ["int", "text", "real", "day", "flag", "more", "last"]
SCHEMA = pa.schema(
    [
        ("int", arrow_type("int64")),
        ("text", pa.string()),
        ("real", arrow_type("float64")),
        ("day", arrow_type("date")),
        ("flag", arrow_type("bool")),
        ("more", pa.string()),
        ("last", arrow_type("int64")),
    ]
)
NUMBERS = st.sampled_from(["", "1", " 7", "-2\t", "+5", "0x1F", "007", "9223372036854775808", '"5"', '""', "NA", "1.5"])
TEXTS = st.sampled_from(
    [
        "", '""', "a", "é€", '"a,b"', '"say ""x"""', '"two\nlines"', '"a"b', '5" pipe', "NA", '"NA"', " ", "x" * 40,
        "\ufeff",
    ]
)  # fmt: skip
REALS = st.sampled_from(["", "1", "0.1", " 2.5 ", "nan", "-inf", "1e400", "+5", '"0.5"', "inf", "1_0"])
RECORD = st.tuples(
    NUMBERS, TEXTS, REALS, st.sampled_from(["", "2013-01-31", "x"]), st.sampled_from(["", "true", "1"]), TEXTS, NUMBERS
).map(",".join)
GOOD = st.tuples(st.sampled_from(["", "3", '"4"']), TEXTS, st.just("0.5,,,b,9")).map(",".join)
LINE = st.one_of(GOOD, GOOD, RECORD, st.sampled_from(["", "a,b", "1,,,,,,2,3", '"']))
CHOSEN = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)
NULLS = st.sampled_from([None, ["NA"]])


@st.composite
def frames_of_csv(draw: st.DrawFn) -> bytes:
    ends = draw(st.sampled_from([["\n"], ["\r\n"], ["\n", "\r\n", "\r"]]))
    lines = draw(st.lists(LINE, max_size=12))
    text = "".join(line + draw(st.sampled_from(ends)) for line in lines)
    return (text[:-1] if draw(st.booleans()) else text).encode() + draw(st.sampled_from([b"", b"1,\xff,,,,,"]))


def dialect_of(nulls: list[str] | None, *, one_line: bool) -> Dialect:
    return Dialect(null_values=None if nulls is None else tuple(nulls), one_line=one_line)


def decoded(path: str, frame: bytes, schema: pa.Schema, nulls: list[str] | None, *, one_line: bool) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerator, "library", lambda: library_of(path))
        decoder = CsvDecoder(NAMES, schema, (), dialect=dialect_of(nulls, one_line=one_line))
        return shown([*runs_of(decoder.runs(frame))])


def shown(runs: list[Any]) -> list[str]:
    """Return rows and bad records as text, in which one NaN is like another."""
    found = []
    for run in runs:
        if isinstance(run, BadRecord):
            found.append(repr(run))
        else:
            found += [f"{run.schema.names} {run.schema.types} {row}" for row in run.to_pylist()]
    return found


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(frame=frames_of_csv(), chosen=CHOSEN, nulls=NULLS, one_line=st.booleans())
@example(frame=b'1,"a""b",2,,,"c\r\n",3\r\n', chosen=["more", "text"], nulls=None, one_line=False)
@example(frame=b"1,\xef\xbb\xbfa,,,,,\n", chosen=["text"], nulls=["NA"], one_line=False)
@example(frame=b"\xef\xbb\xbf1,a,,,,,\n", chosen=["int"], nulls=None, one_line=False)
def test_both_ways_decode_the_same(frame: bytes, chosen: list[str], nulls: list[str] | None, one_line: bool) -> None:
    schema = pa.schema([SCHEMA.field(name) for name in chosen])
    found = [decoded(path, frame, schema, nulls, one_line=one_line) for path in PATHS]
    assert found[1:] == found[:-1]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(frame=frames_of_csv(), chosen=CHOSEN, nulls=NULLS, one_line=st.booleans())
@example(frame=b',,,,,"",', chosen=["int", "last"], nulls=None, one_line=False)
def test_some_columns_are_those_of_all(
    frame: bytes, chosen: list[str], nulls: list[str] | None, one_line: bool
) -> None:
    # A value of a column that is not read cannot be malformed: here it is a text, and the frame is UTF-8.
    frame = frame.decode(errors="replace").encode()
    # Of two malformed values of a record, that of the first column read is reported.
    chosen = sorted(chosen, key=NAMES.index)
    schema = pa.schema([SCHEMA.field(name) for name in chosen])
    others = pa.schema([field if field.name in chosen else (field.name, pa.string()) for field in SCHEMA])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerator, "library", lambda: library_of(PATHS[-1]))
        dialect = dialect_of(nulls, one_line=one_line)
        some = [*runs_of(CsvDecoder(NAMES, schema, (), dialect=dialect).runs(frame))]
        whole: list[Any] = [*runs_of(CsvDecoder(NAMES, others, (), dialect=dialect).runs(frame))]
    narrow = [run if isinstance(run, BadRecord) else run.select(chosen) for run in whole]
    assert shown(some) == shown(narrow)


@settings(max_examples=200, deadline=None)
@given(window=st.text(alphabet='a,"\n\r', max_size=200).map(str.encode), ended=st.booleans())
def test_both_ways_cut_at_the_same_record(window: bytes, ended: bool) -> None:
    found = []
    for path in PATHS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accelerator, "library", lambda path=path: library_of(path))
            found += [cut_records(window, ended), cut_records(bytearray(window), ended)]
    assert found[1:] == found[:-1]


@pytest.mark.parametrize(
    ("frame", "is_certain"),
    [
        (b'1,2,3\r\n\r\n"4","5,""6""\n",7', True),
        (b"1,2,3\n4,5\n", False),
        (b"1,2,3\n4,5,6,7\n", False),
        (b'1,2,5" pipe\n', False),
        (b'1,2,"open\n', False),
        (b"\xef\xbb\xbf1,2,3\n", False),
        (b"", False),
    ],
)
def test_it_answers_what_it_is_certain_of(frame: bytes, is_certain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "library", lambda: library_of(PATHS[-1]))
    found = Projection(["a", "b", "c"], ["b"], ["b"], one_line=False).split(frame)
    assert (found is not None) == (is_certain and COMPILER is not None)
    if found is not None:
        assert found[0]["b"].to_pylist() == ["2", '5,"6"\n']
