"""The output record of a job in a folder, and the targets of sinks."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError, SinkError, SourceError
from malstrom_py.local_files import locked
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.sinks.output_record import StepOutput, begin_record, jobs_in, read_output, record_output
from tests.unit.sinks.writing import context, everything, visible

CSV = StepOutput("csv", ("a.csv",))


def test_steps_of_one_snapshot_share_a_record_and_another_snapshot_replaces_it(tmp_path: Path) -> None:
    schema: bytes = pa.schema([("n", pa.int64())]).serialize().to_pybytes()
    parquet = StepOutput("parquet", ("b.parquet", "d=1/c.parquet"), schema)
    record_output(tmp_path, context(step="one"), CSV)
    record_output(tmp_path, dataclasses.replace(context(step="two"), result={"job": "job"}), parquet)
    output = read_output(tmp_path, "job")
    assert output.outputs == {"one": CSV, "two": parquet}
    assert (output.job, output.snapshot, output.result) == ("job", "s1", {"job": "job"})
    record_output(tmp_path, context("s2", step="one"), CSV)
    assert read_output(tmp_path, "job").outputs == {"one": CSV}


def test_each_job_has_a_record_of_its_own(tmp_path: Path) -> None:
    for job in ("b", "a"):
        record_output(tmp_path, context(job=job), CSV)
    assert jobs_in(tmp_path) == ["a", "b"]
    assert everything(tmp_path) == ["_malstrom", "_malstrom/a.json", "_malstrom/b.json"]


def test_a_record_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no output of a job 'x' .* the recorded jobs are: none"):
        read_output(tmp_path, "x")
    record_output(tmp_path, context(), CSV)
    with pytest.raises(SourceError, match="the recorded jobs are: job"):
        read_output(tmp_path, "x")


def _with(outputs: str) -> bytes:
    return f'{{"format": 1, "job": "j", "snapshot": "s", "result": null, "outputs": {outputs}}}'.encode()


DAMAGED = [
    b"",
    b"{}",
    b"[]",
    b"\xff",
    b'{"format": 2}',
    _with('{"o": {}}'),
    _with('{"o": {"format": "csv", "files": [1], "schema": null}}'),
    _with('{"o": {"format": "csv", "files": [], "schema": "?"}}'),
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_is_told_to_readers_and_replaced_by_the_next_commit(text: bytes, tmp_path: Path) -> None:
    record_output(tmp_path, context(), CSV)
    (tmp_path / "_malstrom" / "job.json").write_bytes(text)
    with pytest.raises(SourceError, match="is not a valid output record"):
        read_output(tmp_path, "job")
    record_output(tmp_path, context("s2"), CSV)
    assert read_output(tmp_path, "job").snapshot == "s2"


def test_nothing_is_recorded_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "_malstrom").symlink_to(tmp_path)
    with pytest.raises(SinkError, match="symbolic link"):
        record_output(tmp_path, context(), CSV)


def test_a_record_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        record_output(tmp_path, context(), CSV)
    assert everything(tmp_path) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_leaves_its_counts_with_its_files(workers: int, tmp_path: Path) -> None:
    job = mp.Job("counted")
    rows = job.source("in", sources.Memory([{"n": n} for n in range(9)], parts=2))
    odd, even = rows.branch("odd", lambda row: row["n"] % 2)
    odd.sink("odds", sinks.Files(tmp_path))
    even.sink("evens", sinks.Files(tmp_path, format="json"))
    result = mp.run(job, workers=workers)
    output = read_output(tmp_path, "counted")
    assert sorted(name for step in output.outputs.values() for name in step.files) == sorted(
        map(str, visible(tmp_path))
    )
    schema = output.outputs["odds"].schema
    assert schema is not None
    assert pa.ipc.read_schema(pa.py_buffer(schema)) == pa.schema([("n", pa.int64())])
    assert (output.outputs["evens"].format, output.outputs["evens"].schema) == ("json", None)
    steps: Any = (output.result or {})["steps"]
    assert {name: counts["rows_in"] for name, counts in steps.items()} == {
        name: counts.rows_in for name, counts in result.steps.items()
    }


def test_a_commit_that_cannot_record_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "_malstrom").touch()
    job = mp.Job("refused")
    job.source("in", sources.Memory([1])).sink("out", sinks.Files(tmp_path, format="csv"))
    with pytest.raises(SinkError, match="a file is in the place of a folder"):
        mp.run(job)
    assert everything(tmp_path) == ["_malstrom"]


def test_a_record_is_json_that_others_can_read(tmp_path: Path) -> None:
    record_output(tmp_path, context(), CSV)
    assert json.loads((tmp_path / "_malstrom" / "job.json").read_bytes()) == {
        "format": 1,
        "job": "job",
        "snapshot": "s1",
        "final": True,
        "result": None,
        "outputs": {"out": {"format": "csv", "files": ["a.csv"], "schema": None}},
    }


def job(*targets: Any) -> mp.Job:
    made = mp.Job("many")
    stream = made.source("in", sources.Memory([{"n": 1}]))
    for number, sink in enumerate(targets):
        stream.sink(f"out{number}", sink)
    return made


@pytest.mark.parametrize("mode", ["overwrite", "error"])
@pytest.mark.parametrize("other", ["append", "overwrite"])
def test_a_folder_that_one_sink_replaces_is_no_other_sinks(mode: Any, other: Any, tmp_path: Path) -> None:
    replacing, added = sinks.Spark(tmp_path / "out", mode=mode), sinks.Spark(tmp_path / "out", mode=other)
    with pytest.raises(PlanError, match=r"'out0' and 'out1' write to the same .*/out', and 'out0'.* would replace it"):
        job(replacing, added).plan()
    with pytest.raises(PlanError, match="write to the same"):
        job(sinks.Files(tmp_path / "out"), replacing).plan()


def test_a_folder_in_one_that_is_replaced_is_told_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for inner in (tmp_path / "out" / "sub", tmp_path / "link" / "sub", f"file://{tmp_path}/out/sub"):
        with pytest.raises(PlanError, match=r"/out' and .*/sub', and 'out0' would replace it"):
            job(sinks.Spark(tmp_path / "out", mode="overwrite"), sinks.Spark(inner)).plan()


def test_a_table_that_one_sink_replaces_is_no_other_sinks() -> None:
    with pytest.raises(PlanError, match="would replace it"):
        job(sinks.Spark(table="default.Sales", mode="overwrite"), sinks.Spark(table="`sales`")).plan()


def test_sinks_that_add_to_one_place_and_those_of_several_go_together(tmp_path: Path) -> None:
    job(sinks.Spark(tmp_path / "out"), sinks.Spark(tmp_path / "out"), sinks.Files(tmp_path / "out")).plan()
    job(sinks.Spark(tmp_path / "a", mode="overwrite"), sinks.Spark(tmp_path / "ab", mode="overwrite")).plan()
    job(sinks.Spark(table="a", mode="overwrite"), sinks.Spark(tmp_path / "a"), sinks.Memory()).plan()
    job(sinks.Spark(foreach_snapshot=print), sinks.Spark(foreach_snapshot=print), sinks.Stdout()).plan()


def test_a_run_that_resumes_after_the_clock_was_set_back_adds_to_the_record(tmp_path: Path) -> None:
    record_output(tmp_path, context("s5"), CSV)
    begin_record(tmp_path, "job", [SnapshotId("s5")], before="s2")
    record_output(tmp_path, context("s6"), StepOutput("csv", ("b.csv",)))
    assert read_output(tmp_path, "job").outputs["out"].files == ("a.csv", "b.csv")


def meet(first: Callable[[], None], second: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``second`` run in another thread, as in another process, just before ``first`` replaces the record."""
    thread, waits, is_over = threading.Thread(target=second), threading.Event(), threading.Event()
    replace = Path.replace

    def replaced(path: Path, target: Path) -> Path:
        if thread.ident is None:
            thread.start()
            while thread.is_alive() and not waits.is_set():
                thread.join(0.01)
        return replace(path, target)

    def sleep(pause_s: float) -> None:
        waits.set()
        is_over.wait(10)

    monkeypatch.setattr(Path, "replace", replaced)
    monkeypatch.setattr(time, "sleep", sleep)
    first()
    is_over.set()
    thread.join()


