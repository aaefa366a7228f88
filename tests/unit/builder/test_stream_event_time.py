"""Stream builders and event time: the arguments of `generate_epochs` and `assign_timestamps`, and their place."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import malstrom_py as mp
from malstrom_py import sinks, sources

BOUND = mp.limit_out_of_orderness(5)


def numbers() -> mp.StreamBuilder[None, int]:
    return mp.Job("a").source("numbers", sources.Memory([1, 2, 3]))


def timed() -> mp.StreamBuilder[None, int]:
    return numbers().assign_timestamps("at", lambda n: n)


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
