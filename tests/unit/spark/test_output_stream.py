"""Offsets of the output of a job as a stream."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

from malstrom_py.errors import SourceError
from malstrom_py.sinks.output_record import StepOutput, record_output
from malstrom_py.spark.output_stream import OutputStreamReader, offset_of
from tests.unit.sinks.writing import context


def reader(folder: Path, job: str | None = None, step: str | None = None) -> OutputStreamReader:
    return OutputStreamReader(str(folder), job, step, pa.schema([("n", pa.int64())]))


def commit(folder: Path, snapshot: str, *files: str, step: str = "out", final: bool = False) -> None:
    for file in files:
        (folder / file).write_text('{"n": 1}\n')
    record_output(folder, context(snapshot, step=step, final=final), StepOutput("json", files))


def test_an_offset_is_how_many_files_are_recorded_and_their_digest(tmp_path: Path) -> None:
    stream = reader(tmp_path)
    begin = stream.initialOffset()
    assert stream.latestOffset() == begin, "before the first commit"
    commit(tmp_path, "s1", "a.json", "b.json")
    first = stream.latestOffset(begin)
    assert first == offset_of("job", "out", ["a.json", "b.json"])
    commit(tmp_path, "s2")
    assert stream.latestOffset(first) == first, "a commit without rows"
    commit(tmp_path, "s3", "c.json")
    last = stream.latestOffset(first)
    assert (last["files"], last["digest"] != first["digest"]) == (3, True)
    assert [[split.file for split in task.value] for task in stream.partitions(begin, first)] == [["a.json", "b.json"]]
    assert [[split.file for split in task.value] for task in stream.partitions(first, last)] == [["c.json"]]
    assert stream.partitions(last, last) == []


def test_what_is_committed_after_a_query_with_an_end_has_begun_is_not_read_by_it(tmp_path: Path) -> None:
    stream = reader(tmp_path)
    stream.prepareForTriggerAvailableNow()
    commit(tmp_path, "s1", "a.json")
    assert stream.latestOffset(stream.initialOffset()) == stream.initialOffset()


@pytest.mark.parametrize("change", [{"files": 3}, {"digest": "0"}, {"job": "other"}, {"step": "other"}])
def test_an_offset_of_another_output_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    commit(tmp_path, "s1", "a.json", "b.json")
    stream = reader(tmp_path)
    here = stream.latestOffset()
    for calls in (stream.latestOffset, lambda start: stream.partitions(start, here)):
        with pytest.raises(SourceError, match="is another one now"):
            calls(here | change)
    with pytest.raises(SourceError, match="is another one now"):
        stream.partitions(here, stream.initialOffset())


def test_a_step_that_is_recorded_after_another_is_waited_for_until_the_job_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = reader(tmp_path, "job", "out")
    commit(tmp_path, "s1", "a.json", step="before")
    monkeypatch.setattr(time, "sleep", lambda _: commit(tmp_path, "s1", "b.json"))
    assert stream.latestOffset()["files"] == 1
    with pytest.raises(SourceError, match="several steps of job 'job'"):
        reader(tmp_path).latestOffset()
    commit(tmp_path, "s2", final=True)
    with pytest.raises(SourceError, match="no step 'absent' of job 'job'"):
        reader(tmp_path, "job", "absent").latestOffset()


@pytest.mark.parametrize(
    ("job", "step", "said"),
    [
        ("job", "absent", "no step 'absent' of job 'job' has written here; the steps are 'out'"),
        ("absent", None, "no output of a job 'absent' is recorded in .*; the recorded jobs are: job"),
    ],
)
def test_a_name_that_is_not_recorded_beside_others_is_an_error(
    job: str, step: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = reader(tmp_path, job, step)
    assert stream.latestOffset() == stream.initialOffset(), "nothing is recorded yet"
    commit(tmp_path, "s1", "a.json")
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda _: now.append(now.pop() + 3))
    with pytest.raises(SourceError, match=said):
        stream.latestOffset()
    assert now[0] > 9


def test_a_column_that_no_file_has_is_told_where_files_have_one_schema(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("m\n1\n")
    record_output(tmp_path, context(), StepOutput("csv", ("a.csv",)))
    stream = reader(tmp_path)
    with pytest.raises(SourceError, match="the output has no column 'n'"):
        stream.partitions(stream.initialOffset(), stream.latestOffset())
