"""``mp.why`` returns the inputs of outputs, which an oracle knows: of rows and columns, windows, state and joins."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

import malstrom_py as mp
from malstrom_py import agg, capture, sinks, sources, windows
from malstrom_py.errors import CaptureError, PlanError
from malstrom_py.snapshot.store import MemoryStore
from malstrom_py.testing import why as why_module

Row = tuple[str, int, int]


def rows_of(seed: int, count: int = 60) -> list[Row]:
    """Rows (key, time, number), by up to 90 out of order; the numbers are those of the rows."""
    random = Random(seed)
    return [(random.choice("abc"), number * 10 + random.randrange(90), number + 1) for number in range(count)]


class Recorded:
    """A job of a seed with rows or columns, which is captured at one of three places, and its results by key."""

    def __init__(self, seed: int, make: Callable[[Any], Any]) -> None:
        self.rows, self.columns, self.out = rows_of(seed), bool(seed % 2), sinks.Memory()
        self.job = mp.Job("recorded")
        place, kept = seed % 3, capture.InMemory()
        timed = self._timed(self.job)
        if place == 0:
            timed.capture_into("seen", kept)
        keyed = timed.key_by("key", "key" if self.columns else lambda row: row[0])
        if place == 1:
            keyed.capture_into("seen", kept)
        named = (
            keyed if self.columns else keyed.map("named", lambda row: dict(zip(("key", "at", "n"), row, strict=True)))
        )
        if place == 2:
            named.capture_into("seen", kept)
        make(named).sink("out", self.out)

    def _timed(self, job: mp.Job) -> Any:
        if self.columns:
            items = [dict(zip(("key", "at", "n"), row, strict=True)) for row in self.rows]
            read: Any = job.source("in", sources.Memory(items)).select("columns", "key", "at", "n")
            timed = read.assign_timestamps("time", "at", unit="s")
        else:
            timed = job.source("in", sources.Memory(self.rows)).assign_timestamps("time", lambda row: row[1], unit="s")
        return timed.generate_epochs("epochs", mp.limit_out_of_orderness(90))[0]

    def run(self, seed: int) -> Recorded:
        snapshots = mp.Snapshots(MemoryStore(), interval_s=0.01)
        mp.Simulation(workers=2, seed=seed, rescales=seed % 2, crashes=seed % 3, snapshots=snapshots).run(self.job)
        assert self.out.by_key
        return self


def numbers_of(found: mp.Why) -> list[int]:
    """The numbers of the rows that are the inputs."""
    return [one.value["n"] if isinstance(one.value, dict) else one.value[2] for one in found.inputs]


WINDOWS = [windows.tumbling(timedelta(seconds=100)), windows.sliding(timedelta(seconds=200), timedelta(seconds=100))]
WINDOWS_AND_SESSIONS = [*WINDOWS, windows.session(timedelta(seconds=25))]


def explained_windows(seed: int) -> bool:
    """Whether the inputs of all windows of a job are right."""
    window = WINDOWS_AND_SESSIONS[seed % len(WINDOWS_AND_SESSIONS)]
    recorded = Recorded(seed, lambda named: named.window("window", window).aggregate(total=agg.sum("n"))).run(seed)
    for key, results in recorded.out.by_key.items():
        for result in results:
            found = mp.why(recorded.job, {"key": key, "start": result.start, "end": result.end})
            mine = [n for name, at, n in recorded.rows if name == key and result.start <= at < result.end]
            if (found.window, found.value, sorted(numbers_of(found))) != ((*result[:2],), result, sorted(mine)):
                return False
            if sum(mine) != result.value["total"]:
                return False
    return True


@pytest.mark.parametrize("seed", range(12))
def test_the_inputs_of_a_window_are_the_records_of_its_key_and_time(seed: int) -> None:
    assert explained_windows(seed)


@pytest.mark.parametrize("seed", range(6))
def test_the_inputs_of_a_result_of_state_are_the_records_of_its_key_up_to_then(seed: int) -> None:
    recorded = Recorded(seed, lambda named: named.map("n", lambda row: row["n"]).sum("total")).run(seed)
    for key, totals in recorded.out.by_key.items():
        for number, total in enumerate(totals, 1):
            found = mp.why(recorded.job, {"key": key, "value": total})
            assert numbers_of(found) == [n for name, _, n in recorded.rows if name == key][:number]


def test_a_step_after_the_window_keeps_its_time_so_that_the_window_is_known() -> None:
    window = windows.tumbling(timedelta(seconds=100))
    recorded = Recorded(
        0, lambda named: named.window("window", window).count().map("text", lambda result: f"{result.value} rows")
    ).run(0)
    found = mp.why(recorded.job, {"key": "a", "timestamp": 199})
    assert found.window == (100, 200)
    assert found.value == f"{len(found.inputs)} rows"
    assert mp.why(recorded.job, {"key": "a", "start": 100}, "window").inputs == found.inputs


def test_a_state_after_windows_has_the_records_of_all_of_them() -> None:
    window = windows.tumbling(timedelta(seconds=100))
    recorded = Recorded(
        0, lambda named: named.window("window", window).count().map("n", lambda result: result.value).sum("total")
    ).run(0)
    last = recorded.out.by_key["a"][-1]
    found = mp.why(recorded.job, {"key": "a", "value": last})
    assert (found.window, len(found.inputs)) == (None, last)


def test_a_row_may_be_as_a_table_a_tap_or_the_job_itself_has_it() -> None:
    window = windows.tumbling(timedelta(seconds=100))
    recorded = Recorded(0, lambda named: named.window("window", window).count()).run(0)
    result = recorded.out.by_key["a"][1]
    tapped = mp.TapRecord("a", list(result), result.end - 1, 0)
    moment = datetime.fromtimestamp(result.start, UTC)
    for row in (
        {"key": "a", "value": result},
        {"key": "a", "start": result.start, "value": result.value},
        {"key": "a", "window_start": moment.isoformat(), "value": result.value, "update": False},
        tapped._asdict(),
    ):
        assert mp.why(recorded.job, row).value == result


def test_a_key_may_be_none() -> None:
    job, numbers = kept_job(capture.InMemory())
    numbers.key_by("key", lambda number: None if number % 2 else 7).sum("n").sink("out", sinks.Memory())
    mp.run(job, progress=False)
    for row in ({"key": None, "value": 4}, {"value": 4}):
        assert [one.value for one in mp.why(job, row).inputs] == [1, 3]


def test_functions_that_read_a_parameter_have_its_default() -> None:
    job, numbers = kept_job(capture.InMemory())
    factor = job.parameter("factor", 3)
    times = numbers.key_by("key", lambda number: "all").map("times", lambda number: number * factor.value)
    times.sum("n").sink("out", sinks.Memory())
    mp.run(job, progress=False)
    assert [one.value for one in mp.why(job, {"key": "all", "value": 9}).inputs] == [0, 1, 2]


JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "window": lambda left, right: left.join("join", right, window=windows.tumbling(timedelta(seconds=100))),
    "interval": lambda left, right: left.join_interval("join", right, lower=timedelta(0), upper=timedelta(seconds=20)),
    "asof": lambda left, right: left.join_asof("join", right),
}


@pytest.mark.parametrize("kind", JOINS)
def test_the_inputs_of_a_join_are_of_both_sides(kind: str) -> None:
    job, out = mp.Job("joins"), sinks.Memory()
    sides = []
    for number, name in enumerate(("left", "right")):
        timed = job.source(name, sources.Memory(rows_of(number))).assign_timestamps(
            f"{name}-time", lambda row: row[1], unit="s"
        )
        on_time, _ = timed.generate_epochs(f"{name}-epochs", mp.limit_out_of_orderness(90))
        on_time.capture_into(f"{name}-seen", capture.InMemory())
        sides.append(on_time.key_by(f"{name}-key", lambda row: row[0]))
    JOINS[kind](*sides).sink("out", out)
    mp.run(job, progress=False)
    for key, pair in [(key, pair) for key, some in out.by_key.items() for pair in some][::7]:
        found = mp.why(job, {"key": key, "value": pair})
        assert {one.value[0] for one in found.inputs} == {key}
        assert ("left-seen", pair.left) in [(one.recording, one.value) for one in found.inputs]
        if pair.right is not None:
            assert ("right-seen", pair.right) in [(one.recording, one.value) for one in found.inputs]
        if kind == "window":
            assert found.window is not None
            start, end = found.window
            assert sorted(one.value for one in found.inputs) == sorted(
                row for side in (0, 1) for row in rows_of(side) if row[0] == key and start <= row[1] < end
            )


def kept_job(place: Any, **options: Any) -> Any:
    job = mp.Job("errors")
    numbers = job.source("in", sources.Memory(range(6)))
    numbers.capture_into("seen", place, **options)
    return job, numbers


def test_a_job_that_captures_nothing_says_so() -> None:
    job = mp.Job("errors")
    job.source("in", sources.Memory([1])).key_by("key", str).count("n").sink("out", sinks.Memory())
    with pytest.raises(PlanError, match="captures nothing: put"):
        mp.why(job, {"key": "1"})
    with pytest.raises(PlanError, match="got str"):
        mp.why("errors", {"key": "1"})  # type: ignore[arg-type]


def test_a_source_that_is_not_captured_is_named() -> None:
    job, numbers = kept_job(capture.InMemory())
    other = job.source("other", sources.Memory([1]))
    numbers.union("both", other).key_by("key", str).count("n").sink("out", sinks.Memory())
    with pytest.raises(PlanError, match="from source 'other' too"):
        mp.why(job, {"key": "1"})


def test_a_step_without_keys_and_a_step_after_two_states_are_named() -> None:
    job, numbers = kept_job(capture.InMemory())
    numbers.map("more", lambda number: number + 1).sink("out", sinks.Memory())
    with pytest.raises(PlanError, match="step 'more' is not keyed"):
        mp.why(job, 1)
    job, numbers = kept_job(capture.InMemory())
    first = numbers.key_by("digit", lambda n: n % 2).count("first")
    first.key_by("again", lambda n: n % 3).count("second").sink("out", sinks.Memory())
    mp.run(job, progress=False)
    with pytest.raises(PlanError, match="from step 'first', which has state by key"):
        mp.why(job, {"key": 1})
    with pytest.raises(PlanError, match="no step 'thrid'"):
        mp.why(job, {"key": 1}, "thrid")


def test_a_recording_before_lateness_is_decided_does_not_do() -> None:
    job, numbers = kept_job(capture.InMemory())
    timed = numbers.assign_timestamps("time", lambda number: number)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    on_time.key_by("key", lambda n: n % 2).window("w", windows.tumbling(3)).count().sink("out", sinks.Memory())
    with pytest.raises(PlanError, match="capture the on-time stream of 'epochs'"):
        mp.why(job, {"key": 1})


def test_a_row_that_is_not_there_or_is_one_of_several_is_an_error() -> None:
    job, numbers = kept_job(capture.InMemory())
    counts = numbers.key_by("odd", lambda number: number % 2).count("n")
    counts.sink("out", sinks.Memory())
    counts.sink("more", sinks.Memory())
    with pytest.raises(PlanError, match="name the step whose row is meant with step=; its sinks are 'out', 'more'"):
        mp.why(job, {"key": 1})
    with pytest.raises(CaptureError, match="there is none"):
        mp.why(job, {"key": 1}, "n")
    mp.run(job, progress=False)
    assert [one.value for one in mp.why(job, {"key": 1, "value": 2}, "n").inputs] == [1, 3]
    for row, text in (
        ({"key": 1, "value": 9}, "step 'n' has not made this row"),
        ({"key": 1}, "has made 3 rows that are described so"),
        ({"kye": 1}, "no output has 'kye', did you mean 'key'?"),
        (2, "has made 2 rows"),
    ):
        with pytest.raises(CaptureError, match=text):
            mp.why(job, row, "out")


def all_keys(right: Callable[..., Any]) -> Callable[..., Any]:
    """Records of each key are let in."""
    return lambda entry, batch, out: (entry.times.extend(batch.timestamps), out.send(batch))


def test_a_wrong_answer_is_seen() -> None:
    with patch.object(why_module.Entry, "on_batch", all_keys(why_module.Entry.on_batch)):
        assert not all(map(explained_windows, range(3)))
