"""The logs of jobs: what a line has in each format, which events have one, and what no line holds."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import count
from typing import Any, get_args

import pytest

import malstrom_py as mp
from malstrom_py import logs, sinks, sources
from malstrom_py.errors import PlanError
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.remote.worker_setup import Wiring, WorkerSetup, log_as
from malstrom_py.workers.transport.base import JobSecret

SECRET = "secret-4711"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    logger = logging.getLogger("malstrom_py")
    yield
    logs.reset()
    assert logs.configured() is None
    assert (logger.propagate, logger.level) == (True, logging.NOTSET)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_without_configure_there_is_no_handler() -> None:
    assert logs.configured() is None
    assert logging.getLogger("malstrom_py").level == logging.NOTSET


def test_a_line_of_json_has_the_event_and_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    logger = logging.getLogger("malstrom_py.coordinator")
    logs.log(logger, logging.INFO, "job %s: %d keys", *("visits", 3), job="visits", step=None, keys=3, duration_s=0.5)
    logger.debug("below the level")
    (line,) = lines(capsys)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "INFO",
        "logger": "malstrom_py.coordinator",
        "message": "job visits: 3 keys",
        "job": "visits",
        "keys": 3,
        "duration_s": 0.5,
    }


def test_a_line_of_text_has_where_it_happened(capsys: pytest.CaptureFixture[str]) -> None:
    logs.attach(logs.LogSettings(), job="visits", worker=1, incarnation=2)
    logging.getLogger("malstrom_py.worker").info("started")
    logs.log(logging.getLogger("malstrom_py"), logging.WARNING, "slow", step="parse", keys=3)
    first, second = (line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines())
    assert first == "INFO job=visits worker=1 incarnation=2: started"
    assert second == "WARNING job=visits worker=1 step=parse incarnation=2: slow"


def test_the_coordinator_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    logs.attach(logs.LogSettings(), job="visits", worker=None)
    logging.getLogger("malstrom_py.coordinator").info("workers %s joined", [2, 3])
    assert capsys.readouterr().err.endswith(" INFO job=visits coordinator: workers [2, 3] joined\n")


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_traceback_is_logged_and_no_foreign_text_while_texts_are_hidden(
    format: logs.Format, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALSTROM_REDACT_ERRORS", "1")
    logs.configure(format)
    logger = logging.getLogger("malstrom_py.test")
    try:
        int(SECRET)
    except ValueError as error:
        logger.exception("it failed")
        logger.warning("it failed: %s, %s", error, OSError(28, SECRET))
        logger.warning(error)
        logs.log(logger, logging.ERROR, "it failed", error=error)
    logger.warning("it failed: %s", PlanError("too many workers"))
    said = capsys.readouterr().err
    assert SECRET not in said
    assert "Traceback" not in said
    assert said.count("ValueError at ") == {"text": 2, "json": 3}[format], "in JSON also a field"
    assert f"{__file__}:" in said
    assert "it failed: ValueError, OSError: [Errno 28] No space left on device" in said
    assert "it failed: too many workers" in said


def test_what_this_package_logs_of_an_error_has_its_text_and_place_however_a_program_writes_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        int(SECRET)
    except ValueError as error:
        logs.log(logging.getLogger("malstrom_py"), logging.ERROR, "job %s failed", "docs", error=error)
    assert (
        f"job docs failed: ValueError: invalid literal for int() with base 10: '{SECRET}' at {__file__}:" in caplog.text
    )


@pytest.mark.parametrize(("format", "level"), [("xml", "info"), ("json", "loud"), ("json", 10)])
def test_what_is_no_setting_is_refused(format: Any, level: Any) -> None:
    with pytest.raises(PlanError, match="logs: "):
        logs.configure(format, level)


def test_a_second_call_replaces_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text", "error")
    logs.configure("json", "warning")
    assert logs.configured() == logs.LogSettings("json", "WARNING")
    logging.getLogger("malstrom_py").warning("one line")
    assert [line["message"] for line in lines(capsys)] == ["one line"]


def test_a_closed_standard_error_does_not_end_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    logs.configure()
    monkeypatch.setattr("sys.stderr", None)
    logging.getLogger("malstrom_py").warning("lost")


def test_each_rescale_snapshot_and_recovery_is_one_line_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    store = mp.Snapshots(MemoryStore(), interval_s=None)

    def started() -> mp.JobHandle:
        job = mp.Job("logged")
        numbers = job.source("in", sources.Generator(lambda part, start: count(start), parts=4))
        numbers.key_by("key", lambda n: n % 20).count("seen").sink("out", sinks.Callable(lambda value: None))
        return mp.InProcess(2, snapshots=store, progress=False).start(job, control=False)

    first = started()
    first.rescale(3)
    last = first.stop()
    started().stop()
    known: dict[str, list[dict[str, Any]]] = {}
    for line in lines(capsys):
        assert (line["job"], line["level"]) == ("logged", "INFO"), line
        words = ("has been rescaled", "is complete", "resumes from")
        (kind,) = [word for word in words if word in line["message"]]
        known.setdefault(kind, []).append(line)
    (ended,) = known["has been rescaled"]
    assert (ended["workers_from"], ended["workers"]) == (2, 3)
    assert ended["slots"] > 0
    assert {"parts", "keys", "bytes", "moves", "duration_s"} <= set(ended)
    snapshot, _ = known["is complete"]
    assert (snapshot["snapshot"], snapshot["incarnation"]) == (last, 1)
    assert {"bytes", "pause_s", "duration_s"} <= set(snapshot)
    (recovery,) = known["resumes from"]
    assert (recovery["snapshot"], recovery["workers_from"], recovery["workers"]) == (last, 3, 2)


def test_a_restart_is_one_line_with_why_and_which(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    left = [True]

    def fails_once(number: int) -> int:
        if number == 500 and left and left.pop():
            raise ValueError(SECRET)
        return number

    job = mp.Job("restarted")
    numbers = job.source("in", sources.Memory(range(1_000))).map("once", fails_once)
    numbers.sink("out", sinks.Callable(lambda value: None))
    store, restart = mp.Snapshots(MemoryStore(), interval_s=None), mp.Restart(backoff_s=0.0)
    mp.InProcess(snapshots=store, restart=restart, progress=False).run(job)
    said = lines(capsys)
    (line,) = [line for line in said if "restarts" in line["message"]]
    assert (line["level"], line["job"], line["restart"], line["pause_s"]) == ("WARNING", "restarted", 1, 0.0)
    assert "step 'once' failed: ValueError" in line["why"]
    assert SECRET in line["why"]


def test_actors_log_as_the_program_does(capsys: pytest.CaptureFixture[str]) -> None:
    setup = WorkerSetup(
        job="visits",
        batching=Batching(),
        wiring=Wiring(JobSecret.new()),
        start_timeout_s=1.0,
        incarnation=4,
        logs=logs.LogSettings("json", "warning"),
    )
    log_as(setup, 3)
    logger = logging.getLogger("malstrom_py.worker")
    logger.info("not asked for")
    logger.warning("slow")
    log_as(setup)
    logging.getLogger("malstrom_py.coordinator").warning("slow too")
    worker, coordinator = lines(capsys)
    assert (worker["job"], worker["worker"], worker["incarnation"]) == ("visits", 3, 4)
    assert {"job"} == set(coordinator) & {"job", "worker", "incarnation"}


class Wordless:
    """What a user's function may log below ``malstrom_py``."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_line_that_cannot_be_written_fails_no_job() -> None:
    for format in get_args(logs.Format):
        logs.configure(format)
        logging.getLogger("malstrom_py.user").info("%d", "no number")
        logging.getLogger("malstrom_py.user").info("%s", Wordless())
