"""Commands that ask a running job for something: ``malstrom snapshot``, ``savepoint`` and ``autoscale``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

import malstrom_py as mp
from malstrom_py import events, sinks, sources
from malstrom_py.cli import jobs as cli_jobs
from malstrom_py.cli import watching as cli_watching
from malstrom_py.cli.app import app
from malstrom_py.cli.commands import loaded
from malstrom_py.cli.output import reporting_errors
from malstrom_py.cli.watching import plain_text, watched_options
from malstrom_py.clock import SystemClock
from malstrom_py.errors import OperationInProgress
from malstrom_py.metrics import JobMetrics
from malstrom_py.workers.monitoring.sentences import sentence
from malstrom_py.workers.reports.error_transfer import pack_error, unpack_error


@pytest.fixture
def handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A running job with snapshots, which the commands find."""
    job = mp.Job("docs-asked")
    job.parameter("threshold", 10)
    job.source("in", sources.Generator(lambda part, start: count(start))).sink("out", sinks.Memory())
    running = mp.InProcess(snapshots=mp.Snapshots(tmp_path / "kept", interval_s=None)).start(job, control=False)
    while running.status().phase != "steady":
        """It answers with what is known until then."""
    monkeypatch.setattr(cli_jobs, "_attached", lambda name, address: running)
    yield running
    running.stop()