def test_processes_that_record_at_the_same_time_keep_the_files_of_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(snapshot: str, *files: str) -> None:
        record_output(tmp_path, context(snapshot, final=False), StepOutput("csv", files))

    record("s1", "a.csv")
    meet(lambda: record("s1", "a.csv", "b.csv"), lambda: record("s2", "c.csv"), monkeypatch)
    assert read_output(tmp_path, "job").outputs["out"].files == ("a.csv", "b.csv", "c.csv")


def test_a_start_keeps_what_another_process_records_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_output(tmp_path, context("s1"), CSV)
    begin_record(tmp_path, "job", [SnapshotId("s1")])
    files = StepOutput("csv", ("b.csv",))
    meet(
        lambda: begin_record(tmp_path, "job", []),
        lambda: record_output(tmp_path, context("s1", final=False), files),
        monkeypatch,
    )
    assert read_output(tmp_path, "job").outputs["out"].files == ("a.csv", "b.csv")


def test_a_record_that_another_process_keeps_locked_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    record_output(tmp_path, context("s1"), CSV)
    with locked(tmp_path / "_malstrom"), pytest.raises(BlockingIOError, match="another process"):
        record_output(tmp_path, context("s2"), CSV)
    assert 10 <= sum(pauses) <= 60
    assert read_output(tmp_path, "job").snapshot == "s1"
