"""Parameters of a job: what they may be, who may read them, and that functions which do are not compiled."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import events, sinks, sources
from malstrom_py.builder.compiled_steps import compiled_of
from malstrom_py.errors import OperatorError, PlanError, SnapshotError
from malstrom_py.operators.logic import KeyedLogic
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.log import JobStart
from malstrom_py.snapshot.manifest import manifest_bytes, manifest_of, open_seal
from malstrom_py.worker_context import VALUE_BYTES_MAX, Parameter, plain_value
from tests.unit.snapshot.taken import manifest


def endless(_part: int, start: int) -> Iterator[int]:
    return count(start)


def valued(out: sinks.Memory, default: Any = 10) -> mp.Job:
    job = mp.Job("valued")
    threshold = job.parameter("threshold", default)
    job.source("in", sources.Generator(endless)).map("value", lambda n: (n, threshold.value)).sink("out", out)
    return job


@pytest.mark.parametrize("value", [True, 0, -(1 << 63), 1.5, "", b"x", [], [1, "a", None], {"a": {"b": [1.5]}}])
def test_plain_values_are_copied(value: Any) -> None:
    own = plain_value("it", value)
    assert own == value
    assert type(own) is type(value)
    if isinstance(value, list | dict):
        assert own is not value


@pytest.mark.parametrize(
    "value", [None, (1, 2), {1, 2}, [(1, 2)], object(), 1 << 64, math.nan, [math.nan], Path("a"), "\udc00", print]
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(PlanError, match="it must be True, False, a number, text, bytes, or a list or dict of these"):
        plain_value("it", value)


def test_a_large_value_is_refused() -> None:
    assert len(plain_value("it", "x" * (VALUE_BYTES_MAX - 3))) == VALUE_BYTES_MAX - 3
    with pytest.raises(PlanError, match="it takes 16,003 bytes, and the limit is 16,000"):
        plain_value("it", "x" * VALUE_BYTES_MAX)


def test_a_value_has_the_type_of_the_default() -> None:
    assert repr(plain_value("it", 2, 0.5)) == "2.0"
    for value, default in ((True, 1), (1, True), (1.5, 1), ("1", 1), (True, 0.5), ([], {})):
        with pytest.raises(PlanError, match="it must be of the type of its default"):
            plain_value("it", value, default)


def test_a_name_is_taken_once_and_legal() -> None:
    job = mp.Job("named")
    job.parameter("threshold", 1)
    with pytest.raises(PlanError, match="already has a parameter 'threshold'"):
        job.parameter("threshold", 2)
    with pytest.raises(PlanError, match="parameter"):
        job.parameter("a b", 2)


def test_it_cannot_be_read_outside_a_worker() -> None:
    threshold = mp.Job("outside").parameter("threshold", 1)
    with pytest.raises(PlanError, match="parameter 'threshold' of job 'outside' was read outside a worker"):
        _ = threshold.value
    copy: Parameter[int] = pickle.loads(pickle.dumps(threshold))
    assert (copy.name, copy.default) == ("threshold", 1)


def test_each_job_has_its_own_values() -> None:
    one, other = mp.Job("one"), mp.Job("other")
    shared = [one.parameter("n", 1), other.parameter("n", 2)]
    mine = one.source("in", sources.Memory([0])).map("n", lambda _: shared[0].value)
    assert mp.collect(mine) == [1]
    theirs = other.source("in", sources.Memory([0])).map("n", lambda _: shared[0].value)
    with pytest.raises(OperatorError, match="was read on a worker of another job"):
        mp.collect(theirs)


def test_workers_do_not_share_a_list() -> None:
    job, out = mp.Job("lists"), sinks.Memory()
    names = job.parameter("names", list[str]())

    def grown(key: int, number: int, state: int | None) -> tuple[int, int]:
        names.value.append("x")
        return len(names.value), 0

    job.source("in", sources.Memory(range(20))).key_by("key", int).stateful_map("grown", grown).sink("out", out)
    mp.run(job, workers=2)
    assert max(out.items) < 20
    assert names.default == []


def test_a_function_that_reads_one_is_not_compiled() -> None:
    job = mp.Job("compiled")
    threshold = job.parameter("threshold", 10)
    numbers = job.source("in", sources.Memory([{"n": n} for n in range(20)]))
    numbers.filter("large", lambda row: row["n"] > threshold.value).sink("out", sinks.Memory())
    by_key = numbers.key_by("by-half", lambda row: row["n"] // threshold.value)
    by_key.fold("sum", lambda total, row: total + row["n"] * threshold.value, default=int).sink("sums", sinks.Memory())
    found = {step.name: compiled_of(step) for step in job.plan().steps}
    for name in ("large", "by-half", "sum"):
        compiled = found[name]
        assert compiled is None or compiled.why_not == "uses threshold.value", name


def test_a_manifest_has_the_values_that_were_set_and_is_else_as_before() -> None:
    plain = manifest(SnapshotId("20261122T042242123456Z-1a2b3c4d"), JobStart(1, 1), 2)
    assert "parameters" not in open_seal(manifest_bytes(plain))
    assert manifest_of(open_seal(manifest_bytes(plain))).parameters == {}
    for value in (12, 0.5, "a", b"\x00", [1, {"$": b"x"}]):
        stored = open_seal(manifest_bytes(replace(plain, parameters={"threshold": value})))
        assert manifest_of(stored).parameters == {"threshold": value}


class Listening(KeyedLogic[int, tuple[int, int], tuple[int, int], int]):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_data(self, message: Any, key_state: int | None, output: Any) -> int:
        output.send(message)
        self.seen.append(message.value)
        return 0

    def on_event(self, event: events.AnyEvent) -> None:
        if isinstance(event, events.ParameterChanged):
            self.seen.append(event)


def test_a_value_is_set_at_one_cut_and_logics_get_an_event_before_any_row(tmp_path: Path) -> None:
    job, logic = mp.Job("valued"), Listening()
    threshold = job.parameter("threshold", 10)
    pairs = job.source("in", sources.Generator(endless)).map("value", lambda n: (n, threshold.value))
    pairs.key_by("key", lambda pair: pair[0] % 3).stateful_op("seen", logic).sink("out", sinks.Memory())
    handle = mp.InProcess(snapshots=mp.Snapshots(tmp_path, interval_s=None)).start(job, control=False)
    snapshot = handle.set("threshold", 12)
    assert handle.set("threshold", 13) > snapshot
    handle.snapshot()
    handle.stop()
    changes = [events.ParameterChanged("threshold", value) for value in (12, 13)]
    assert [event for event in logic.seen if isinstance(event, events.ParameterChanged)] == changes
    for change in changes:
        at = logic.seen.index(change)
        assert all(value[1] < change.value for value in logic.seen[:at] if isinstance(value, tuple))
        assert all(value[1] >= change.value for value in logic.seen[at:] if isinstance(value, tuple))
    numbers = [value[0] for value in logic.seen if isinstance(value, tuple)]
    assert numbers == list(range(len(numbers)))
    seen = [event for event in handle.events() if isinstance(event, events.Stop)]
    assert [event.cause for event in seen] == [events.StopCause.PARAMETER] * 2 + [events.StopCause.MANUAL]


def test_a_job_that_resumes_has_the_value_set_last_and_one_that_starts_afresh_the_default(tmp_path: Path) -> None:
    snapshots = mp.Snapshots(tmp_path / "kept", interval_s=None)

    def values(default: int, *, resume: str = "latest") -> set[Any]:
        out = sinks.Memory()
        handle = mp.InProcess(snapshots=snapshots, resume=resume).start(valued(out, default), control=False)
        while not out.items:
            handle.snapshot()
        handle.stop()
        return {value for _, value in out.items}

    handle = mp.InProcess(snapshots=snapshots).start(valued(sinks.Memory()), control=False)
    handle.set("threshold", 12)
    handle.stop()
    assert values(10) == {12}
    assert values(99) == {12}, "a new default changes no value that was set"
    with pytest.raises(SnapshotError, match=r"parameter 'threshold' must be of the type of its default, str, got int"):
        mp.run(valued(sinks.Memory(), "text"), snapshots=snapshots)
    assert values(10, resume="none") == {10}


def test_what_cannot_be_set_changes_nothing(tmp_path: Path) -> None:
    handle = mp.InProcess(snapshots=mp.Snapshots(tmp_path, interval_s=None)).start(
        valued(sinks.Memory()), control=False
    )
    with pytest.raises(PlanError, match="has no parameter 'limit'; its parameters: 'threshold'"):
        handle.set("limit", 1)
    with pytest.raises(PlanError, match="must be of the type of its default, int, got str"):
        handle.set("threshold", "12")
    assert handle.status().state == "running"
    handle.stop()
    with pytest.raises(mp.JobEnded, match="cannot be given another value for parameter 'threshold'"):
        handle.set("threshold", 1)


def test_a_job_without_snapshots_has_no_cut(tmp_path: Path) -> None:
    handle = mp.InProcess().start(valued(sinks.Memory()), control=False)
    with pytest.raises(SnapshotError, match="runs without snapshots"):
        handle.set("threshold", 12)
    handle.stop()
