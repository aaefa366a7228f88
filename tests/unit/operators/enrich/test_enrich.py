"""`enrich`: calls beside the stream, whose results keep the order of the records; failures, retries, arguments."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Epoch
from malstrom_py.errors import DeadlineError, OperatorError, PlanError
from malstrom_py.operators.base import OnError
from malstrom_py.operators.enrich import calls
from malstrom_py.operators.enrich.calls import Cache
from malstrom_py.testing import OperatorTester, VirtualClock
from malstrom_py.validation import field_getter
from tests.ids import shown
from tests.unit.operators.desk import enriching


def keyed(*keys: Any, timed: bool = False) -> Batch:
    """A record per key, whose value is its number."""
    numbers = list(range(len(keys)))
    return Batch(list(numbers), keys=list(keys), timestamps=[10 * n for n in numbers] if timed else None)


# Order.


@settings(max_examples=60)
@given(
    delays=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    sizes=st.lists(st.integers(1, 6), max_size=8),
    concurrency=st.integers(1, 8),
    epochs=st.sets(st.integers(0, 30)),
    cached=st.booleans(),
)
def test_any_delays_give_the_order_of_the_input(
    delays: list[int], sizes: list[int], concurrency: int, epochs: set[int], cached: bool
) -> None:
    async def look(thing: tuple[int, int]) -> int:
        for _ in range(thing[1]):
            await asyncio.sleep(0)
        return thing[0]

    options = {"concurrency": concurrency, "cache": Cache(size=3) if cached else None}
    with OperatorTester(lambda s: s.enrich("e", look, by=lambda v: v, **options), keyed=True, timed=True) as tester:
        sent: list[Any] = []
        for number, delay in enumerate(delays):
            record = (number % 3, (number % 7, delay), 2 * number)
            tester.send_local([record], *([Epoch(2 * number)] if number in epochs else []))
            sent += [(2 * number, (number % 7, delay)), *([Epoch(2 * number)] if number in epochs else [])]
        got = tester.step().receive_local()
    assert [m if isinstance(m, Epoch) else (m.timestamp, m.value[0]) for m in got] == sent  # type: ignore[union-attr]
    assert all(m.value[1] == m.value[0][0] for m in got if isinstance(m, mp.DataMessage))


# What is asked, and what comes of it.


def test_the_thing_is_what_by_takes_of_the_value_a_column_or_a_function() -> None:
    for by in (field_getter("city", "e"), lambda row: row["city"]):
        with enriching(by=by) as step:
            step.desk.answer("rome")
            step.push(Batch([{"city": "rome"}], keys=["k"]))
            step.settle()
            assert (step.values(), step.desk.asked) == ([({"city": "rome"}, "ROME")], ["rome"])


def test_nothing_is_an_answer() -> None:
    async def nothing(key: str) -> None:
        return None

    with OperatorTester(lambda s: s.enrich("e", nothing, cache=Cache()), keyed=True) as tester:
        assert [m.value for m in tester.send_local([("a", 1)]).step().receive_local()] == [(1, None)]  # type: ignore[union-attr]


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_so_many_calls_are_under_way_at_once_and_no_more(concurrency: int) -> None:
    with enriching(concurrency=concurrency) as step:
        keys = [f"key-{number}" for number in range(12)]
        step.push(keyed(*keys))
        for done in range(len(keys) - concurrency + 1):
            step.desk.wait(done + concurrency)
            assert step.desk.asked == keys[: done + concurrency]  # in order, one more for each that has ended
            step.desk.answer(keys[done])
            step.settle(held=len(keys) - done - 1)
        step.desk.answer(*keys[len(keys) - concurrency + 1 :])
        step.settle()
        assert step.desk.most == concurrency
        assert step.values() == [(number, key.upper()) for number, key in enumerate(keys)]


# Caches.


def test_those_that_ask_the_same_at_the_same_time_share_a_call() -> None:
    with enriching(cache=Cache()) as step:
        step.push(keyed("a", "b", "a"), keyed("a"))
        step.desk.wait(2)
        step.desk.answer("a", "b")
        step.settle()
        assert step.values() == [(0, "A"), (1, "B"), (2, "A"), (0, "A")]
        assert sorted(step.desk.asked) == ["a", "b"]


def test_an_answer_grows_old_on_the_runtimes_clock() -> None:
    clock = VirtualClock()
    asked: list[str] = []

    async def look(key: str) -> int:
        asked.append(key)
        return len(asked)

    tester = OperatorTester(lambda s: s.enrich("e", look, cache=timedelta(minutes=10)), keyed=True, clock=clock)
    infos: list[Any] = []
    for minutes in (0, 9, 1, 9, 100):
        clock.advance(60 * minutes)
        infos += [m.value[1] for m in tester.send_local([("a", 0)]).step().receive_local()]  # type: ignore[union-attr]
    assert infos == [1, 1, 2, 2, 3]


def test_failures_are_not_kept() -> None:
    with enriching({"on_error": "skip"}, cache=Cache()) as step:
        step.desk.answer("a", error=ValueError())
        step.push(keyed("a", "a"))
        step.settle()
        step.desk.forget("a")
        step.desk.answer("a")
        step.push(keyed("a"))
        step.settle()
        assert (step.values(), step.counters.skipped, step.desk.asked) == ([(0, "A")], 2, ["a", "a"])


class Unhashable:
    """Raises something else than TypeError."""

    def __hash__(self) -> int:
        raise ValueError("secret")


@pytest.mark.parametrize("thing", [[1], {"a": 1}, Unhashable()], ids=lambda thing: type(thing).__name__)
def test_what_cannot_be_hashed_cannot_be_kept(thing: Any) -> None:
    def city(value: int) -> Any:
        return thing

    with enriching(cache=Cache(), by=city) as step:
        with pytest.raises(
            OperatorError, match=r"what .*city at .* returns is of type \w+, which cannot be hashed"
        ) as e:
            step.push(keyed("a"))
        assert "secret" not in str(e.value)
        assert isinstance(e.value.__cause__, ValueError if isinstance(thing, Unhashable) else TypeError)


@pytest.mark.parametrize(("on_error", "skipped", "letters"), [("skip", 1, []), ("dead-letter", 0, [1])])
def test_the_policy_decides_about_what_cannot_be_hashed(on_error: OnError, skipped: int, letters: list[int]) -> None:
    with enriching({"on_error": on_error}, cache=Cache(), by=lambda n: [n] if n == 1 else n) as step:
        step.desk.answer(0, 2)
        step.push(keyed("a", "b", "c"))
        step.settle()
        assert (step.values(), step.counters.skipped) == ([(0, "0"), (2, "2")], skipped)
        buried = step.dead_letters if letters else []
        assert [letter.value for letter in buried] == letters
        assert all("cannot be hashed" in letter.error for letter in buried)


def test_the_cache_knows_an_instant_in_each_zone_and_both_readings_of_an_hour_that_comes_twice() -> None:
    first, second = (datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin")) for fold in (0, 1))
    asked: list[datetime] = []

    async def hour(at: datetime) -> int:
        asked.append(at)
        return at.astimezone(UTC).hour

    moments = [first, second, first.astimezone(UTC), second.astimezone(UTC)]
    with OperatorTester(lambda s: s.enrich("e", hour, by=lambda v: v, cache=Cache()), keyed=True) as tester:
        for moment in moments:
            tester.send_local([("a", moment)]).step()
        assert [m.value for m in tester.receive_local()] == list(zip(moments, [0, 1, 0, 1], strict=True))  # type: ignore[union-attr]
    assert len(asked) == 2


def test_without_a_cache_the_thing_need_not_be_hashable() -> None:
    async def total(things: list[int]) -> int:
        return sum(things)

    with OperatorTester(lambda s: s.enrich("e", total, by=lambda v: v), keyed=True) as tester:
        assert [m.value for m in tester.send_local([("a", [1, 2])]).step().receive_local()] == [([1, 2], 3)]  # type: ignore[union-attr]


# Runs.


async def known(key: str) -> str:
    return key


def stream() -> Any:
    return mp.Job("j").source("in", sources.Memory(["a"])).key_by("key", str)


def test_two_steps_in_a_row_and_a_union_of_both_lose_nothing() -> None:
    async def look(key: int) -> int:
        await asyncio.sleep(0)
        return -key

    job, out = mp.Job("diamond"), sinks.Memory()
    by_key = job.source("in", sources.Memory(range(100))).key_by("key", lambda number: number % 5)
    once = by_key.enrich("once", look, combine=lambda value, info: value)
    twice = once.enrich("twice", look, concurrency=1, combine=lambda value, info: value)
    again = once.union("both", twice).key_by("again", lambda number: number % 3)
    again.enrich("last", look, combine=lambda value, info: value).sink("out", out)
    mp.run(job, 2, batch=mp.Batching(rows_max=7))
    assert sorted(out.items) == sorted([*range(100)] * 2)


def test_it_runs_beside_a_loop_that_runs_already() -> None:
    job, out = mp.Job("beside"), sinks.Memory()
    job.source("in", sources.Memory(["a"])).key_by("key", str).enrich("e", known).sink("out", out)

    async def service() -> None:
        handle = mp.InProcess().start(job, control=False)
        await asyncio.to_thread(handle.wait)

    asyncio.run(service())
    assert out.items == [("a", "a")]


def test_time_stands_still_on_a_virtual_clock_while_calls_are_under_way() -> None:
    clock = VirtualClock()
    seen: list[float] = []

    async def look(key: str) -> None:
        for _ in range(5):
            await asyncio.sleep(0.002)
            seen.append(clock.monotonic_s())

    mp.collect(stream().enrich("e", look), clock=clock)
    assert len(set(seen)) == 1


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


class Known:
    async def __call__(self, key: str) -> str:
        return key

    async def method(self, key: str) -> str:
        return key


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
