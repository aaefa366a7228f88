"""Progress: what it shows, when it draws, and when it keeps quiet."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.builder.plan import Plan
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.metrics import JobMetrics, MoveMetrics, PartMetrics, SnapshotMetrics, StepMetrics, WorkerMetrics
from malstrom_py.workers.reports.result import RunResult, StepCounts
from malstrom_py.workers.runtime.progress import Progress, epoch_text, progress_for, remark


def not_the_first(time: int) -> int:
    if time == 3_600_001:
        raise ValueError("the first")
    return time


def make_job() -> mp.Job:
    """Ten records: one late, one skipped, two keys."""
    job = mp.Job("flights")
    times = job.source("times", sources.Memory([3_600_000, *range(3_600_000, 3_600_008), 5]))
    on_time, _ = times.assign_timestamps("at", lambda time: time).generate_epochs(
        "epochs", mp.limit_out_of_orderness(10)
    )
    kept = on_time.map("not-the-first", not_the_first, on_error="skip")
    kept.key_by("parity", lambda time: time % 2).count("seen").sink("out", sinks.Memory())
    return job


def terminal(*, height: int = 30) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, height=height, color_system=None)


def drawn(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row_of(text: str, step: str) -> list[str]:
    """The cells of the last drawn row of ``step``."""
    lines = [line.split() for line in text.splitlines() if line.split()[:1] == [step]]
    return lines[-1][1:]


def counts(rows: int, **more: int) -> StepCounts:
    return StepCounts("map", rows, {"out": rows}, **more)


def result(duration_s: float, **steps: StepCounts) -> RunResult:
    return RunResult("flights", steps, duration_s)


def plan_of(names: list[str]) -> Plan:
    """A plan whose steps are called ``names``, the first of them a source."""
    job = mp.Job("flights")
    stream = job.source(names[0], sources.Memory([1]))
    for name in names[1:-1]:
        stream = stream.inspect(name, id)
    stream.sink(names[-1], sinks.Memory())
    return job.plan()


def test_the_line_below_has_workers_watermark_lag_late_rows_and_the_last_snapshot() -> None:
    console, plan = terminal(), plan_of(["in", "out"])
    metrics = JobMetrics(
        *("flights", "rescaling", "moving"),
        at=1_357_034_410.0,
        steps={"in": StepMetrics("source", late=1200, watermark=1_357_034_400.0)},
        workers=[WorkerMetrics(0), WorkerMetrics(1)],
        parts=[PartMetrics("in", "0", 0, lag_rows=5000)],
        snapshots=SnapshotMetrics(made=1, last="id", at=1_357_034_406.0),
        moving=MoveMetrics(1, 16, 512, 3, 4),
    )
    with Progress(plan, console) as progress:
        progress.show(result(1.0, **{"in": counts(5), "out": counts(5)}), metrics)
    assert (
        "2 workers · 16 of 512 key groups moved · watermark 2013-01-01 10:00:00 · 5,000 rows to read"
        " · 1,200 late · snapshot"
    ) in drawn(console)


def test_a_watermark_that_no_calendar_has_is_a_number() -> None:
    metrics = JobMetrics("a", "running", "steady", steps={"in": StepMetrics("source", watermark=1e18)})
    assert remark(metrics) == "0 workers · watermark 1e+18"


def test_a_run_is_shown_per_step_with_keys_epoch_late_and_skipped() -> None:
    job, console = make_job(), terminal()
    answer = mp.run(job, progress=False)
    with Progress(job.plan(), console) as progress:
        progress.show(answer)
    text = drawn(console)
    assert "flights" in text
    assert row_of(text, "times")[0] == "10"
    epochs, skipping, seen = (row_of(text, step) for step in ("epochs", "not-the-first", "seen"))
    assert epochs[-2:] == ["end", "1"]
    assert skipping[-2:] == ["end", "1"]
    assert seen[0] == "8"
    assert "2" in seen
    assert "dead letters" not in text, "an empty column is left out"


def test_dead_letters_are_shown_where_there_are_some() -> None:
    console = terminal()
    with Progress(plan_of(["in", "out"]), console) as progress:
        progress.show(result(1.0, **{"in": counts(5, dead_letters=1234), "out": counts(5)}))
    assert "dead letters" in drawn(console)
    assert row_of(drawn(console), "in")[-1] == "1,234"


def test_the_rate_is_that_of_the_last_moments_and_at_the_end_that_of_the_run() -> None:
    console = terminal()
    with Progress(plan_of(["in", "out"]), console) as progress:
        progress.show(result(1.0, **{"in": counts(1000), "out": counts(0)}))
        progress.show(result(2.0, **{"in": counts(4000), "out": counts(0)}))
        assert row_of(drawn(console), "in") == ["4,000", "3,000"]
    assert row_of(drawn(console), "in") == ["4,000", "2,000"]


def test_a_result_at_no_time_at_all_has_no_rate() -> None:
    console = terminal()
    with Progress(plan_of(["in", "out"]), console) as progress:
        progress.show(result(0.0, **{"in": counts(1000), "out": counts(0)}))
    assert row_of(drawn(console), "in") == ["1,000"]


def test_it_is_due_four_times_a_second_and_not_more_often() -> None:
    progress = Progress(plan_of(["in", "out"]), terminal())
    drawings = [moment_ms for moment_ms in range(0, 2000, 10) if progress.due(50.0 + moment_ms / 1000)]
    assert len(drawings) == 8


def test_more_steps_than_the_terminal_has_lines_are_counted_not_drawn() -> None:
    names = [f"step{number}" for number in range(500)]
    console = terminal(height=12)
    with Progress(plan_of(names), console) as progress:
        progress.show(RunResult("flights", {name: counts(1) for name in names}, 1.0))
    assert "and 494 more steps" in drawn(console)
    assert "step7" not in drawn(console)


def test_it_is_quiet_where_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert progress_for(plan_of(["in", "out"]), None) is None
    mp.run(make_job())
    assert capsys.readouterr().err == ""


def test_it_is_quiet_where_there_is_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert progress_for(plan_of(["in", "out"]), None) is None


def test_it_is_quiet_when_told_so_and_speaks_when_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert progress_for(plan_of(["in", "out"]), False) is None
    mp.run(make_job(), progress=True)
    assert "not-the-first" in capsys.readouterr().err


def test_what_users_print_stays_on_standard_output_when_that_is_no_terminal() -> None:
    before = sys.stdout
    with Progress(plan_of(["in", "out"]), terminal()):
        assert sys.stdout is before


def test_the_terminal_is_left_tidy_when_a_run_fails() -> None:
    console = terminal()
    error = KeyError("k")
    progress = Progress(plan_of(["in", "out"]), console).__enter__()
    progress.show(result(1.0, **{"in": counts(7), "out": counts(0)}))
    progress.__exit__(KeyError, error, None)
    shown_cursor, hidden_cursor = "\x1b[?25h", "\x1b[?25l"
    assert drawn(console).rfind(shown_cursor) > drawn(console).rfind(hidden_cursor)


def test_a_failure_before_the_first_drawing_draws_nothing() -> None:
    console = terminal()
    with pytest.raises(KeyError), Progress(plan_of(["in", "out"]), console):
        raise KeyError("k")
    assert "rows" not in drawn(console)


@pytest.mark.parametrize(
    ("epoch", "unit", "text"),
    [
        (None, "ms", ""),
        (5, None, ""),
        (MAX_EPOCH, "ms", "end"),
        (1_357_034_400_000, "ms", "2013-01-01 10:00:00"),
        (1_357_034_400, "s", "2013-01-01 10:00:00"),
        (10**17, "ms", str(10**17)),
    ],
)
def test_an_epoch_is_a_time_in_utc(epoch: int | None, unit: str | None, text: str) -> None:
    assert epoch_text(epoch, unit) == text  # type: ignore[arg-type]  # the parameters are plain str
