"""`inspect_frontier`: calls a function at every move of the frontier, and only then."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH, Epoch
from malstrom_py.errors import OperatorError, PlanError
from malstrom_py.operators.stateless import InspectFrontier
from malstrom_py.testing import OperatorTester
from tests.unit.operators.stepping import Stepped


def stepped(seen: list[int]) -> Stepped:
    return Stepped(partial(InspectFrontier, fn=seen.append))


@given(times=st.lists(st.integers(-20, 20), max_size=20))
def test_it_is_called_once_per_move_in_order(times: list[int]) -> None:
    seen: list[int] = []
    step = stepped(seen).push(*(Epoch(time) for time in times), Epoch(MAX_EPOCH))
    assert seen == step.epochs()
    assert seen == sorted(set(seen))
    assert seen[-1] == MAX_EPOCH


def test_t2_it_is_not_called_when_a_part_becomes_idle_or_wakes() -> None:
    seen: list[int] = []
    step = stepped(seen)
    messages = [Epoch(MIN_EPOCH, idle=True), Epoch(5), Epoch(5, idle=True), Epoch(5), Epoch(6, idle=True)]
    for epoch in messages:
        step.call(partial(step.operator.on_epoch, epoch))
    assert seen == [5, 6]
    assert step.messages() == messages  # which are passed on all the same


def test_on_an_untimed_stream_only_the_end_is_told() -> None:
    seen: list[int] = []
    stream = mp.Job("a").source("in", sources.Memory([1, 2])).inspect_frontier("frontier", seen.append)
    assert mp.collect(stream) == [1, 2]
    assert seen == [mp.MAX_EPOCH]


def test_a_keyed_stream_stays_keyed_and_tells_its_own_frontier_on_each_worker() -> None:
    seen: list[int] = []
    timed = mp.Job("a").source("in", sources.Memory([1, 2, 3, 4])).assign_timestamps("at", int)
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(0))
    counts = on_time.key_by("key", lambda n: n % 2).inspect_frontier("frontier", seen.append).count("count")
    job = counts.job
    counts.sink("out", mp.sinks.Memory())
    mp.run(job, 2, batch=mp.Batching(rows_max=1))
    assert seen.count(mp.MAX_EPOCH) == 2
    assert set(seen) - {mp.MAX_EPOCH} <= {0, 1, 2, 3}


def test_what_the_function_raises_names_the_step_and_the_function() -> None:
    def alarm(frontier: int) -> None:
        raise ValueError("secret")

    tester = OperatorTester(lambda stream: stream.inspect_frontier("watch", alarm), timed=True)
    with pytest.raises(OperatorError, match=r"step 'watch' failed: ValueError in .*alarm at .*\.py") as caught:
        tester.send_local(Epoch(3)).step()
    assert "secret" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


def test_what_is_no_function_is_refused_at_the_call() -> None:
    with pytest.raises(PlanError, match="step 'watch': expected a function, got str"):
        mp.Job("a").source("in", sources.Memory([1])).inspect_frontier("watch", "print")  # type: ignore[arg-type]
