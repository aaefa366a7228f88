"""Stream builders and event time: the arguments of `generate_epochs` and `assign_timestamps`, and their place."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError
from tests.ids import shown

BOUND = mp.limit_out_of_orderness(5)


def numbers() -> mp.StreamBuilder[None, int]:
    return mp.Job("a").source("numbers", sources.Memory([1, 2, 3]))


def timed() -> mp.StreamBuilder[None, int]:
    return numbers().assign_timestamps("at", lambda n: n)


def test_timestamps_cannot_change_behind_generate_epochs() -> None:
    on_time, late = timed().generate_epochs("epochs", BOUND)
    with pytest.raises(PlanError, match=r"step 'again': timestamps cannot change after generate_epochs.*before it"):
        on_time.assign_timestamps("again", lambda n: n)
    assert late.assign_timestamps("again", lambda n: n).traits.unit == "ms"


def test_t1_generate_epochs_behind_key_by_is_refused_with_the_remedy() -> None:
    keyed = timed().key_by("parity", lambda n: n % 2).map("same", lambda n: n)
    with pytest.raises(
        PlanError, match=r"step 'epochs': generate_epochs is after key_by 'parity'.*between the source and the"
    ):
        keyed.generate_epochs("epochs", BOUND)


def test_t1_generate_epochs_without_timestamps_is_refused_with_the_remedy() -> None:
    with pytest.raises(PlanError, match="step 'epochs': the stream has no timestamps: put assign_timestamps before it"):
        numbers().generate_epochs("epochs", BOUND)


def test_t1_lateness_is_decided_once() -> None:
    for stream in timed().generate_epochs("epochs", BOUND):
        with pytest.raises(PlanError, match="step 'epochs-2': generate_epochs is upstream already"):
            stream.map(f"m{stream.ref.port}", lambda n: n).generate_epochs("epochs-2", BOUND)


@pytest.mark.parametrize("generator", [None, 5, mp.limit_out_of_orderness], ids=shown)
def test_what_generates_no_epochs_is_refused(generator: Any) -> None:
    with pytest.raises(PlanError, match=r"step 'epochs': pass a generator, for instance mp\.limit_out_of_orderness"):
        timed().generate_epochs("epochs", generator)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"idle_after": 5}, "idle_after must be a timedelta above 0, got 5"),
        ({"idle_after": timedelta(0)}, r"idle_after must be a timedelta above 0, got datetime\.timedelta\(0\)"),
        ({"max_ahead": 1.5}, r"max_ahead must be a timedelta, or an int in the stream's unit, got 1\.5"),
        ({"max_ahead": -1}, "max_ahead cannot be negative, got -1"),
    ],
)
def test_t2_t4_wrong_limits_of_epochs_are_refused_at_the_call(limits: Any, message: str) -> None:
    with pytest.raises(PlanError, match=f"step 'epochs': {message}"):
        timed().generate_epochs("epochs", BOUND, **limits)


def test_a_plan_tells_the_limits_of_epochs() -> None:
    on_time, _ = timed().generate_epochs("epochs", BOUND, idle_after=timedelta(seconds=90), max_ahead=7)
    on_time.sink("out", sinks.Memory())
    assert "limit_out_of_orderness(5), idle_after=0:01:30, max_ahead=7" in on_time.job.explain()


def test_aware_datetimes_flow_through_a_whole_job() -> None:
    job = mp.Job("a")
    moments = [datetime(2013, 1, day, tzinfo=UTC) for day in (3, 1, 2)]
    stream = job.source("moments", sources.Memory(moments)).assign_timestamps("at", lambda moment: moment)
    on_time, late = stream.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    assert [moment.day for moment in mp.collect(on_time)] == [3]
    assert [moment.day for moment in mp.collect(late)] == [1, 2]
