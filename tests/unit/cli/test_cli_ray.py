"""How ``malstrom run`` reads its options for Ray."""

from __future__ import annotations

import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.cli.app import app
from malstrom_py.cli.options import autoscale_of
from malstrom_py.cli.output import WrongCommand, reporting_errors
from malstrom_py.cli.running import ray_options, start_detached


def test_nothing_said_is_nothing_given() -> None:
    assert ray_options() == {}


@pytest.mark.parametrize(
    "resources",
    [["disk=1,gold=0.5"], ["disk=1", "gold=0.5"], ['{"disk": 1, "gold": 0.5}'], ["disk=1", '{"gold": 0.5}']],
)
def test_resources(resources: list[str]) -> None:
    assert ray_options(resources=resources) == {"resources": {"disk": 1.0, "gold": 0.5}}


def test_a_runtime_env_is_json_or_a_file_with_it(tmp_path: Path) -> None:
    texts = {"env.json": '{"working_dir": "."}', "env.yaml": "working_dir: .", "env": '{"working_dir": "."}'}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert ray_options(runtime_env=str(tmp_path / name)) == {"runtime_env": {"working_dir": "."}}
    assert ray_options(runtime_env=' {"pip": []}', detached=True) == {
        "runtime_env": {"pip": []},
        "detached": True,
    }


@pytest.mark.parametrize(
    ("env", "reported"),
    [
        ("{", "--runtime-env is not JSON"),
        ("no/such/file.yaml", "no/such/file.yaml cannot be read"),
        ("list.json", "list.json must be an object of names and values, got list"),
        ("list.yaml", "list.yaml must be an object of names and values, got list"),
        ("wrong.yaml", "wrong.yaml is not YAML"),
        ("wrong.json", "wrong.json is not JSON"),
        ("binary", "binary cannot be read"),
        (".", r"\. cannot be read"),
    ],
)
def test_what_is_no_runtime_env(env: str, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "list.json": b"[]",
        "list.yaml": b"- a",
        "wrong.yaml": b"{",
        "wrong.json": b"",
        "binary": b"\xff",
    }.items():
        Path(name).write_bytes(text)
    with pytest.raises(WrongCommand, match=reported):
        ray_options(runtime_env=env)


@pytest.mark.parametrize(
    "text", ["disk", "disk=", "disk=much", "{", "[1]", "disk=-1", "disk=nan", "disk=inf", "=1", '{"disk": "1"}']
)
def test_what_are_no_resources(text: str) -> None:
    with pytest.raises(WrongCommand, match=r"--resources (is|must be)"):
        ray_options(resources=[text])


class Ends(mp.InProcess):
    """Returns a handle, which is as one on Ray, on a job that has ended already."""

    def start(self, job: mp.Job, *, control: bool = True) -> mp.JobHandle:
        handle = super().start(job, control=control)
        handle.wait(timeout_s=60)
        return handle


def test_a_detached_job_that_had_finished_says_so_and_how_it_starts_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = mp.Job("nightly")
    job.source("in", sources.Memory([1, 2])).sink("out", sinks.Memory())
    runtime: Any = Ends(snapshots=mp.Snapshots(str(tmp_path)))
    runtime.run(job)
    start_detached(runtime, job, address=None, quiet=True)
    reported = capsys.readouterr().err
    assert "job nightly has already finished" in reported
    assert reported.endswith("nothing was read; --resume none starts over\n")
    start_detached(runtime, job, address=None, quiet=False)
    assert "2 read" in capsys.readouterr().err


def test_a_sigterm_while_ray_is_joined_is_not_blamed_on_a_function_of_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def sigterm_handler() -> None:  # as Ray's is called
        sys.exit(signal.SIGTERM)

    with pytest.raises(typer.Exit) as ended, reporting_errors(traceback=False):
        sigterm_handler()
    assert ended.value.exit_code == 143
    assert capsys.readouterr().err.startswith("terminated: SIGTERM arrived before the job had started")
    with pytest.raises(typer.Exit) as ended, reporting_errors(traceback=False):
        sys.exit(signal.SIGTERM)
    assert ended.value.exit_code == 1
    assert "a function of the job ended the program" in capsys.readouterr().err


class Stops(mp.InProcess):
    """Stops its job before a user asks for it."""

    def start(self, job: mp.Job, *, control: bool = True) -> mp.JobHandle:
        handle = super().start(job, control=control)
        handle.snapshot()
        handle.stop(drain=False)
        return handle


def test_a_detached_job_that_was_stopped_meanwhile_has_not_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def job() -> mp.Job:
        made = mp.Job("endless")
        made.source("in", sources.Generator(lambda part, start: count(start))).sink("out", sinks.Callable(str))
        return made

    runtime: Any = Stops(snapshots=mp.Snapshots(str(tmp_path)))
    start_detached(runtime, job(), address=None, quiet=False)
    assert "job endless has stopped; it can resume from snapshot 2" in capsys.readouterr().err
    lost: Any = Stops()
    lost.start = lambda job, control: stopped_without(job)
    with pytest.raises(mp.JobEnded, match="nothing was committed"):
        start_detached(lost, job(), address=None, quiet=False)


def stopped_without(job: mp.Job) -> mp.JobHandle:
    """A handle on ``job``, which was stopped without drain and has no snapshots."""
    handle = mp.InProcess().start(job, control=False)
    handle.stop(drain=False)
    return handle


@pytest.mark.parametrize(
    "option",
    [["--detached"], ["--resources", "a=1"], ["--runtime-env", "{}"], ["--address", "auto"], ["--num-cpus", "2"]],
)
def test_what_is_for_ray_is_refused_in_process(option: list[str]) -> None:
    done = CliRunner().invoke(app, ["run", "examples.silence", *option])
    assert done.exit_code == 2
    assert f"{option[0]} is for jobs on Ray: add --runtime ray" in done.output


def test_the_options_of_autoscaling() -> None:
    assert autoscale_of(None, None) is None
    assert autoscale_of("1:8", 0.5) == mp.Autoscale(min=1, max=8, target=0.5)
    for given, target, why in (
        ("8", None, "MIN:MAX"),
        ("4:2", None, "min"),
        ("1:500", None, "128"),
        (None, 0.5, "add"),
    ):
        with pytest.raises(WrongCommand, match=why):
            autoscale_of(given, target)