def said(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.output.strip()


def test_a_snapshot_is_made_and_named(handle: mp.JobHandle) -> None:
    text = said("snapshot", "docs-asked")
    status = handle.status().snapshots
    assert status is not None
    assert text == f"job docs-asked has made snapshot {status.last}"
    assert json.loads(said("snapshot", "docs-asked", "--json"))["snapshot"] > text.split()[-1]


def test_a_healthy_job_exits_with_0(handle: mp.JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_watching, "found_job", lambda name, address: handle._job)
    assert said("health", "docs-asked") == "job docs-asked is healthy"
    assert json.loads(said("health", "docs-asked", "--json")) == {
        "job": "docs-asked",
        "healthy": True,
        "problems": [],
    }


def test_a_job_with_a_problem_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = JobMetrics("shop", "failed", "ended", error="no room")
    monkeypatch.setattr(cli_watching, "found_job", lambda name, address: None)
    monkeypatch.setattr(cli_watching, "metrics_of", lambda job, timeout_s: bad)
    assert said("health", "shop", code=1) == "the job has failed: no room"
    assert json.loads(said("health", "shop", "--json", code=1))["healthy"] is False


def test_a_job_that_does_not_run_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    def found_none(name: str, address: str | None) -> None:
        raise mp.JobNotFound(f"no job {name} runs")

    monkeypatch.setattr(cli_watching, "found_job", found_none)  # it would ask a Ray that runs on this machine
    assert "no-such-job" in said("health", "no-such-job", code=1)


def test_a_parameter_is_set_as_json(handle: mp.JobHandle) -> None:
    assert said("set", "docs-asked", "threshold", "12").startswith("job docs-asked has threshold = 12 since snapshot ")
    made = json.loads(said("set", "docs-asked", "threshold", "13", "--json"))
    assert (made["parameter"], made["value"]) == ("threshold", 13)
    assert "is not JSON" in said("set", "docs-asked", "threshold", "many", code=2)
    assert "must be of the type of its default" in said("set", "docs-asked", "threshold", '"12"', code=1)
    assert "has no parameter 'limit'" in said("set", "docs-asked", "limit", "1", code=1)


def test_a_savepoint_is_written_to_its_place(handle: mp.JobHandle, tmp_path: Path) -> None:
    place = str(tmp_path / "before-upgrade")
    made = json.loads(said("savepoint", "docs-asked", place, "--json"))
    assert made == {"job": "docs-asked", "snapshot": made["snapshot"], "uri": place}
    assert made["snapshot"] in said("snapshots", "list", place)


def test_autoscaling_begins_changes_and_ends(handle: mp.JobHandle) -> None:
    assert said("autoscale", "docs-asked", "1:3") == (
        "job docs-asked has 1 to 3 workers, by load, busy for 70% of their time"
    )
    limits = handle.metrics().autoscale
    assert limits is not None
    assert (limits.min, limits.max, limits.target) == (1, 3, 0.7)
    assert json.loads(said("autoscale", "docs-asked", "1:2", "--target", "0.5", "--json"))["autoscale"]["target"] == 0.5
    assert said("autoscale", "docs-asked", "off") == "job docs-asked keeps its number of workers"
    assert handle.metrics().autoscale is None


@pytest.mark.parametrize(("limits", "why"), [("4", "is MIN:MAX, such as 1:8, got '4'"), ("3:2", "min")])
def test_wrong_limits_are_refused_with_what_they_must_be(handle: mp.JobHandle, limits: str, why: str) -> None:
    assert why in said("autoscale", "docs-asked", limits, code=2)


def test_every_kind_of_event_has_a_sentence_without_its_repr() -> None:
    made: list[events.AnyEvent] = [
        events.Stop(events.StopCause.MANUAL, 1),
        events.BackPressureBegun("in", 0),
        events.BackPressureEnded("in", 0),
        events.Ended("stopped", "job 'a' was stopped without drain: it can resume from snapshot s"),
        events.Ended("failed", "step 'x' failed"),
        events.Ended("finished"),
    ]
    assert list(map(sentence, made)) == [
        "worker 1 has stopped: the job is being stopped",
        "back-pressure: source in waits on worker 0, because a step after it is slower",
        "the back-pressure is over: source in no longer waits on worker 0",
        "job 'a' was stopped without drain: it can resume from snapshot s",
        "the job has failed: step 'x' failed",
        "the job has finished",
    ]


LAST = "20261122T042242123456Z-1a2b3c4d"


class Busy:
    """A job that refuses to stop so many ``times``, for it makes a savepoint."""

    snapshots = True

    def __init__(self, times: int, operation: str = "savepoint") -> None:
        self.left = times
        self._operation = operation
        self.waits: list[float] = []

    def status(self) -> Busy:
        return self

    def stop(self, *, drain: bool, wait: bool, timeout_s: float) -> str:
        self.waits.append(timeout_s)
        if self.left:
            self.left -= 1
            raise OperationInProgress("job 'busy' is making a savepoint", job="busy", operation=self._operation)
        return LAST


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only in `sleep_s`."""
    now = [0.0]
    monkeypatch.setattr(SystemClock, "monotonic_s", lambda self: now[0])
    monkeypatch.setattr(SystemClock, "sleep_s", lambda self, duration_s: now.__setitem__(0, now[0] + duration_s))


def stopped(monkeypatch: pytest.MonkeyPatch, busy: Busy, *options: str) -> Any:
    monkeypatch.setattr(cli_jobs, "_attached", lambda job, address: busy)
    return CliRunner().invoke(app, ["stop", "busy", *options])


def test_it_waits_for_a_savepoint(monkeypatch: pytest.MonkeyPatch, passing: None) -> None:
    busy = Busy(4)
    done = stopped(monkeypatch, busy)
    assert (done.exit_code, done.stdout) == (0, f"job busy has stopped; it can resume from snapshot {LAST}\n")
    assert busy.waits == pytest.approx([120.0, 119.9, 119.8, 119.7, 119.6])


@pytest.mark.parametrize("options", [("--timeout", "1"), ("--no-wait",)])
def test_it_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch, passing: None, options: Any) -> None:
    busy = Busy(1_000)
    done = stopped(monkeypatch, busy, *options)
    assert done.exit_code == 1
    assert "is making a savepoint" in done.stderr
    assert len(busy.waits) == (1 if options == ("--no-wait",) else 12)


def test_another_stop_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, passing: None) -> None:
    busy = Busy(1, "stop")
    assert stopped(monkeypatch, busy).exit_code == 1
    assert len(busy.waits) == 1


@pytest.mark.parametrize(
    ("port", "host", "expected"),
    [
        (None, None, {}),
        (0, None, {"metrics": mp.Metrics(port=0)}),
        (9464, "0.0.0.0", {"metrics": mp.Metrics(port=9464, host="0.0.0.0")}),
    ],
)
def test_metrics_are_served_where_the_options_say(port: int | None, host: str | None, expected: object) -> None:
    assert watched_options(port, host, dashboard=False, history=None, values=False) == expected


def test_a_history_needs_the_dashboard() -> None:
    assert watched_options(None, None, dashboard=False, history=Path("runs"), values=True) == {
        "dashboard": mp.Dashboard(history=Path("runs"), values=True)
    }


@pytest.mark.parametrize(
    ("option", "other"), [(("--metrics-host", "0.0.0.0"), "--metrics-port"), (("--values",), "--dashboard")]
)
def test_an_option_without_that_which_it_is_for_is_refused(option: tuple[str, ...], other: str) -> None:
    done = CliRunner().invoke(app, ["run", "examples.word_count", *option])
    assert (done.exit_code, f"give {other} too" in done.output) == (2, True)


@pytest.mark.parametrize(("state", "said"), [("failed", "error: no more"), ("stopped", "no more")])
def test_a_planned_stop_is_not_called_an_error(state: str, said: str) -> None:
    assert plain_text(JobMetrics("shop", state, "ended", error="no more")).splitlines()[-1] == said


def inverse(number: int) -> float:
    return 1 / number


FAILING_LINE = inverse.__code__.co_firstlineno + 1


def test_the_frames_of_the_user_are_those_of_the_process_that_raised(capsys: pytest.CaptureFixture[str]) -> None:
    job = mp.Job("far")
    job.source("in", sources.Memory([0])).map("inverse", inverse).sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError) as caught:
        mp.run(job)
    arrived = unpack_error(pack_error(caught.value))
    with pytest.raises(typer.Exit), reporting_errors(traceback=True):
        raise arrived
    said = capsys.readouterr().err
    assert "In the functions of the job, most recent call last:" in said
    assert f'File "{__file__}", line {FAILING_LINE}, in inverse' in said


def test_an_error_of_this_process_shows_them_once(capsys: pytest.CaptureFixture[str]) -> None:
    job = mp.Job("near")
    job.source("in", sources.Memory([0])).map("inverse", inverse).sink("out", sinks.Memory())
    with pytest.raises(typer.Exit), reporting_errors(traceback=True):
        mp.run(job)
    assert capsys.readouterr().err.count(f"line {FAILING_LINE}, in inverse\n") == 1


ROOT: Any = typer.main.get_command(app)
LISTED = {name: command.get_short_help_str(1000) for name, command in ROOT.commands.items()}
ROOT.commands |= {name: loaded(name) for name in LISTED}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(ROOT))
LEAVES = {path: command for path, command in ALL.items() if not hasattr(command, "commands")}


def named(path: tuple[str, ...]) -> str:
    return " ".join(path) or "malstrom"


def examples_of(command: Any) -> list[list[str]]:
    lines = [line.strip() for line in (command.epilog or "").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("malstrom ")]


def parsed(words: list[str]) -> tuple[str, ...]:
    """Parse an example as the command line would, without running it, and return the path of its command."""
    name, *rest = words
    assert name == "malstrom"
    command, path = ROOT, list[str]()
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        path.append(rest.pop(0))
        command = command.commands[path[-1]]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in rest if word.startswith("-")} <= known | {"--help"}, words
    if path:
        with command.make_context(" ".join(path), rest):
            pass
    return tuple(path)


@pytest.mark.parametrize("path", ALL, ids=named)
def test_the_help_of_a_command_ends_with_examples_that_it_can_parse(path: tuple[str, ...]) -> None:
    found = examples_of(ALL[path])
    assert len(found) >= 2
    for words in found:
        of = parsed(words)
        assert of == path if path in LEAVES else of[: len(path)] == path


@pytest.mark.parametrize("path", ALL, ids=named)
def test_examples_are_printed_line_by_line(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=200).stdout
    lines = [line.strip() for line in shown.splitlines()]
    assert "Examples:" in lines
    assert lines[lines.index("Examples:") + 1 :] == [shlex.join(words) for words in examples_of(ALL[path])]


def test_the_help_lists_each_command_with_the_first_sentence_of_its_own_help() -> None:
    assert {name: command.get_short_help_str(1000) for name, command in ROOT.commands.items()} == LISTED


@pytest.mark.parametrize("path", LEAVES, ids=named)
def test_every_command_has_json(path: tuple[str, ...]) -> None:
    assert any("--json" in parameter.opts for parameter in LEAVES[path].params)
