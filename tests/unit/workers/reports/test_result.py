"""Results: every record is accounted for, per step and in sum."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.errors import MalformedRecord
from malstrom_py.testing import VirtualClock
from tests.unit.operators.scripted import Scripted


def run(job: mp.Job) -> mp.RunResult:
    return mp.run(job, clock=VirtualClock())


@given(records=st.lists(st.sampled_from(["bad", "None", *map(str, range(40))]), max_size=40), parts=st.integers(1, 3))
def test_read_is_written_filtered_late_skipped_and_dead_letters(records: list[str], parts: int) -> None:
    job, out = mp.Job("accounts"), sinks.Memory()
    source = job.source("in", sources.Memory(records, parts=parts))
    parsed = source.map("parse", lambda text: None if text == "None" else int(text), on_error="skip")
    timed = parsed.assign_timestamps("at", lambda number: cast(int, number), on_error="dead-letter")
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(5))
    on_time.filter("even", lambda number: (number or 0) % 2 == 0).key_by("key", lambda n: n).count("n").sink("out", out)
    result = run(job)
    assert result.read == len(records)
    assert result.read == result.written + result.filtered + result.late + result.skipped + result.dead_letters
    assert (result.written, result.skipped) == (len(out.items), records.count("bad"))
    assert result.dead_letters == records.count("None")
    assert result.steps["epochs"].ports == {"on_time": result.steps["even"].rows_in, "late": result.late}


def test_each_step_says_what_it_did_in_the_order_of_the_plan() -> None:
    job = mp.Job("steps")
    yes, _ = job.source("in", sources.Memory([1, 2, 3])).branch("odd", lambda n: n % 2)
    yes.key_by("key", lambda n: n).count("n").sink("out", sinks.Memory())
    steps = run(job).steps
    assert [(name, step.kind, step.rows_in, step.rows_out) for name, step in steps.items()] == [
        ("in", "source", 3, 3),
        ("odd", "branch", 3, 3),
        ("key", "key_by", 2, 2),
        ("n", "count", 2, 2),
        ("out", "sink", 2, 0),
    ]
    assert dict(steps["odd"].ports) == {"yes": 2, "no": 1}
    assert [step.keys for step in steps.values()] == [None, None, None, 2, None]


def test_at_the_end_every_step_has_the_maximum_epoch_also_untimed_ones() -> None:
    job = mp.Job("ends")
    stream = job.source("in", sources.Memory([3, 1], parts=2))
    stream.sink("untimed", sinks.Memory())
    on_time, late = stream.assign_timestamps("at", lambda n: n).generate_epochs("epochs", mp.limit_out_of_orderness(0))
    on_time.key_by("key", lambda n: n).sink("out", sinks.Memory())
    late.sink("late", sinks.Memory())
    stream.map("letters", lambda n: n, on_error="dead-letter")
    job.dead_letters("letters").sink("dead", sinks.Memory())
    assert {step.epoch for step in run(job).steps.values()} == {MAX_EPOCH}


def test_dead_letters_are_not_among_the_rows_out() -> None:
    job = mp.Job("letters")
    job.source("in", sources.Memory([1, 0])).map("inverse", lambda n: 1 / n, on_error="dead-letter").sink(
        "out", sinks.Memory()
    )
    step = run(job).steps["inverse"]
    assert (step.rows_out, step.dead_letters, dict(step.ports)) == (1, 1, {"out": 1, "dead_letters": 1})


def test_malformed_records_count_as_read_and_skipped() -> None:
    job = mp.Job("malformed")
    script: list[Any] = [[1, 2], MalformedRecord("odd", record="x"), [3]]
    job.source("in", Scripted({"a": script}), on_error="skip").sink("out", sinks.Memory())
    result = run(job)
    assert (result.read, result.written, result.skipped) == (4, 3, 1)


def test_the_text_of_a_result_is_one_line_of_sums() -> None:
    result = mp.RunResult("flights", {"in": mp.StepCounts("source", 1_234_567, {"out": 1_234_567})}, 1.5)
    assert str(result) == (
        "job flights: 1,234,567 read, 0 written, 0 filtered, 0 late, 0 skipped, 0 dead letters in 1.50 s"
    )


def test_a_run_lasts_as_long_as_its_clock_says() -> None:
    clock, job = VirtualClock(), mp.Job("lasting")
    job.source("in", sources.Memory([1, 2])).inspect("work", lambda _: clock.advance(3.0)).sink("out", sinks.Memory())
    assert mp.run(job, clock=clock).duration_s == pytest.approx(6.0)


def test_snapshots_are_told_where_there_were_any() -> None:
    assert str(mp.RunResult("a", {}, 1.0, snapshots=3)).endswith("0 dead letters, 3 snapshots in 1.00 s")
    assert "snapshots" not in str(mp.RunResult("a", {}, 1.0))


def test_a_result_is_one_short_line_and_in_a_notebook_a_table_of_its_steps() -> None:
    job = mp.Job("table")
    stream: mp.StreamBuilder[None, int] = job.source("in", sources.Memory(range(1_500)))
    for number in range(12):
        stream = stream.filter(f"step-{number}", lambda value: value > 10)
    stream.key_by("key", lambda value: value % 2).count("n").sink("out", sinks.Memory())
    result = run(job)
    assert repr(result) == f"<RunResult of {result}>"
    assert len(repr(result)) < 150
    assert (
        repr(result.steps["n"])
        == f"StepCounts(kind='count', rows_in=1489, ports={{'out': 1489}}, keys=2, epoch={MAX_EPOCH})"
    )
    shown = re.sub(r' style="text-align:\w+"', "", cast(Any, result)._repr_html_())
    assert shown.count("<tr>") == 1 + len(result.steps)
    assert str(result) in shown
    assert "<tr><th>step-0</th><td>filter</td><td>1,500</td><td>1,489</td><td>11</td>" in shown
    assert (
        "<th>n</th><td>count</td><td>1,489</td><td>1,489</td><td>0</td><td>0</td><td>0</td><td>0</td><td>2</td>"
        in shown
    )
    assert len(repr(mp.JobStatus("table", "running", 1, "steady", result, None))) < 400
    assert repr(job.plan()) == "Plan('table', 16 steps)"


def test_a_simulated_result_names_what_replays_it() -> None:
    job = mp.Job("simulated")
    job.source("in", sources.Memory([1])).sink("out", sinks.Memory())
    result = mp.Simulation(seed=1).run(job)
    assert repr(result).endswith(f", incarnations {result.incarnations}, trace {result.trace}>")
    assert len(repr(result)) < 250
