"""``mp.why`` returns the inputs of outputs, which an oracle knows: of rows and columns, windows, state and joins."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
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
    found = mp.why(job, {"key": "all", "value": 9})
    assert [one.value for one in found.inputs] == [0, 1, 2]
    assert found.parameters == {"factor": 3}
    with pytest.raises(CaptureError, match=r"Parameters have their defaults in it: factor = 3"):
        mp.why(job, {"key": "all", "value": 12})  # as of a factor of 4


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


@pytest.mark.parametrize("seed", range(3))
def test_a_record_whose_call_returned_in_front_of_the_keys_is_an_input_of_its_own_result(seed: int) -> None:
    async def digit(number: int) -> int:
        return number % 3

    numbers, out = Random(seed).sample(range(40), 20), sinks.Memory()
    job = mp.Job("calls")
    read = job.source("in", sources.Memory(numbers))
    read.capture_into("seen", capture.InMemory())
    called = read.key_by("number", lambda number: number).enrich("digit", digit)
    called.key_by("digits", lambda pair: pair[1]).collect("pairs", size=2).sink("out", out)
    mp.run(job, progress=False)
    for key, lists in out.by_key.items():
        mine = [number for number in numbers if number % 3 == key]
        for number, pairs in enumerate(lists, 1):
            found = mp.why(job, {"key": key, "value": pairs})
            assert [one.value for one in found.inputs] == mine[: 2 * number]


def united(change: Callable[[Any], Any]) -> Recorded:
    """Two windows with common ends, whose results are changed and united."""

    def make(named: Any) -> Any:
        short, long = (named.window(f"w{size}", windows.tumbling(timedelta(seconds=size))) for size in (100, 200))
        return change(short.count()).union("both", change(long.count().filter("all", lambda result: True)))

    return Recorded(0, make).run(0)


def test_a_result_has_its_own_window_though_another_ends_at_the_same_time() -> None:
    recorded = united(lambda results: results)
    for key, results in recorded.out.by_key.items():
        for result in results:
            found = mp.why(recorded.job, {"key": key, "start": result.start, "end": result.end})
            assert (found.window, len(found.inputs)) == (result[:2], result.value)


def test_a_value_that_may_be_of_two_windows_is_an_error() -> None:
    names = iter("ab")
    recorded = united(
        lambda results: results.map(next(names), lambda result: (result.end - result.start, result.value))
    )
    with pytest.raises(CaptureError, match=r"may be of 2 windows .* from 0 to 200.*: name the window's step"):
        mp.why(recorded.job, {"key": "a", "timestamp": 199, "value": recorded.out.by_key["a"][1]})
    assert mp.why(recorded.job, {"key": "a", "timestamp": 199}, "w100").window == (100, 200)


@pytest.mark.parametrize("early", [False, True])
def test_a_flat_row_is_found_by_the_result_that_it_was_made_of(*, early: bool) -> None:
    job, out = mp.Job("flat"), sinks.Memory()
    items: list[dict[str, Any]] = [
        {"key": key, "at": datetime.fromtimestamp(at, UTC), "n": n} for key, at, n in rows_of(1)
    ]
    timed = job.source("in", sources.Memory(items)).with_watermark("at", "90 seconds")
    timed.capture_into("seen", capture.InMemory())
    if early:
        keyed = timed.key_by("by", "key").window("w", windows.tumbling(timedelta(seconds=60)), emit=5)
        keyed.aggregate(n=agg.sum("n")).flat("rows").sink("out", out)
    else:
        timed.group_by("key").window("1 minute").agg(n=agg.sum("n")).sink("out", out)
    mp.run(job, progress=False)
    assert len(out.items) > 10
    for row in out.items:
        found = mp.why(job, row)
        for whole in ({"key": row["key"], "value": row}, {"key": None, "value": row}):
            assert mp.why(job, whole) == found
        with pytest.raises(CaptureError, match="has not made this row"):
            mp.why(job, {"key": row["key"], "value": {**row, "n": -1}})
        start, end = (row[f"window_{edge}"] for edge in ("start", "end"))
        mine = [one["n"] for one in items if one["key"] == row["key"] and start <= one["at"] < end]
        assert sum(numbers_of(found)) == row["n"]
        assert sorted(numbers_of(found)) == sorted(mine) or (row.get("update") and {*numbers_of(found)} < {*mine})


def test_rows_after_flat_have_no_keys() -> None:
    recorded = Recorded(
        0, lambda named: named.window("w", WINDOWS[0]).count().flat("rows").map("n", lambda row: row["value"])
    )
    with pytest.raises(PlanError, match="step 'n': its rows have no keys any more"):
        mp.why(recorded.job, 3)


CLOCKS: dict[str, Callable[[Any], Any]] = {
    "window": lambda keyed: keyed.window("w", windows.tumbling(timedelta(seconds=1), clock="processing")).count(),
    "session": lambda keyed: keyed.window("w", windows.session(timedelta(seconds=1), clock="processing")).count(),
    "collect": lambda keyed: keyed.collect("w", size=2, every=timedelta(seconds=1)),
    "ttl": lambda keyed: keyed.reduce("w", lambda total, number: total + number, ttl=timedelta(seconds=1)),
}


@pytest.mark.parametrize("kind", CLOCKS)
def test_what_goes_by_the_clock_is_an_error(kind: str) -> None:
    job, numbers = kept_job(capture.InMemory())
    CLOCKS[kind](numbers.key_by("key", lambda number: 0)).sink("out", sinks.Memory())
    mp.run(job, progress=False)
    with pytest.raises(PlanError, match="'w' goes by the runtime's clock"):
        mp.why(job, {"key": 0})


DAY = datetime(2024, 1, 2, tzinfo=UTC)
ODD: list[tuple[Any, Any, Any]] = [
    (DAY.date(), "2024-01-02", None),
    (Decimal("1.5"), "1.5", Decimal(2)),
    ((DAY, "x"), [DAY.isoformat(), "x"], (DAY, "y")),
    (None, None, math.inf),
    ((None, 1), [None, 1], (math.inf, 1)),
]


@pytest.mark.parametrize(("key", "text", "other"), ODD)
def test_a_key_may_be_given_as_json_has_it(key: Any, text: Any, other: Any) -> None:
    job, numbers = kept_job(capture.InMemory())
    numbers.key_by("key", lambda number: key if number % 2 else other).count("n").sink("out", sinks.Memory())
    mp.run(job, progress=False)
    for given in (key, text):
        assert [one.value for one in mp.why(job, {"key": given, "value": 2}).inputs] == [1, 3]


@pytest.mark.parametrize("place", ["before the keys", "after the keys"])
def test_a_text_is_not_taken_for_a_key_that_is_written_alike(place: str) -> None:
    job = mp.Job("alike")
    numbers: Any = job.source("in", sources.Memory(range(9)))
    if place == "before the keys":
        numbers.capture_into("seen", capture.InMemory())
    keyed = numbers.key_by("key", lambda n: (DAY.date(), DAY.date().isoformat(), Decimal(n // 3))[n % 3])
    if place == "after the keys":
        keyed.capture_into("seen", capture.InMemory())
    keyed.count("n").sink("out", sinks.Memory())
    mp.run(job, progress=False)
    text = DAY.date().isoformat()

    def inputs_of(key: Any, **options: Any) -> list[Any]:
        return [one.value for one in why_module.explained(job, {"key": key, "value": 2}, **options).inputs]

    assert inputs_of(DAY.date()) == inputs_of(text, key_type="date") == [0, 3]
    assert inputs_of(text) == inputs_of(text, key_type="str") == [1, 4]
    with pytest.raises(CaptureError, match="no key of type datetime is '2024-01-02'"):
        inputs_of(text, key_type="datetime")
    with pytest.raises(CaptureError, match="the row says no key"):
        why_module.explained(job, {"value": 2}, key_type="date")


def test_keys_that_are_written_alike_and_not_given_themselves_are_an_error() -> None:
    job, numbers = kept_job(capture.InMemory())
    keys = (DAY.date(), Decimal(1)), (DAY.date().isoformat(), Decimal(1))
    numbers.key_by("key", lambda number: keys[number % 2]).count("n").sink("out", sinks.Memory())
    mp.run(job, progress=False)
    with pytest.raises(
        CaptureError, match=r"2 keys are written as .*, such as \(datetime.date\(2024, 1, 2\), .* and \('2024-01-02'"
    ):
        mp.why(job, {"key": [DAY.date().isoformat(), "1"], "value": 2})
    assert [one.value for one in mp.why(job, {"key": keys[1], "value": 2}).inputs] == [1, 3]


def test_a_line_that_files_wrote_is_found_by_its_nested_values_in_any_order(tmp_path: Path) -> None:
    job, numbers = kept_job(capture.InMemory())

    def nested(number: int) -> dict[str, Any]:
        inner: dict[str, Any] = {"at": DAY + timedelta(number), "pair": (number, None)}
        return {"day": inner["at"].date(), "price": Decimal(number) / 4, "rate": math.nan, "inner": inner}

    numbers.key_by("odd", lambda number: number % 2).map("m", nested).sink("out", sinks.Files(tmp_path, format="json"))
    mp.run(job, progress=False)
    lines = [json.loads(line) for path in tmp_path.glob("*.json*") for line in path.read_text().splitlines()]
    assert len(lines) == 6
    for line in lines:
        line["inner"] = dict(reversed(line["inner"].items()))
        assert mp.why(job, line).value["inner"]["pair"] == (line["inner"]["pair"][0], None)


def test_a_field_of_the_value_may_be_named_key() -> None:
    job, numbers = kept_job(capture.InMemory())
    named = numbers.key_by("odd", lambda number: number % 2).map("m", lambda number: {"key": number // 2, "n": number})
    named.sink("out", out := sinks.Memory())
    mp.run(job, progress=False)
    for row in out.items:  # such as key 0, n 1: of the key 1, while 0 is a key too
        found = mp.why(job, row)
        assert (found.key, found.value) == (row["n"] % 2, row)
    with pytest.raises(CaptureError, match="has made 4 rows"):
        mp.why(job, {"key": 0})


def all_keys(right: Callable[..., Any]) -> Callable[..., Any]:
    """Records of each key are let in."""
    return lambda entry, batch, out: (entry.times.extend(batch.timestamps), out.send(batch))


def test_a_wrong_answer_is_seen() -> None:
    with patch.object(why_module.Entry, "on_batch", all_keys(why_module.Entry.on_batch)):
        assert not all(map(explained_windows, range(3)))
