"""The entry points say what to pass instead of what they were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.clock import SystemClock

job: Any = mp.Job("arguments")
stream: Any = job.source("in", sources.Memory([1]))
stream.sink("out", sinks.Memory())
wrong: Any = 100


def as_any(thing: object) -> Any:
    return thing


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mp.run(stream), r"mp.run takes a job, got StreamBuilder: end the stream with .sink"),
        (lambda: mp.run(wrong), "mp.run takes a job, got int"),
        (lambda: mp.InProcess().run(stream), r"InProcess.run takes a job, got StreamBuilder"),
        (lambda: mp.run(job, batch=wrong), r"batch must be an mp.Batching\(rows_max=…\), got int"),
        (lambda: mp.collect(stream, batch=wrong), "got int"),
        (lambda: mp.InProcess(batch=wrong), "got int"),
        (lambda: mp.run(job, clock=wrong), "clock must have the methods now_s, monotonic_s, sleep_s, got int"),
        (lambda: mp.collect(stream, clock=wrong), "got int"),
        (lambda: mp.run(job, clock=as_any(SystemClock)), "pass an instance as clock, SystemClock"),
        (lambda: mp.collect(job), r"mp.collect takes a stream, .* and mp.run\(job\) a job; got Job"),
        (lambda: mp.collect(wrong), "mp.collect takes a stream, .*; got int"),
        (lambda: mp.collect(stream, timeout_s=as_any("5")), "timeout_s must be a number of seconds"),
        (lambda: mp.collect(stream, timeout_s=float("nan")), "timeout_s must be a number of seconds"),
        (lambda: job.dead_letters(["in"]), "the name of a step must be a str, got list"),
    ],
)
def test_a_wrong_argument_is_a_plan_error(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(mp.PlanError, match=message):
        call()
