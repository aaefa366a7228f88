"""Sources that are read up to the end they have at the start: a finished job reads what is new when it is run again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import SourceError
from malstrom_py.sources.base import Part
from malstrom_py.sources.polled import PolledChunk, PolledReader, PolledSource

LOGS: dict[str, list[int]] = {}


class Logs(PolledSource[int]):
    """A source of lists that others append to."""

    def __init__(self, *names: str, follow: bool = False) -> None:
        super().__init__("Logs", follow=follow)
        self.names = names

    def list_parts(self) -> Sequence[Part]:
        return [Part(name) for name in self.names]

    def find_ends(self) -> dict[str, int]:
        return {name: len(LOGS[name]) for name in self.names}

    def open(self, part: Part, position: Any, end: Any) -> LogReader:
        return LogReader(LOGS[part], position or 0)


class LogReader(PolledReader[int]):
    def __init__(self, log: list[int], row: int) -> None:
        self.log, self.row = log, row

    def read(self, rows_max: int) -> PolledChunk[int] | None:
        begin, rows = self.row, self.log[self.row :][:rows_max]
        self.row += len(rows)
        return PolledChunk(rows, lambda number: begin + number + 1) if rows else None


@pytest.fixture(autouse=True)
def logs() -> None:
    LOGS.clear()
    LOGS.update(a=[1, 2], b=[3])


def job_of(source: Any, out: Any, fail_on: int | None = None) -> mp.Job:
    def checked(number: int) -> int:
        if number == fail_on:
            raise ValueError(number)
        return number

    job = mp.Job("logs")
    numbers = job.source("in", source).map("checked", checked)
    numbers.key_by("all", lambda n: "all").sum("sum").sink("out", out)
    return job


def run(tmp_path: Path, source: Any, out: Any, **options: Any) -> mp.RunResult:
    kept = mp.Snapshots(str(tmp_path / "kept"))
    return mp.run(job_of(source, out, **options), snapshots=kept, restart="never", batch=mp.Batching(rows_max=1))


def test_a_finished_job_reads_what_is_new_and_new_parts(tmp_path: Path) -> None:
    out = sinks.Memory()
    assert run(tmp_path, Logs("a", "b"), out).read == 3
    LOGS["a"] += [4, 5]
    LOGS["c"] = [6]
    again = run(tmp_path, Logs("a", "b", "c"), out)
    assert (again.read, again.resumed_finished) == (3, False)
    assert out.items[-1] == 21, "the state continues"


def test_a_job_with_nothing_new_says_so_and_sends_no_further_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = sinks.Memory()
    run(tmp_path, Logs("a", "b"), out)
    assert run(tmp_path, Logs("a", "b"), out).read == 0
    assert "no new input since snapshot" in caplog.text
    assert len(out.items) == 3


def test_a_run_that_failed_without_a_snapshot_is_read_again(tmp_path: Path) -> None:
    out = sinks.Memory()
    run(tmp_path, Logs("a", "b"), out)
    LOGS["a"] += [4, 5]
    with pytest.raises(mp.MalstromError, match="checked"):
        run(tmp_path, Logs("a", "b"), out, fail_on=5)
    LOGS["b"] += [7]
    assert run(tmp_path, Logs("a", "b"), out).read == 3
    assert out.items[-1] == 22


def test_a_resumed_run_ends_where_it_would_have_ended() -> None:
    first, resumed, follows, next_run = Logs("a"), Logs("a"), Logs("a", follow=True), Logs("a")
    first.pin("docs")
    record = first.pin_record()
    LOGS["a"] += [4, 5]
    resumed.pin("docs", record)
    assert resumed.pin_record() == record == {"stops": {"a": 2}}
    follows.pin("docs", record)
    assert follows.pin_record() == {"stops": None}
    next_run.pin("docs", follows.pin_record())
    assert next_run.pin_record() == {"stops": {"a": 4}}


def test_a_part_that_is_left_out_for_a_run_continues_later(tmp_path: Path) -> None:
    out = sinks.Memory()
    run(tmp_path, Logs("a", "b"), out)
    LOGS["a"] += [4]
    LOGS["b"] += [5]
    assert run(tmp_path, Logs("a"), out).read == 1
    assert run(tmp_path, Logs("a", "b"), out).read == 1
    assert out.items[-1] == 15


def test_a_drained_job_reads_the_rest_first(tmp_path: Path) -> None:
    out, kept = sinks.Memory(), mp.Snapshots(str(tmp_path / "kept"))
    handle = mp.InProcess(snapshots=kept).start(job_of(Logs("a", "b", follow=True), out), control=False)
    handle.stop(drain=True, timeout_s=60)
    read = handle.wait(timeout_s=60).read
    LOGS["a"] += [4]
    assert mp.run(job_of(Logs("a", "b", follow=True), out), snapshots=kept).resumed_finished
    again = mp.run(job_of(Logs("a", "b"), out), snapshots=kept)
    assert read + again.read == 4
    assert out.items[-1] == 10


def test_the_notice_of_a_finished_job_names_the_argument_that_reads_what_is_new(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in.txt").write_text("1\n")
    kept = mp.Snapshots(str(tmp_path / "kept"))
    job = mp.Job("files")
    job.source("in", sources.Files(tmp_path / "in.txt")).sink("out", sinks.Memory())
    assert mp.run(job, snapshots=kept).read_new_with == {}
    with caplog.at_level(logging.INFO):
        again = mp.run(job, snapshots=kept)
    assert again.read_new_with == {"in": "new_files=True"}
    assert str(again).endswith('resume="none" starts over; with new_files=True source in reads what is new')
    assert "with new_files=True source in reads what is new" in caplog.text


def test_no_warning_of_a_job_without_snapshots(caplog: pytest.LogCaptureFixture) -> None:
    mp.run(job_of(Logs("a"), sinks.Memory()))
    assert not caplog.records


def test_a_wrong_argument_or_record_is_an_error() -> None:
    with pytest.raises(mp.PlanError, match="follow must be True or False, got 'no'"):
        Logs("a", follow="no")  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="a record of another source"):
        Logs("a").pin("docs", {"version": 7})


def test_a_part_that_was_never_opened_before_a_drain_is_not_read() -> None:
    assert not sources.Files("in/*.txt", new_files=True).has_read(None)
    assert not sources.Spark(table="rows", since="id").has_read(None)
    assert not Logs("a").has_read(None)
