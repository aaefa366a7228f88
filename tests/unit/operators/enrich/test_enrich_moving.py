"""`enrich` where state moves: what is in flight comes back first, and none moves while in flight."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from malstrom_py.data.messages import (
    AbsBarrier,
    Acquire,
    Collect,
    DataMessage,
    Epoch,
    Interrogate,
    Rescale,
    SuspendMarker,
)
from malstrom_py.errors import DeadlineError
from malstrom_py.operators.enrich import calls
from malstrom_py.testing import CapturingPersistenceBackend, OperatorTester, Persisted
from tests.unit.operators.desk import TIMED, Enriching, enriching, row, told

# Moving state.


@contextmanager
def answered_later(step: Enriching, *things: str) -> Iterator[None]:
    """The desk answers while the step waits."""
    later = threading.Timer(0.01, step.desk.answer, things)
    later.start()
    yield
    later.join()


def test_interrogate_tells_the_keys_in_flight_that_pass() -> None:
    with enriching() as step:
        step.push(row("a", 1, 1), row("b", 2, 2), row("a", 3, 3))
        step.desk.answer("a")
        step.settle(held=2)
        assert step.send(Interrogate(lambda key: True)).keys == {"a", "b"}
        assert step.send(Interrogate(lambda key: key == "a")).keys == {"a"}
        step.desk.answer("b")
        step.settle()
        assert step.send(Interrogate(lambda key: True)).keys == set()


def test_r4_collect_waits_for_the_calls_of_its_keys_and_lets_what_stands_before_them_leave() -> None:
    with enriching() as step:
        step.push(row("a", 1, 1), row("b", 2, 2), row("c", 3, 3))
        with answered_later(step, "b", "a"):
            message = step.send(Collect({"b"}))
        assert message.states == {}
        assert (step.values(), step.held) == ([(1, "A"), (2, "B")], 1)
        assert step.send(Interrogate(lambda key: True)).keys == {"c"}
        step.desk.answer("c")


def test_r4_collect_lets_every_epoch_leave_first_also_for_keys_that_are_not_here() -> None:
    with enriching(TIMED) as step:
        step.push(row("a", 1, 1), Epoch(5), row("b", 2, 6))
        with answered_later(step, "a"):
            step.send(Collect({"elsewhere"}))
        assert told(step) == [(1, "A"), Epoch(5)]
        step.desk.answer("b")


def test_r4_collect_of_nothing_that_is_here_waits_for_nothing() -> None:
    with enriching() as step:
        step.push(row("a", 1, 1))
        step.send(Collect({"elsewhere"}))
        assert step.held == 1
        step.desk.answer("a")


def test_r5_acquire_lets_every_epoch_leave_first_and_brings_nothing() -> None:
    with enriching(TIMED) as step:
        step.push(row("a", 1, 1), Epoch(5), row("b", 2, 6))
        with answered_later(step, "a"):
            step.send(Acquire({"other": b""}))
        assert told(step) == [(1, "A"), Epoch(5)]
        step.desk.answer("b")


def test_what_leaves_for_a_collect_comes_out_before_it() -> None:
    """So that later steps get the rows and epochs before they give up state."""

    async def look(key: str) -> str:
        await asyncio.sleep(0)
        return key

    def total(key: str, value: Any, state: int) -> tuple[int, int]:
        return state + 1, state + 1

    def both(stream: Any) -> Any:
        return stream.enrich("e", look).stateful_map("n", total, default=int)

    with OperatorTester(both, keyed=True, timed=True) as tester, OperatorTester(both, keyed=True, timed=True) as other:
        message = Collect({"a"})
        tester.send_local([("a", 1, 1), ("a", 2, 2), ("b", 3, 3)], Epoch(3), message).step()
        other.acquire(message.states)
        got = tester.receive_local()
        assert got.index(Epoch(3)) < got.index(message)
        assert set(message.states) == {"n"}
        assert [
            m.value for m in other.send_local([("a", 4, 4)]).step().receive_local() if isinstance(m, DataMessage)
        ] == [3]


def test_a_collect_that_waits_in_vain_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_GRACE_S", 0.01 - 30.0)
    with enriching() as step:
        step.push(row("a", 1, 1))
        with pytest.raises(DeadlineError, match="'under-test'"):
            step.send(Collect({"a"}))


def test_rescale_changes_nothing_here() -> None:
    with enriching() as step:
        step.push(row("a", 1, 1))
        step.send(Rescale(2, (0,)))
        assert (step.held, step.values()) == (1, [])
        step.desk.answer("a")


def test_behind_a_suspension_nothing_comes() -> None:
    with enriching() as step:
        step.push(row("a", 1, 1))
        step.desk.wait(1)
        step.send(SuspendMarker())
        step.desk.answer("a")
        assert (step.step.awaiting, step.call(step.step.resume), step.values()) == (False, 0, [])


# The test kit.


class Opening(CapturingPersistenceBackend):
    """Lets calls come back once everything has been persisted."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: Future[None] = Future()

    def persist(self, operator: str, state: bytes) -> None:
        super().persist(operator, state)
        self.opened.set_result(None)


def test_a_tester_persists_what_is_in_flight_and_restores_it() -> None:
    backend, asked = Opening(), list[str]()

    async def look(key: str) -> str:
        asked.append(key)
        await asyncio.shield(asyncio.wrap_future(backend.opened))
        return key.upper()

    def step(stream: Any) -> Any:
        return stream.enrich("e", look).map("same", lambda pair: pair)

    with OperatorTester(step, keyed=True, timed=True) as tester, OperatorTester(step, keyed=True, timed=True) as fresh:
        tester.send_local(Epoch(3), [("a", 1, 4), ("b", 2, 4)], AbsBarrier("s", backend)).step()
        assert sorted(asked) == ["a", "b"]
        fresh.restore(Persisted(backend.states, epoch=3), lambda key: key == "b")
        got = fresh.send_local([("b", 3, 5)]).step().receive_local()
        assert sorted(asked) == ["a", "b", "b", "b"]
        assert [m.value for m in got if not isinstance(m, Epoch)] == [(2, "B"), (3, "B")]  # type: ignore[union-attr]


def test_a_tester_behind_an_exchange_takes_all_that_is_held_back() -> None:
    async def look(key: str) -> int:
        await asyncio.sleep(0)
        return 1

    def step(stream: Any) -> Any:
        first = stream.key_by("one", lambda n: n % 7).enrich("e", look, concurrency=1, combine=lambda v, _: v)
        return first.key_by("two", lambda n: n % 3).enrich("f", look, concurrency=1, combine=lambda v, _: v)

    with OperatorTester(step) as tester:
        got: list[Any] = tester.send_local(list(range(200))).step().receive_local()
        assert sorted(m.value for m in got) == list(range(200))
