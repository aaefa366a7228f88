"""Snapshots from the command line, with real processes: a job is stopped, resumed, and changed."""

from __future__ import annotations

import csv
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import malstrom_py as mp
from tests.integration.commands import Started, environment, malstrom

PATIENCE_S = 60.0

JOBS = """

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.endless import endless_numbers


def count_up(key, n, seen):
    return {"key": key, "n": seen + 1}, seen + 1


def made(total="total", **options):
    job = mp.Job("visits")
    numbers = job.source("in", sources.Generator(endless_numbers, parts=2))
    counted = numbers.key_by("key", lambda n: n % 10).stateful_map(total, count_up, default=int, **options)
    counted.sink("out", sinks.Files("out", format="csv"))
    return job


def job():
    return made()


def renamed():
    return made("visits", renamed_from="total")


def changed():
    return made("visits")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "runtime").mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path


class Running:
    """A job in a separate process."""

    def __init__(self, folder: Path, job: str, *arguments: str, interval: str = "0.2") -> None:
        options = ["--snapshots", "snapshots", *(["--interval", interval] if interval else []), "-w", "2", *arguments]
        self.process = Started(folder, ("run", f"jobs:{job}", *options), environment())

    def handle(self) -> mp.JobHandle:
        """A handle on it, once it can be found."""
        while self.process.poll() is None:
            try:
                return mp.JobHandle.attach("visits")
            except mp.JobNotFound:
                time.sleep(0.05)
        raise AssertionError(f"it has ended: {self.error()}")

    def error(self) -> str:
        """What it says in the end."""
        _, error = self.process.communicate(timeout=PATIENCE_S)
        return error


@pytest.fixture
def processes() -> Iterator[list[Running]]:
    started: list[Running] = []
    yield started
    for running in started:
        running.process.close()


def snapshots_of(folder: Path) -> list[str]:
    done = malstrom(folder, "snapshots", "list", "snapshots", "visits", "--json")
    assert done.returncode == 0, done.stderr
    return [one["snapshot"] for one in json.loads(done.stdout)]


def counts_in(folder: Path) -> dict[str, list[int]]:
    """Key -> the counts that the job has written in all its runs, ascending."""
    counts: dict[str, list[int]] = {}
    for file in (folder / "out").glob("*.csv"):
        with file.open() as text:
            for row in csv.DictReader(text):
                counts.setdefault(row["key"], []).append(int(row["n"]))
    return {key: sorted(of_key) for key, of_key in counts.items()}


@pytest.mark.long(but=("stop",))
@pytest.mark.parametrize("by", ["stop", "stop --no-drain", "SIGTERM", "SIGTERM twice", "default interval"])
def test_s7_a_job_that_was_stopped_goes_on_where_it_was(by: str, folder: Path, processes: list[Running]) -> None:
    processes.append(Running(folder, "job", interval="" if by == "default interval" else "0.2"))
    handle = processes[-1].handle()
    saved = handle.snapshot(timeout_s=PATIENCE_S)
    status = handle.status()
    assert status.snapshots is not None
    assert status.snapshots.last is not None
    assert status.snapshots.last >= saved
    if by.startswith("SIGTERM"):
        for _ in by.split():
            processes[-1].process.send_signal(signal.SIGTERM)
        said = None
    else:
        options = ["--no-drain"] if "--no-drain" in by else ["--no-drain", "--timeout", "15"] if "default" in by else []
        done = malstrom(folder, "stop", "visits", *options)
        assert (done.returncode, done.stderr) == (0, "")
        said = done.stdout
    error = processes[-1].error()
    assert processes[-1].process.returncode == 0
    *_, last = snapshots_of(folder)
    line = f"job visits has stopped; it can resume from snapshot {last}\n"
    assert error.startswith(f"{line}job visits: ")
    assert " read, " in error.removeprefix(line)
    assert said in {None, line}
    assert malstrom(folder, "snapshots", "verify", "snapshots").returncode == 0
    after_first = counts_in(folder)
    assert after_first == {str(key): list(range(1, len(after_first[str(key)]) + 1)) for key in range(10)}

    refused = malstrom(folder, "run", "jobs:changed", "--snapshots", "snapshots")
    assert refused.returncode == 1
    assert f"error: job 'visits' cannot resume from snapshot {last}, because the job changed:" in refused.stderr
    assert "step 'total' (stateful_map, its keyed state)" in refused.stderr

    processes.append(Running(folder, "renamed", "--resume", last))
    handle = processes[-1].handle()
    handle.snapshot(timeout_s=PATIENCE_S)
    done = malstrom(folder, "stop", "visits", "--drain")
    error = processes[-1].error()
    *_, last = snapshots_of(folder)
    assert (done.returncode, done.stdout) == (0, f"job visits has finished; its last snapshot is {last}\n")
    assert processes[-1].process.returncode == 0
    assert error.endswith(f" s; its last snapshot is {last}\n")
    after_both = counts_in(folder)
    assert after_both == {key: list(range(1, len(counts) + 1)) for key, counts in after_both.items()}
    assert all(len(after_both[key]) > len(counts) for key, counts in after_first.items())


def test_a_query_prints_the_state_of_steps(folder: Path, processes: list[Running]) -> None:
    processes.append(Running(folder, "job"))
    saved = processes[-1].handle().snapshot(timeout_s=PATIENCE_S)
    done = malstrom(folder, "query", "visits", "select count(*) as n, max(key) as last from total", "--fresh", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (printed["job"], printed["rows"]) == ("visits", [{"n": 10, "last": 9}])
    assert printed["snapshot"] > saved
    done = malstrom(folder, "query", "visits", "select 7 as a, null as b, key from total order by key limit 2")
    assert (done.returncode, done.stdout) == (0, "a  b  key\n7     0\n7     1\n")
    done = malstrom(folder, "query", "visits", "select nothing from total")
    assert done.returncode == 1
    assert 'error: the query fails: Binder Error: Referenced column "nothing" not found' in done.stderr
    assert "steps with state, by name: total" in done.stderr
    done = malstrom(folder, "query", "visits", "select timestamp 'infinity' as t, key from total")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: a value of the query cannot be shown: " in done.stderr
    assert "Cast it to varchar" in done.stderr


def test_a_savepoint_stands_alone(folder: Path, processes: list[Running]) -> None:
    processes.append(Running(folder, "job"))
    handle = processes[-1].handle()
    saved = handle.savepoint(str(folder / "kept"), timeout_s=PATIENCE_S)
    handle.stop(drain=False, timeout_s=PATIENCE_S)
    shown = json.loads(malstrom(folder, "snapshots", "show", "kept", "visits", "--json").stdout)
    assert (shown["snapshot"], shown["savepoint"]) == (saved, True)
    assert malstrom(folder, "snapshots", "verify", "kept").returncode == 0


@pytest.mark.long("False")
@pytest.mark.parametrize("quiet", [False, True])
def test_a_finished_job_says_so_when_it_is_started_again(quiet: bool, folder: Path, processes: list[Running]) -> None:
    processes.append(Running(folder, "job"))
    processes[-1].handle().stop(drain=True, timeout_s=PATIENCE_S)
    summary = processes[-1].error().partition("; its last")[0]
    *_, last = snapshots_of(folder)
    before = counts_in(folder)
    again = malstrom(folder, "run", "jobs:job", "--snapshots", "snapshots", *(["--quiet"] if quiet else []))
    assert (again.returncode, again.stdout) == (0, "")
    said = f"job visits has already finished, in snapshot {last}: nothing was read; --resume none starts over\n"
    assert again.stderr == said + ("" if quiet else f"{summary} (an earlier run)\n")
    assert counts_in(folder) == before


def test_a_ctrl_c_aborts_and_names_the_snapshot_that_is_gone_on_from(folder: Path, processes: list[Running]) -> None:
    processes.append(Running(folder, "job", interval="1000"))
    saved = processes[-1].handle().snapshot(timeout_s=PATIENCE_S)
    processes[-1].process.send_signal(signal.SIGINT)
    error = processes[-1].error()
    assert processes[-1].process.returncode == 130
    assert f"; it can resume from snapshot {saved}; so far job visits: " in error
    assert snapshots_of(folder) == [saved]
    processes.append(Running(folder, "job"))
    handle = processes[-1].handle()
    while handle.status().counts.written < 100:
        assert processes[-1].process.poll() is None
        time.sleep(0.05)
    handle.stop(timeout_s=PATIENCE_S)
    counts = counts_in(folder)
    assert sum(map(len, counts.values())) >= 100
    assert counts == {key: list(range(1, len(of_key) + 1)) for key, of_key in counts.items()}
