"""Waiting and closing of a DAG: calls of ``enrich``, resources per worker, operators with open resources."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from malstrom_py.dag import DagExecutor
from malstrom_py.data.batch import Batch
from malstrom_py.errors import DagError, OperatorError
from malstrom_py.operators.base import Operator, Outlet
from malstrom_py.operators.enrich.calls import Asking
from malstrom_py.operators.enrich.enrich import Enrich
from malstrom_py.worker_context import per_worker
from tests.unit.dag.graphs import at, line


async def name_of(carrier: Any) -> str:
    await asyncio.sleep(0)
    return {"UA": "United", "B6": "JetBlue"}[carrier]


def enriching(function: Any = name_of) -> DagExecutor:
    return line(partial(Enrich, asking=Asking(function)), None)


def test_a_call_waits_for_the_calls_that_enrich_makes() -> None:
    with enriching() as executor:
        executor.process_events("in", [at(1, 5, "UA"), at(2, 6, "B6"), at(3, 7, "UA")])
        executor.process_watermark("in", 9)
        assert executor.watermark("out") == 9
        assert executor.take_sink_outputs("out") == [(1, "United"), (2, "JetBlue"), (3, "United")]


def test_a_call_that_fails_is_told_and_what_waits_behind_it_stays() -> None:
    with enriching() as executor:
        with pytest.raises(OperatorError, match="step 'a' failed for key 'XX': KeyError"):
            executor.process_events("in", [at(1, 5, "XX"), at(2, 6, "UA"), at(3, 7, "B6")])
        executor.run()
        assert executor.take_sink_outputs("out") == [(2, "United"), (3, "JetBlue")]


def test_what_enrich_holds_is_in_a_checkpoint() -> None:
    async def never(carrier: Any) -> str:
        raise RuntimeError

    with enriching(never) as executor:
        with pytest.raises(OperatorError):
            executor.process_events("in", [at(1, 5, "UA"), at(2, 6, "B6")])
        snapshot = executor.checkpoint()
    with enriching() as fresh:
        fresh.restore(snapshot)
        fresh.run()
        assert fresh.take_sink_outputs("out", messages=True) == [at((2, "JetBlue"), 6, "B6")]


def test_things_made_per_worker_are_made_once_kept_by_a_restore_and_closed_at_the_end() -> None:
    done: list[str] = []

    class Rates:
        def __init__(self) -> None:
            done.append("made")

        def close(self) -> None:
            done.append("closed")

    rates = per_worker(Rates)
    with line(lambda n: (rates(), n)[1]) as executor:
        executor.process_event("in", 1)
        executor.restore(executor.checkpoint())
        executor.process_event("in", 2)
        assert executor.take_sink_outputs("out") == [1, 2]
        assert done == ["made"]
    assert done == ["made", "closed"]


class Open(Operator):
    """An operator with an open resource."""

    closed: list[str] = []  # noqa: RUF012  one list in one test

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        out.send(batch)

    def close(self) -> None:
        self.closed.append(self.context.step)
        if self.context.step == "a":
            raise ValueError("first")


def test_operators_are_closed_at_the_end_and_by_a_restore_also_when_one_raises() -> None:
    executor = line(Open, Open)
    executor.process_event("in", 1)
    with pytest.raises(ValueError, match="first"):
        executor.restore(executor.checkpoint())
    assert Open.closed == ["a", "b"]
    with pytest.raises(ValueError, match="first"):
        executor.close()
    assert Open.closed == ["a", "b"] * 2
    executor.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.process_event("in", 1),
        lambda e: e.process_watermark("in", 1),
        lambda e: e.inject_events("a", [1]),
        lambda e: e.take_all_sink_outputs(),
        lambda e: e.metrics(),
        lambda e: e.checkpoint(),
        lambda e: e.restore(b""),
    ],
)
def test_an_executor_that_was_closed_does_nothing_more(call: Callable[[DagExecutor], Any]) -> None:
    executor = line(None)
    executor.close()
    with pytest.raises(DagError, match="the executor has been closed"):
        call(executor)


def test_an_executor_cannot_be_closed_by_its_operators() -> None:
    executor: DagExecutor = line(lambda n: executor.close())
    with pytest.raises(OperatorError) as caught:
        executor.process_event("in", 1)
    assert isinstance(caught.value.__cause__, DagError)
    executor.close()
