"""Calls in the worker's event loop: pauses, patience, contexts, the end of it; and the cache of their answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

from malstrom_py.errors import DeadlineError, PlanError
from malstrom_py.operators.enrich import calls
from malstrom_py.operators.enrich.calls import ABSENT, Answers, Asking, Cache, Call, Calls
from malstrom_py.worker_context import Resources


async def upper(thing: str) -> str:
    return thing.upper()


@pytest.fixture
def resources() -> Iterator[Resources]:
    with Resources() as resources:
        yield resources
        resources.close()


def finish(made: Calls, count: int) -> list[Call]:
    taken: list[Call] = []
    while len(taken) < count:
        taken += made.wait()
    return taken


def test_pauses_double_up_to_half_a_minute() -> None:
    asking = Asking(upper, retries=2000, retry_backoff_s=0.1)
    assert [asking.pause_s(attempt) for attempt in (1, 2, 3, 4, 9, 10, 1999)] == [0.1, 0.2, 0.4, 0.8, 25.6, 30.0, 30.0]
    assert Asking(upper, retry_backoff_s=0).pause_s(5) == 0.0


def test_patience_is_what_all_attempts_and_pauses_take_at_most() -> None:
    asking = Asking(upper, retries=3, retry_backoff_s=1.0, timeout_s=10.0)
    assert asking.patience_s == 4 * 10.0 + (1 + 2 + 4) + calls._GRACE_S
    pauses_s = sum(Asking(upper, retries=500, retry_backoff_s=1.0).pause_s(attempt) for attempt in range(1, 501))
    assert Asking(upper, retries=500, retry_backoff_s=1.0).patience_s == pytest.approx(
        501 * 30.0 + pauses_s + calls._GRACE_S
    )


def test_a_call_sees_the_context_in_which_it_was_asked_and_changes_its_own(resources: Resources) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="none")

    async def look(thing: str) -> tuple[str, Resources]:
        seen = variable.get()
        variable.set(f"changed by {thing}")
        await asyncio.sleep(0)
        return seen, Resources.current("step")

    made = Calls(Asking(look, concurrency=1), "step")
    for value in ("first", "second"):
        variable.set(value)
        made.ask(value)
        made.start()
    assert [call.answer for call in finish(made, 2)] == [("first", resources), ("second", resources)]
    assert variable.get() == "second"
    made.close()


def test_without_a_worker_there_is_no_loop_to_ask_in() -> None:
    made = Calls(Asking(upper), "step")
    made.ask("a")
    with pytest.raises(PlanError, match="step 'step' needs a worker"):
        made.start()


def test_closing_gives_up_what_is_under_way_and_what_has_not_begun(resources: Resources) -> None:
    begun: list[int] = []
    came, cancelled = threading.Event(), list[int]()

    async def hang(thing: int) -> None:
        begun.append(thing)
        came.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(thing)

    made = Calls(Asking(hang, concurrency=1, retries=5), "step")
    for thing in range(3):
        made.ask(thing)
    made.start()
    assert came.wait(20)
    made.close()
    made.close()
    assert (begun, cancelled) == ([0], [0])


def test_a_call_that_does_not_let_itself_be_cancelled_is_told(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_CANCEL_S", 0.01)
    came = threading.Event()
    gates: list[Any] = []

    async def stubborn(thing: int) -> None:
        gate = asyncio.Event()
        gates.append((asyncio.get_running_loop(), gate))
        came.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    made = Calls(Asking(stubborn), "step")
    made.ask(1)
    made.start()
    assert came.wait(20)
    with pytest.raises(DeadlineError, match="cancelling the calls of step 'step' took longer"):
        made.close()
    loop, gate = gates[0]
    loop.call_soon_threadsafe(gate.set)


# Caches


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), 5, "5s"])
def test_a_lifetime_is_a_timedelta_above_zero(ttl: Any) -> None:
    with pytest.raises(PlanError, match=r"mp\.Cache: ttl"):
        Cache(ttl=ttl)


@pytest.mark.parametrize("size", [0, -1, 1.0, True, None])
def test_a_size_is_a_whole_number_of_at_least_one(size: Any) -> None:
    with pytest.raises(PlanError, match=r"mp\.Cache: size"):
        Cache(size=size)


def test_looking_an_answer_up_does_not_prolong_its_life_but_a_new_one_does() -> None:
    answers = Answers(Cache(ttl=timedelta(seconds=5)))
    answers.put("a", 1, now_s=0)
    assert answers.get("a", now_s=4) == 1
    assert answers.get("a", now_s=6) is ABSENT
    answers.put("a", 2, now_s=6)
    assert answers.get("a", now_s=10) == 2
