"""``--json`` of every command: the result as one object or list on standard output, with the same exit codes."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from tests.integration.commands import COMMAND, environment, malstrom, started, until
from tests.integration.test_interrupt import DEADLINE_S

JOBS = """

import malstrom_py as mp
from malstrom_py import sinks, sources
from tests.endless import endless_numbers

job = mp.Job("good")
numbers = job.source("numbers", sources.Memory([1, 2, 5])).filter("odd", lambda number: number % 2)
numbers.sink("out", sinks.Stdout())

taken = mp.Job("taken")
taken.source("numbers", sources.Memory([1, 5])).capture_into("rows", "recordings")

bad = mp.Job("bad")
bad.source("numbers", sources.Memory([0])).map("ratio", lambda number: 1 / number).sink("out", sinks.Stdout())


def double(number):
    return 2 * number


endless = mp.Job("endless")
read = endless.source("numbers", sources.Generator(endless_numbers, parts=4))
read.map("double", double).key_by("key", lambda n: n % 20).count("seen").sink("out", sinks.Files("out"))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "r").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    return tmp_path


def answered(folder: Path, *arguments: str, code: int = 0) -> Any:
    done = malstrom(folder, *arguments, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def endless(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A running job, started with ``--json``."""
    run = ("run", "jobs:endless", "--snapshots", "kept", "--interval", "1000", "--json", "--quiet")
    with started(folder, *COMMAND, *run) as process:
        until(lambda: "endless" in answered(folder, "status"), process)
        until(lambda: mp.JobHandle.attach("endless").status().counts.written > 0, process)
        yield process


def test_run_prints_the_result_after_what_the_job_prints(folder: Path) -> None:
    done = malstrom(folder, "run", "jobs", "--json", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    *rows, last = done.stdout.splitlines()
    assert rows == ["1", "5"]
    result = json.loads(last)
    assert (result["job"], result["state"], result["last_snapshot"]) == ("good", "finished", None)
    assert (result["read"], result["filtered"], result["written"], result["dead_letters"]) == (3, 1, 2, 0)
    assert result["steps"]["odd"]["rows_out"] == 2


def test_an_error_is_on_standard_error_only(folder: Path) -> None:
    done = malstrom(folder, "run", "jobs:bad", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: step 'ratio' failed")
    done = malstrom(folder, "status", "nowhere", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    done = malstrom(folder, "explain", "jobs", "--json", "--mermaid")
    assert (done.returncode, done.stdout) == (2, "")


def test_explain_and_doctor(folder: Path) -> None:
    plan = answered(folder, "explain", "jobs")
    assert (plan["job"], plan["slots"]) == ("good", 1024)
    assert [step["step"] for step in plan["steps"]] == ["numbers", "odd", "out"]
    assert (plan["steps"][1]["kind"], plan["steps"][1]["inputs"]) == ("filter", ["numbers"])
    found = answered(folder, "doctor")
    assert found["version"] == mp.__version__
    assert {"state": "ok", "what": "msgpack"}.items() <= {
        key: value for finding in found["findings"] if finding["what"] == "msgpack" for key, value in finding.items()
    }.items()


def test_commands_on_a_running_job(folder: Path, endless: subprocess.Popen[str]) -> None:
    assert answered(folder, "status") == ["endless"]
    assert answered(folder, "status", "endless")["state"] == "running"
    report = answered(folder, "rescale", "endless", "2")
    assert (report["job"], report["state"], report["workers"], report["members"]) == ("endless", "running", 2, [0, 1])
    assert report["slots"] > 0
    begun = answered(folder, "rescale", "endless", "1", "--no-wait")
    assert begun == {"job": "endless", "state": "rescaling", "workers": 1}
    events = malstrom(folder, "events", "endless", "--json").stdout.splitlines()
    assert all(isinstance(json.loads(line), dict | list) for line in events)
    reloaded = answered(folder, "reload", "endless", "double", "--probation", "0")
    assert (reloaded["job"], reloaded["step"], reloaded["modules"]) == ("endless", "double", ["jobs"])
    stopped = answered(folder, "stop", "endless")
    assert (stopped["job"], stopped["state"]) == ("endless", "stopped")
    out, _ = endless.communicate(timeout=DEADLINE_S)
    assert endless.returncode == 0
    result = json.loads(out)
    assert (result["state"], result["last_snapshot"]) == ("stopped", stopped["snapshot"])


def test_snapshots(folder: Path) -> None:
    assert malstrom(folder, "run", "jobs", "--snapshots", "kept").returncode == 0
    (made,) = answered(folder, "snapshots", "list", "kept")
    assert answered(folder, "snapshots", "show", "kept", "good")["snapshot"] == made["snapshot"]
    one = {"job": "good", "snapshot": made["snapshot"], "faults": []}
    assert answered(folder, "snapshots", "verify", "kept") == {"snapshots": [one], "faults": []}
    pruned = {"job": "good", "removed": [], "removed_files": 0, "snapshots": [made["snapshot"]]}
    assert answered(folder, "snapshots", "prune", "kept") == [pruned]
    again = answered(folder, "run", "jobs", "--snapshots", "kept")
    assert (again["resumed_finished"], again["last_snapshot"]) == (True, made["snapshot"])


def test_captures(folder: Path) -> None:
    assert malstrom(folder, "run", "jobs:taken").returncode == 0
    assert answered(folder, "capture", "check", "recordings") == []
    (stream,) = answered(folder, "capture", "stats", "recordings")
    assert stream["rows"] == 2
    assert malstrom(folder, "capture", "cat", "recordings", "--json").stdout == (
        malstrom(folder, "capture", "cat", "recordings").stdout
    )


def test_the_log_is_json_beside_the_result(folder: Path) -> None:
    options = ("--snapshots", "kept", "--log-format", "json", "--json", "--quiet")
    done = malstrom(folder, "run", "jobs", *options)
    said = [json.loads(line) for line in done.stderr.splitlines()]
    (line,) = [line for line in said if "is complete" in line["message"]]
    assert (line["job"], line["level"]) == ("good", "INFO")
    assert line["snapshot"] == json.loads(done.stdout.splitlines()[-1])["last_snapshot"]
    assert malstrom(folder, "run", "jobs", "--log-format", "json", "--log-level", "error", "--quiet").stderr == ""
    assert " INFO job=good" in malstrom(folder, "run", "jobs", "--log-level", "info", *options[:2]).stderr


def completed(folder: Path, words: str) -> list[str]:
    """Return what a shell is offered to complete the last of ``words``."""
    request = {"_MALSTROM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "malstrom_py"],
        cwd=folder,
        env={**environment(), **request},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    return done.stdout.split()


def test_a_shell_completes_commands_and_names_of_running_jobs(folder: Path, endless: subprocess.Popen[str]) -> None:
    assert completed(folder, "malstrom resc") == ["rescale"]
    assert completed(folder, "malstrom stop end") == ["endless"]
    assert completed(folder, "malstrom status other") == []
    command = (
        f"{shlex.quote(sys.executable)} -m malstrom_py --show-completion; true"  # its shell is that of its parents
    )
    shown = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert "_MALSTROM_COMPLETE=complete_bash" in shown.stdout, shown.stderr
