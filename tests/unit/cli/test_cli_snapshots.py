"""The commands about snapshots, on a folder in which two starts of a job have left some."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from malstrom_py.cli import output as cli_tables
from malstrom_py.cli.app import app
from malstrom_py.cli.output import WrongCommand
from malstrom_py.cli.snapshots import kept, store_of
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.local_store import LocalStore
from malstrom_py.snapshot.object_store import ObjectStore
from malstrom_py.snapshot.snapshots import Snapshots
from tests.unit.snapshot.taken import JOB, Start, manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


@pytest.fixture
def start(folder: Path) -> Start:
    """A start of the job that has taken a snapshot in full, one of what changed, and a savepoint."""
    start = Start(StoreCheckpointer(LocalStore(folder), JOB))
    start.take(b"a" * 1000, b"b" * 2000)
    start.take(b"c" * 30, b"d", delta=True)
    id = start.new_id()
    start.commit(replace(manifest(id, start.claim, start.sequence + 1, start.save(id, [b"e"])), savepoint=True))
    return start


def malstrom(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["snapshots", *map(str, arguments)])


def damage(folder: Path, pattern: str) -> Path:
    path = next(iter(sorted(folder.glob(pattern))))
    path.write_bytes(b"x" + path.read_bytes()[1:])
    return path


def test_list_has_a_line_for_each_snapshot(folder: Path, start: Start) -> None:
    done = malstrom("list", folder)
    assert done.exit_code == 0
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["job", "snapshot", "age", "workers", "state", "notes"]
    assert [line.split()[:2] for line in lines] == [[JOB, id] for id in start.ids]
    assert lines[0].endswith("2        3.0 kB")
    assert lines[2].endswith("savepoint")


def test_list_is_of_one_job_or_of_all(folder: Path, start: Start) -> None:
    StoreCheckpointer(LocalStore(folder), "other").claim(0.0)
    listed = json.loads(malstrom("list", folder, "--json").stdout)
    assert [one["snapshot"] for one in listed] == start.ids
    assert listed[1] == listed[0] | {
        "snapshot": start.ids[1],
        "made_at_s": listed[0]["made_at_s"] + 10,
        "sequence": 3,
        "artefacts": 4,
        "bytes": 3031,
    }
    assert json.loads(malstrom("list", folder, "other", "--json").stdout) == []
    assert malstrom("list", folder, "other").stdout == "there are no snapshots here\n"


def test_nothing_there_is_nothing_wrong_unless_a_job_is_named(tmp_path: Path) -> None:
    done = malstrom("list", tmp_path)
    assert (done.exit_code, done.stdout) == (0, "there are no snapshots here\n")
    done = malstrom("list", tmp_path, "orders")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "has no snapshot of job 'orders'; it has no snapshots" in done.stderr


@pytest.mark.parametrize("options", [(), ("orders",), ("--json",)], ids=repr)
def test_a_place_that_is_not_there_is_an_error(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "nope", tmp_path / "file"):
        done = malstrom("list", place, *options)
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"error: folder {place} does not exist: check where the snapshots are stored" in done.stderr


@pytest.mark.parametrize("command", ["verify", "prune"])
def test_who_looks_after_snapshots_where_none_are_is_told(command: str, tmp_path: Path) -> None:
    for uri in (tmp_path, tmp_path / "typo"):
        done = malstrom(command, uri)
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"there are no snapshots in {uri}: check where they are stored" in done.stderr
    (tmp_path / "file").touch()
    done = malstrom(command, tmp_path / "file")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "file cannot be listed: there is a file" in done.stderr


def test_of_several_jobs_that_one_is_verified_whose_snapshot_it_is(folder: Path, start: Start) -> None:
    StoreCheckpointer(LocalStore(folder), "other").claim(0.0)
    done = malstrom("verify", folder, "--snapshot", start.ids[0])
    assert (done.exit_code, done.stdout) == (0, f"whole    {JOB}  {start.ids[0]}\n")


def test_an_id_whose_entry_cannot_be_read_is_told_with_what_cannot(folder: Path, start: Start) -> None:
    damage(folder, f"{JOB}/log/*4.json")
    done = malstrom("verify", folder, "--snapshot", start.ids[2])
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"snapshot {start.ids[2]} was not found in {folder}" in done.stderr
    assert "000000000004.json" in done.stderr


def test_s4_a_newest_snapshot_that_the_log_has_lost_is_a_fault(folder: Path, start: Start) -> None:
    lost = start.take(b"f", delta=True)
    (folder / f"{JOB}/log/{lost.sequence:012}.json").unlink()
    done = malstrom("verify", folder)
    assert (done.exit_code, done.stdout.count("whole")) == (1, 3)
    assert f"job {JOB}: {lost.id} was the newest snapshot, and its entry in the log is missing" in done.stderr
    assert malstrom("verify", folder, "--snapshot", start.ids[0]).exit_code == 0


def test_show_tells_steps_state_positions_and_event_time(folder: Path, start: Start) -> None:
    done = malstrom("show", folder, JOB, "--snapshot", start.ids[1])
    assert done.exit_code == 0
    head, steps, positions, frontiers = done.stdout.rstrip("\n").split("\n\n")
    assert head.startswith(f"job {JOB}, snapshot {start.ids[1]} of 2026-11-22 04:22:42 UTC, ")
    assert "2 workers, 64 key groups, 3.0 kB of state, entry 3 of the log, incarnation 1" in head
    assert [line.split() for line in steps.splitlines()] == [
        ["step", "kind", "full", "deltas", "longest", "chain", "migrate"],
        ["read", "source"],
        ["totals", "sum", "3.0", "kB", "31", "B", "2"],
    ]
    assert [line.split() for line in positions.splitlines()[1:]] == [
        ["read", "a", "7"],
        ["read", "b", "{'row':", "3}", "yes"],
    ]
    assert frontiers.splitlines()[1].split() == ["totals", "1000"]


def test_show_takes_the_newest_and_the_only_job(folder: Path, start: Start) -> None:
    shown = json.loads(malstrom("show", folder, "--json").stdout)
    assert (shown["snapshot"], shown["savepoint"]) == (start.ids[2], True)
    assert shown["state"] == [{"step": "totals", "workers": 1, "artefacts": 1, "chain": 1, "full": 1, "delta": 0}]
    assert shown["positions"][1] == {"step": "read", "part": "b", "position": {"row": 3}, "finished": True}
    assert shown["steps"]["totals"]["stateful"] is True
    StoreCheckpointer(LocalStore(folder), "other").claim(0.0)
    done = malstrom("show", folder)
    assert done.exit_code == 1
    assert "has the snapshots of several jobs: name one of orders, other" in done.stderr
    done = malstrom("show", folder, "other")
    assert done.exit_code == 1
    assert "job 'other' has no snapshot yet" in done.stderr


def test_an_id_that_is_none_is_a_wrong_command_and_one_that_is_not_there_an_error(folder: Path, start: Start) -> None:
    for command in ("show", "verify"):
        done = malstrom(command, folder, "--snapshot", "yesterday")
        assert done.exit_code == 2
        assert "'yesterday' is not an id of a snapshot" in done.stderr
        done = malstrom(command, folder, "--snapshot", "20261122T042242123456Z-1a2b3c4d")
        assert done.exit_code == 1
        assert re.search(r"(has no )?snapshot 20261122T042242123456Z-1a2b3c4d (was not found )?in", done.stderr), (
            done.stderr
        )


def test_verify_says_of_each_whether_it_is_whole(folder: Path, start: Start) -> None:
    done = malstrom("verify", folder)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"whole    {JOB}  {id}" for id in start.ids]
    path = damage(folder, f"{JOB}/artefacts/{start.ids[0]}/totals-1.full")
    done = malstrom("verify", folder, JOB)
    assert done.exit_code == 1
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["damaged", "damaged", "whole"]
    assert done.stderr.count(f"{path.parent.name}/{path.name} is damaged") == 2
    assert malstrom("verify", folder, "--snapshot", start.ids[2]).exit_code == 0


def test_an_entry_of_the_log_that_cannot_be_read_is_told_by_all(folder: Path, start: Start) -> None:
    damage(folder, f"{JOB}/log/000000000003.json")
    for command in ("list", "verify"):
        done = malstrom(command, folder)
        assert done.exit_code == 1
        assert "log/000000000003.json" in done.stderr
    assert len(malstrom("list", folder).stdout.splitlines()) == 3


def test_prune_leaves_the_newest_and_what_they_need_and_savepoints(folder: Path, start: Start) -> None:
    start.take(b"f", b"g")
    start.take(b"h", b"i")
    done = malstrom("prune", folder, JOB, "--keep", 2)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"job {JOB}: 2 snapshots and ")
    assert done.stdout.endswith(" files removed, 3 snapshots stay\n")
    assert start.checkpointer.list_checkpoints() == start.ids[2:]
    assert malstrom("verify", folder).exit_code == 0
    assert malstrom("prune", folder, "--keep", 0).exit_code == 2


def test_a_store_is_named_as_everywhere() -> None:
    assert isinstance(store_of("s3://bucket/folder", ["region=eu-central-1"]), ObjectStore)
    assert isinstance(store_of("/somewhere", None), LocalStore)
    for uri, options, said in (
        ("ftp://somewhere", None, "is neither a folder nor an object store"),
        ("/somewhere", ["region=here"], "options are for object stores"),
        ("s3://bucket", ["region"], "an option must be NAME=VALUE, got 'region'"),
        ("s3://bucket", ["=here"], "an option must be NAME=VALUE"),
    ):
        with pytest.raises(WrongCommand, match=said):
            store_of(uri, options)


def test_at_a_terminal_a_table_is_drawn() -> None:
    rows: list[tuple[Any, ...]] = [("[bold]", 3)]
    drawn = cli_tables.table(("step", "keys"), rows, drawn=True)
    assert "[bold]" in drawn
    assert "│" in drawn
    assert cli_tables.table(("step", "keys"), rows) == "step    keys\n[bold]  3"


def test_what_run_says_of_snapshots_goes_to_the_runtime() -> None:
    assert kept(None, None, None, allow_dropped_state=False) == {}
    assert kept("/there", None, None, allow_dropped_state=True) == {
        "snapshots": Snapshots("/there"),
        "allow_dropped_state": True,
    }
    id = "20261122T042242123456Z-1a2b3c4d"
    for resume in ("latest", "none", id):
        options = kept("/there", 5, resume, allow_dropped_state=False)
        assert options == {
            "snapshots": Snapshots("/there", interval_s=5),
            "allow_dropped_state": False,
            "resume": resume,
        }


@pytest.mark.parametrize(
    ("uri", "interval_s", "resume", "said"),
    [
        (None, 5.0, None, "--interval needs --snapshots URI"),
        (None, None, "latest", "--resume needs --snapshots URI"),
        ("ftp://there", None, None, "is neither a folder nor an object store"),
        ("/there", 0.0, None, "interval_s must be a number of seconds above zero"),
        ("/there", None, "yesterday", "'yesterday' is not an id of a snapshot"),
    ],
)
def test_what_makes_no_sense_is_a_wrong_command(
    uri: str | None, interval_s: float | None, resume: str | None, said: str
) -> None:
    with pytest.raises(WrongCommand, match=said):
        kept(uri, interval_s, resume, allow_dropped_state=False)


def test_dropped_state_is_about_snapshots() -> None:
    with pytest.raises(WrongCommand, match="--allow-dropped-state needs --snapshots URI"):
        kept(None, None, None, allow_dropped_state=True)
