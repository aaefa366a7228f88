"""`Files`: parts, formats, types that all files and a resumed run share, and errors for bad input."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources.base import Part
from malstrom_py.sources.files import Files
from tests.unit.sources.reading import Bad, file_with, poll_once, polls, read_part, read_source


def test_each_file_is_a_part_named_by_its_path(tmp_path: Path) -> None:
    for name in ("2.csv", "10.csv", "1.csv"):
        file_with(tmp_path, name, f"n\n{name[:-4]}\n")
    source = Files(str(tmp_path / "*.csv"))
    assert source.list_parts() == [f"{tmp_path}/{name}" for name in ("1.csv", "10.csv", "2.csv")]
    assert read_source(source) == [{"n": 1}, {"n": 10}, {"n": 2}]


def test_relative_paths_stay_and_are_seen_from_where_the_source_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_with(tmp_path, "data/a.txt", "one\n")
    monkeypatch.chdir(tmp_path)
    source = Files("data/*.txt")
    monkeypatch.chdir("/")
    assert source.list_parts() == ["data/a.txt"]
    assert read_source(source) == ["one"]


def test_the_format_can_be_given(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.dat", "n\n1\n")
    assert read_source(Files(path, format="csv")) == [{"n": 1}]
    assert read_source(Files([path], format="text")) == ["n", "1"]
    with pytest.raises(PlanError, match="pass format="):
        Files(path)


def test_the_format_is_found_by_the_files_a_pattern_matches(tmp_path: Path) -> None:
    file_with(tmp_path, "a.csv.gz", gzip.compress(b"n\n1\n"))
    file_with(tmp_path, "b.csv", "n\n2\n")
    assert read_source(Files(tmp_path / "*")) == [{"n": 1}, {"n": 2}]
    part = Files(tmp_path / "*").build_part(Part(f"{tmp_path}/b.csv"), None)
    assert poll_once(part, 5) == [{"n": 2}]
    part.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"format": "xml"}, "format must be one of"),
        ({"null_values": "NA"}, "list of str"),
        ({"null_values": [5]}, "list of str"),
        ({"null_values": 5}, "list of str"),
        ({"types": "str"}, "types must be a dict"),
        ({"types": {5: "str"}}, "types must be a dict"),
        ({"types": {"n": "integer"}}, "the type of 'n' must be one of bool, date, .*got 'integer'"),
        ({"types": {"n": int}}, "the type of 'n' must be one of .*got a type"),
        ({"types": {"n": "str"}, "format": "json"}, "types is for csv"),
        ({"null_values": ["NA"], "format": "json"}, "for csv"),
        ({"newlines_in_values": False, "format": "text"}, "newlines_in_values is for csv"),
        ({"newlines_in_values": "no"}, "newlines_in_values must be True or False, got 'no'"),
        ({"follow": 1}, "follow must be True or False, got 1"),
        ({"split_bytes": 0}, "split_bytes must be a whole number of bytes of at least 1, or None.*got 0"),
        ({"split_bytes": True}, "split_bytes must be a whole number"),
        ({"split_bytes": 1e6}, "split_bytes must be a whole number"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        Files("a.csv", **arguments)


def test_null_values_for_files_that_are_no_csv_are_refused_once_that_is_known(tmp_path: Path) -> None:
    file_with(tmp_path, "a.json", "{}")
    with pytest.raises(PlanError, match="for csv"):
        Files(tmp_path / "*", null_values=["NA"]).list_parts()
    with pytest.raises(PlanError, match="for csv"):
        Files(tmp_path / "*", newlines_in_values=False).list_parts()


def test_every_file_has_the_types_of_the_first(tmp_path: Path) -> None:
    file_with(tmp_path, "a.csv", "n\n1.5\n")
    file_with(tmp_path, "b.csv", "n\n2\n")
    file_with(tmp_path, "c.csv", "n\nthree\n")
    rows = read_source(Files(tmp_path / "*.csv"))
    assert rows == [{"n": 1.5}, {"n": 2.0}, Bad("three")]
    assert type(rows[1]["n"]) is float


def test_a_position_of_another_format_is_refused(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.csv", "n\n1\n")
    part = Files(path, format="text").build_part(Part(str(path)), None)
    with pytest.raises(SourceError, match="would be read as csv, but its saved position is one in text"):
        Files(path).build_part(Part(str(path)), part.snapshot())
    part.close()


def pinned(pattern: Path, record: Any = None, **options: Any) -> Any:
    """Return a source that a job has begun to read; with ``record``, one that resumes."""
    source: Files[Any] = Files(pattern, **options)
    source.pin("job", record)
    return source


def test_a_resumed_job_reads_the_files_of_its_start_as_they_were_split(tmp_path: Path) -> None:
    a, b = (file_with(tmp_path, name, "one\ntwo\nthree\n") for name in ("a.txt", "b.txt"))
    first = pinned(tmp_path / "*.txt", split_bytes=7)
    parts = list(first.list_parts())
    assert len(parts) == 4
    begun, ended = first.build_part(parts[0], None), first.build_part(parts[2], None)
    assert poll_once(begun, 1) == ["one"]
    assert [row for polled in polls(ended) for row in polled] == ["one", "two"]
    states = {parts[0]: begun.snapshot(), parts[2]: ended.snapshot()}
    begun.close()
    ended.close()
    os.utime(a, (1, 1))  # a copy, on another host
    b.write_text("other\nlines\n")
    file_with(tmp_path, "c.txt", "late\n")
    again = pinned(tmp_path / "*.txt", first.pin_record(), split_bytes=1_000)
    assert list(again.list_parts()) == parts
    resumed = again.build_part(parts[0], states[parts[0]])
    assert poll_once(resumed, 9) == ["two"]
    resumed.close()
    assert read_part(again, parts[1]) == ["three"]
    assert again.build_part(parts[2], states[parts[2]]).is_finished()  # what was read to its end may change
    with pytest.raises(SourceError, match=r"b\.txt#bytes=7-14: the file changed since the job started"):
        read_part(again, parts[3])


def test_partitions_that_have_not_begun_are_read_in_the_types_of_the_pin(tmp_path: Path) -> None:
    first, second = file_with(tmp_path, "a.csv", "n\n1.5\n"), file_with(tmp_path, "b.csv", "n\n2\n")
    record = pinned(tmp_path / "*.csv").pin_record()
    first.unlink()
    (row,) = read_part(pinned(tmp_path / "*.csv", record), Part(str(second)))
    assert type(row["n"]) is float
    (row,) = read_part(pinned(tmp_path / "*.csv", record, types={"n": "str"}), Part(str(second)))
    assert row == {"n": "2"}


def test_what_a_pin_cannot_be_resumed_with_is_an_error(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.dat", "n\n1\n" * 9)
    record = pinned(path, format="csv", newlines_in_values=False, split_bytes=9).pin_record()
    with pytest.raises(SourceError, match=r"would be read as text.*set format='csv'"):
        read_source(pinned(path, record, format="text"))
    with pytest.raises(SourceError, match="which is not split now: give the former split_bytes"):
        read_source(pinned(path, record, format="csv"))
    with pytest.raises(SourceError, match="give the job its former source"):
        pinned(tmp_path / "*.dat", record, format="csv")


def test_a_growing_folder_has_no_pin(tmp_path: Path) -> None:
    for options in ({"follow": True}, {"new_files": True}):
        source = pinned(tmp_path / "*.csv", **options)
        assert source.pin_record() is None
        source.unpin()


@pytest.mark.parametrize("format", ["csv", "json", "parquet", "text"])
def test_a_file_that_cannot_be_opened_is_told_by_name(format: Any, tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, says in (("dangling", "does not exist"), ("loop", "symbolic links")):
        with pytest.raises(SourceError, match=f"{name} cannot be read: .*{says}"):
            read_source(Files(tmp_path / name, format=format))


@pytest.mark.parametrize("suffix", ["txt", "csv", "json"])
def test_a_truncated_gz_gives_what_is_whole_and_then_says_how_much_that_was(suffix: str, tmp_path: Path) -> None:
    line = '{"n": %d}\n' if suffix == "json" else "%d\n"
    lines = ["n\n"] * (suffix == "csv") + [line % n for n in range(300_000)]
    path = file_with(tmp_path, f"a.{suffix}.gz", gzip.compress("".join(lines).encode())[:-20_000])
    source = Files(path)
    part = source.build_part(source.list_parts()[0], None)
    rows: list[Any] = []
    with pytest.raises(SourceError) as raised:
        rows.extend(row for polled in polls(part) for row in polled)
    assert 100_000 < len(rows) < 300_000
    assert f"{path} failed after {len(rows)} records were read: the compressed data is cut off" in str(raised.value)
    part.close()


def test_a_gz_cut_off_in_its_header_line_is_told(tmp_path: Path) -> None:
    for size in (5, 15):
        path = file_with(tmp_path, "a.csv.gz", gzip.compress(b"n,m\n1,2\n")[:size])
        with pytest.raises(SourceError, match=r"a\.csv\.gz cannot be read: the compressed data is cut off"):
            read_source(Files(path))


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv.zst", "a.json.gz", "a.txt.zst"])
def test_a_compressed_file_of_no_bytes_is_cut_off_and_not_empty(name: str, tmp_path: Path) -> None:
    path = file_with(tmp_path, name, b"")
    with pytest.raises(SourceError, match=f"{name} cannot be read: the compressed data is cut off"):
        read_source(Files(path))


def test_null_values_of_a_generator_are_not_used_up(tmp_path: Path) -> None:
    source = Files(file_with(tmp_path, "a.csv", "n\n1\nNA\n"), null_values=(value for value in ["NA"]))
    for _ in range(2):
        assert read_source(source) == [{"n": 1}, {"n": None}]


def test_each_run_finds_the_types_afresh(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a.csv", "n\none\n")
    source = Files(path)
    assert read_source(source) == [{"n": "one"}]
    path.write_text("m\n1\n")
    assert read_source(source) == [{"m": 1}]


def test_new_files_without_snapshots_reads_all_again_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in.csv").write_text("n\n1\n")

    def nightly(*, new_files: bool = False) -> mp.Job:
        job = mp.Job("nightly")
        job.source("in", Files(tmp_path / "*.csv", new_files=new_files)).sink("out", sinks.Memory())
        return job

    mp.run(nightly(), progress=False)
    mp.run(nightly(new_files=True), progress=False, snapshots=mp.Snapshots(str(tmp_path / "kept")))
    assert caplog.messages == []
    for _ in range(2):
        assert mp.run(nightly(new_files=True), 2, progress=False).read == 1
        (warned,) = caplog.messages
        assert "should read only new input since the last run in source 'in'" in warned
        assert "snapshots=mp.Snapshots" in warned
        caplog.clear()
