"""``malstrom capture``: check, stats and cat of what a job recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.cli import replaying
from malstrom_py.cli.app import app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recording of two records, and their times."""
    job = mp.Job("clicks")
    timed = job.source("in", sources.Memory([("ann", 3), ("bob", 7)])).assign_timestamps("time", lambda row: row[1])
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    on_time.key_by("user", lambda row: row[0]).map("at", lambda row: row[1]).capture_into("seen", tmp_path)
    mp.run(job, progress=False)
    return tmp_path


def said(*words: str, code: int = 0, command: str = "capture") -> str:
    done = CliRunner().invoke(app, [command, *words])
    assert done.exit_code == code, done.output
    return done.output


def test_a_whole_recording_has_no_fault(folder: Path) -> None:
    assert said("check", str(folder)).strip() == f"{folder}: 2 rows, 0 faults"
    assert json.loads(said("check", str(folder), "--json")) == []


def test_a_changed_byte_is_named_with_its_segment(folder: Path) -> None:
    (segment,) = folder.glob("*.capture")
    data = bytearray(segment.read_bytes())
    data[-30] ^= 1
    segment.write_bytes(data)
    out = said("check", str(folder), code=1)
    assert f"{segment}: corrupt: " in out
    (fault,) = json.loads(said("check", str(folder), "--json", code=1))
    assert (fault["kind"], fault["path"]) == ("corrupt", str(segment))


def test_streams_are_shown_with_their_figures(folder: Path) -> None:
    assert "ended" in said("stats", str(folder))
    (stream,) = json.loads(said("stats", str(folder), "seen", "--json"))
    assert (stream["rows"], stream["is_complete"]) == (2, True)


def test_contents_are_lines_of_json(folder: Path) -> None:
    lines = [json.loads(line) for line in said("cat", str(folder)).splitlines()]
    assert "header" in lines[0]
    rows = [(line["key"], line["time"], line["value"]) for line in lines if "value" in line]
    assert rows == [("ann", 3, 3), ("bob", 7, 7)]
    assert any("progress" in line for line in lines)
    assert "end" in lines[-1]


@pytest.mark.parametrize("options", [(), ("--follow",), ("--pace", "1000", "--json")])
def test_a_replay_prints_each_record_once(folder: Path, options: tuple[str, ...]) -> None:
    lines = [json.loads(line) for line in said(str(folder), *options, command="replay").splitlines()]
    assert lines == [{"key": "ann", "time": 3, "value": 3}, {"key": "bob", "time": 7, "value": 7}]


def test_a_replay_in_a_loop_starts_again_at_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []

    def out(line: str) -> None:
        printed.append(line)
        if len(printed) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(replaying, "print_out", out)
    said(str(folder), "--loop", command="replay")
    assert [json.loads(line)["key"] for line in printed] == ["ann", "bob", "ann", "bob", "ann"]


def test_a_replay_of_no_recording_says_so(tmp_path: Path) -> None:
    assert "there is none" in said(str(tmp_path), "--follow", code=1, command="replay")


def test_where_there_is_none_the_command_says_so(tmp_path: Path) -> None:
    assert f"{tmp_path} must have one recording, and there is none" in said("check", str(tmp_path), code=1)
