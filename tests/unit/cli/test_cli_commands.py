"""Commands that ask a running job for something: ``malstrom snapshot``, ``savepoint`` and ``autoscale``."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import malstrom_py as mp
from malstrom_py import events, sinks, sources
from malstrom_py.cli import jobs as cli_jobs
from malstrom_py.cli.app import app
from malstrom_py.workers.monitoring.sentences import sentence


@pytest.fixture
def handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A running job with snapshots, which the commands find."""
    job = mp.Job("docs-asked")
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
