"""`enrich`: calls that fail, retries and timeouts, and arguments that make no sense."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.errors import DeadlineError, OperatorError, PlanError
from malstrom_py.operators.enrich import calls
from malstrom_py.testing import OperatorTester
from tests.ids import shown
from tests.unit.operators.desk import barrier, enriching


def keyed(*keys: Any, timed: bool = False) -> Batch:
    """A record per key, whose value is its number."""
    numbers = list(range(len(keys)))
    return Batch(list(numbers), keys=list(keys), timestamps=[10 * n for n in numbers] if timed else None)


# Failures.


def flaky(failures: int, error: type[BaseException] = ConnectionError) -> tuple[Any, list[str]]:
    """A coroutine function that raises so many times for each thing, and what it was asked."""
    asked: list[str] = []

    async def look(key: str) -> str:
        asked.append(key)
        await asyncio.sleep(0)
        if asked.count(key) <= failures:
            raise error("secret")
        return key.upper()

    return look, asked


def test_a_call_that_fails_is_made_again_so_many_times() -> None:
    look, asked = flaky(2)
    with OperatorTester(lambda s: s.enrich("e", look, retries=2, retry_backoff_s=0), keyed=True) as tester:
        got = tester.send_local([("a", 1), ("b", 2)]).step().receive_local()
    assert [m.value for m in got] == [(1, "A"), (2, "B")]  # type: ignore[union-attr]
    assert (asked.count("a"), asked.count("b")) == (3, 3)


def test_a_call_that_fails_after_all_names_key_function_and_text() -> None:
    look, asked = flaky(9)
    tester = OperatorTester(lambda s: s.enrich("e", look, retries=1, retry_backoff_s=0), keyed=True)
    with pytest.raises(OperatorError, match=r"step 'e' failed for key 'a': ConnectionError in .*look at ") as caught:
        tester.send_local([("a", "secret value")]).step()
    assert "secret" in str(caught.value)
    assert (caught.value.step, caught.value.key) == ("e", "a")
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert asked == ["a", "a"]


@pytest.mark.parametrize("stop", [ValueError, SystemExit])
def test_what_was_done_before_a_failure_leaves_in_order(stop: type[BaseException]) -> None:
    with enriching({"timed": True}) as step:
        step.push(keyed("a", "b", "c", "d", timed=True))
        step.desk.wait(4)
        step.desk.answer("d", "b", "a")
        step.desk.answer("c", error=stop())
        with pytest.raises(OperatorError if issubclass(stop, Exception) else stop):
            step.settle()
        assert step.values() == [(0, "A"), (1, "B")]


def test_a_combine_that_raises_holds_back_nothing_before_it() -> None:
    with enriching(combine=lambda number, info: (info, 1 // (1 - number))) as step:
        step.push(keyed("a", "b", "c"))
        step.desk.wait(3)
        step.desk.answer("c", "b", "a")
        with pytest.raises(OperatorError, match="for key 'b': ZeroDivisionError"):
            step.settle()
        assert step.values() == [("A", 1)]


def test_a_by_that_raises_on_a_restored_record_is_blamed_itself() -> None:
    def halves(value: int) -> int:
        raise LookupError("secret")

    with enriching(by=str) as step:
        step.push(keyed("a"))
        state = barrier(step)
    with enriching(by=halves) as step:
        step.step.restore(state)
        with pytest.raises(OperatorError, match=r"for key 'a': LookupError in .*halves at "):
            step.settle()


def test_dead_letters_hold_the_record_and_what_was_said() -> None:
    with enriching({"on_error": "dead-letter", "timed": True}) as step:
        step.desk.answer("b", error=ValueError("no such city"))
        step.desk.answer("a")
        step.push(keyed("a", "b", timed=True))
        step.settle()
        assert step.values() == [(0, "A")]
        assert step.dead_letters == [mp.DeadLetter("under-test", "b", 1, 10, "ValueError: no such city")]


def test_a_by_that_raises_is_a_failure_of_its_record() -> None:
    with enriching({"on_error": "dead-letter"}, by=lambda value: 1 // value) as step:
        step.desk.answer(1)
        step.push(keyed("a", "b"))
        step.settle()
        assert (step.values(), [letter.value for letter in step.dead_letters]) == ([(1, "1")], [0])


def test_a_combine_that_raises_is_a_failure_of_its_record() -> None:
    def divide(value: int, info: str) -> float:
        return 1 / value

    with enriching({"on_error": "skip"}, combine=divide) as step:
        step.desk.answer("a", "b")
        step.push(keyed("a", "b"))
        step.settle()
        assert (step.values(), step.counters.skipped) == ([1.0], 1)
    with enriching(combine=divide) as step:
        step.push(keyed("a"))
        step.desk.answer("a")
        with pytest.raises(OperatorError, match=r"ZeroDivisionError in .*divide at "):
            step.settle()


def test_each_attempt_ends_after_its_time() -> None:
    asked: list[str] = []

    async def hang(key: str) -> str:
        asked.append(key)
        if len(asked) < 3:
            await asyncio.Event().wait()
        return "at last"

    options: dict[str, Any] = {"timeout_s": 0.01, "retry_backoff_s": 0}
    with OperatorTester(lambda s: s.enrich("e", hang, retries=2, **options), keyed=True) as tester:
        assert [m.value for m in tester.send_local([("a", 1)]).step().receive_local()] == [(1, "at last")]  # type: ignore[union-attr]
    asked.clear()
    tester = OperatorTester(lambda s: s.enrich("e", hang, retries=1, on_error="dead-letter", **options), keyed=True)
    letters: list[Any] = tester.send_local([("a", 1)]).step().receive_dead_letters()
    assert [letter.value.error for letter in letters] == ["TimeoutError: no answer within 0.01 s"]


def test_an_answer_behind_a_swallowed_cancellation_comes_too_late() -> None:
    asked: list[str] = []

    async def swallow(key: str) -> str:
        asked.append(key)
        if len(asked) == 3:
            return "in time"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "too late"
        return "never"

    options: dict[str, Any] = {"timeout_s": 0.01, "retry_backoff_s": 0}
    tester = OperatorTester(lambda s: s.enrich("e", swallow, retries=1, on_error="dead-letter", **options), keyed=True)
    letters: list[Any] = tester.send_local([("a", 1)]).step().receive_dead_letters()
    assert [letter.value.error for letter in letters] == ["TimeoutError: no answer within 0.01 s"]
    with OperatorTester(lambda s: s.enrich("e", swallow, **{**options, "timeout_s": 30.0}), keyed=True) as tester:
        assert [m.value for m in tester.send_local([("a", 1)]).step().receive_local()] == [(1, "in time")]  # type: ignore[union-attr]


def test_a_timeout_of_the_function_itself_is_told_as_it_is() -> None:
    look, _ = flaky(9, TimeoutError)
    tester = OperatorTester(lambda s: s.enrich("e", look, on_error="dead-letter"), keyed=True)
    letters: list[Any] = tester.send_local([("a", 1)]).step().receive_dead_letters()
    assert [letter.value.error for letter in letters] == ["TimeoutError: secret"]


def test_a_call_that_is_cancelled_from_within_has_failed() -> None:
    look, asked = flaky(1, asyncio.CancelledError)
    with OperatorTester(lambda s: s.enrich("e", look, retries=1, retry_backoff_s=0), keyed=True) as tester:
        assert [m.value for m in tester.send_local([("a", 1)]).step().receive_local()] == [(1, "A")]  # type: ignore[union-attr]

    async def cancel_itself(key: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    tester = OperatorTester(lambda s: s.enrich("e", cancel_itself, retries=3), keyed=True)
    with pytest.raises(OperatorError, match="RuntimeError in"):
        tester.send_local([("a", 1)]).step()
    assert asked == ["a", "a"]


@pytest.mark.parametrize("stop", [SystemExit, KeyboardInterrupt])
def test_what_is_no_error_of_a_record_ends_the_job_as_itself(stop: type[BaseException]) -> None:
    look, _ = flaky(9, stop)
    with (
        OperatorTester(lambda s: s.enrich("e", look, retries=3, on_error="skip"), keyed=True) as tester,
        pytest.raises(stop),
    ):
        tester.send_local([("a", 1)]).step()


def test_calls_that_never_come_back_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if each attempt ended immediately, and yet the desk never answers.
    monkeypatch.setattr(calls, "_GRACE_S", 0.01 - 30.0)
    with enriching() as step:
        step.push(keyed("a"))
        with pytest.raises(DeadlineError, match=r"'under-test': no call of Desk\.ask at .* has returned for 0\.01 s"):
            step.settle()


# Keys and batches.


def test_a_key_that_cannot_be_hashed_is_told() -> None:
    with enriching() as step, pytest.raises(OperatorError, match="list cannot be hashed"):
        step.push(keyed([1]))


def test_nothing_comes_of_nothing() -> None:
    with enriching() as step:
        step.push(Epoch(3), Epoch(MAX_EPOCH))
        assert step.call(step.step.resume) == 0
        assert step.messages() == [Epoch(3), Epoch(MAX_EPOCH)]


# Arguments.


async def known(key: str) -> str:
    return key


class Known:
    async def __call__(self, key: str) -> str:
        return key

    async def method(self, key: str) -> str:
        return key


def stream() -> Any:
    return mp.Job("j").source("in", sources.Memory(["a"])).key_by("key", str)


@pytest.mark.parametrize("function", [known, Known(), Known().method, partial(known)], ids=shown)
def test_any_coroutine_function_will_do(function: Any) -> None:
    assert mp.collect(stream().enrich("e", function)) == [("a", "a")]


def returns_a_coroutine(key: str) -> Any:
    return known(key)


@pytest.mark.parametrize("function", [str, returns_a_coroutine, len, Known], ids=shown)
def test_a_function_that_is_no_coroutine_function_is_refused(function: Any) -> None:
    with pytest.raises(PlanError, match=r"step 'e': enrich takes a coroutine function, async def"):
        stream().enrich("e", function)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"concurrency": 0}, "whole number of at least 1"),
        ({"concurrency": 1.5}, "whole number of at least 1"),
        ({"retries": -1}, "whole number of at least 0"),
        ({"retry_backoff_s": -0.1}, "retry_backoff_s must be a number of seconds of at least 0"),
        ({"timeout_s": 0}, "timeout_s must be a number of seconds above 0"),
        ({"timeout_s": float("inf")}, "timeout_s must be a number of seconds above 0"),
        ({"timeout_s": None}, "timeout_s must be a number of seconds above 0"),
        ({"timeout_s": True}, "timeout_s must be a number of seconds above 0"),
        ({"cache": 100}, r"cache must be an mp\.Cache"),
        ({"cache": timedelta(0)}, "ttl must be a timedelta above 0"),
        ({"combine": known}, "combine must be an ordinary function"),
        ({"combine": 3}, "expected a function"),
        ({"by": 3}, "expected a function"),
        ({"on_error": "retry"}, "on_error must be"),
    ],
    ids=shown,
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], reported: str) -> None:
    with pytest.raises(PlanError, match=reported):
        stream().enrich("e", known, **options)


def test_only_keyed_streams_have_it() -> None:
    plain: Any = mp.Job("j").source("in", sources.Memory(["a"]))
    with pytest.raises(PlanError, match="has no keys"):
        plain.enrich("e", known)
    with pytest.raises(PlanError, match="key_local does not bring all records"):
        plain.key_local("key", str).enrich("e", known)
