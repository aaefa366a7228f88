"""``per_worker``: one thing per worker, made when it is first asked for, closed at the worker's end."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import cloudpickle
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py import worker_context as resources
from malstrom_py.errors import DeadlineError, OperatorError, PlanError
from malstrom_py.testing import OperatorTester
from malstrom_py.worker_context import Resources, WorkerInfo, per_worker
from tests.ids import shown
from tests.unit.clients import AsyncClient, Client, client, run

# Making.


def test_it_is_made_once_per_worker_when_it_is_first_asked_for() -> None:
    journal: list[str] = []
    handle = client(journal)
    things = run(lambda _: id(handle()), 10)
    assert (len(things), len(set(things))) == (10, 1)
    assert journal == ["client made", "client closed"]


@pytest.mark.parametrize("checks", [False, True])
def test_several_workers_in_one_thread_have_one_each(checks: bool) -> None:
    journal: list[str] = []
    handle = client(journal)
    things = run(lambda _: id(handle()), 300, workers=3, checks=checks)
    assert len(set(things)) == 3
    assert journal == ["client made"] * 3 + ["client closed"] * 3


def test_two_handles_of_one_factory_are_two_things() -> None:
    def make() -> object:
        return object()

    one, other = per_worker(make), per_worker(make)
    with Resources():
        assert one() is one()
        assert one() is not other()


def test_a_thing_may_be_made_of_another_and_goes_before_it() -> None:
    journal: list[str] = []
    pool = client(journal, "pool")
    session = per_worker(lambda: Client(pool().journal, "session"))
    run(lambda _: session().name)
    assert journal == ["pool made", "session made", "session closed", "pool closed"]


def test_copies_of_a_handle_stand_for_one_thing_and_the_thing_is_not_shipped() -> None:
    made: list[int] = []

    def make() -> threading.Lock:  # what cannot be shipped itself
        return threading.Lock()

    handle = per_worker(make)
    with Resources():
        lock = handle()
        copies = [cloudpickle.loads(cloudpickle.dumps(handle)) for _ in range(2)]
        assert [copy() is lock for copy in copies] == [True, True]
    with Resources():
        assert copies[0]() is not lock
    assert made == []


def test_two_threads_that_ask_at_once_get_the_same() -> None:
    barrier, made = threading.Barrier(4), list[object]()

    def make() -> object:
        made.append(object())
        return made[-1]

    handle = per_worker(make)
    got: list[object] = []

    def ask() -> None:
        barrier.wait(60)
        got.append(handle())

    with Resources():
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(ask,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert (len(made), len(got), len(set(map(id, got)))) == (1, 4, 1)


# Where there is no worker.


def test_outside_a_worker_it_says_what_to_do() -> None:
    handle = client([])
    with pytest.raises(PlanError, match=r"per_worker\(.*<lambda> at .*was called outside a worker: call it inside"):
        handle()
    with pytest.raises(PlanError, match="outside a worker"):
        mp.Job("j").source("in", sources.Memory([handle()]))


def test_a_thread_of_the_users_own_has_no_worker_unless_it_is_given_the_context() -> None:
    handle = client([])

    def in_thread(context: contextvars.Context) -> Any:
        got: list[Any] = []

        def ask() -> None:
            try:
                got.append(handle().name)
            except PlanError:
                got.append(None)

        thread = threading.Thread(target=context.run, args=(ask,))
        thread.start()
        thread.join(60)
        return got[0]

    assert run(lambda _: in_thread(contextvars.Context()), 1) == [None]
    assert run(lambda _: in_thread(contextvars.copy_context()), 1) == ["client"]


def test_a_worker_that_has_ended_makes_nothing() -> None:
    handle = client([])
    with Resources() as ended:
        ended.close()
        with pytest.raises(PlanError, match="its worker had ended"):
            handle()


def test_a_run_inside_a_function_of_a_run_has_workers_of_its_own() -> None:
    journal: list[str] = []
    handle = client(journal)

    def inner(_: int) -> bool:
        outer = handle()
        things = mp.collect(mp.Job("inner").source("in", sources.Memory([1])).map("map", lambda _: handle()))
        return things[0] is not outer and handle() is outer

    assert run(inner, 1) == [True]


# Factories that raise.


def refuse() -> Client:
    raise ConnectionError("secret")


@pytest.mark.parametrize("on_error", ["fail", "skip", "dead-letter"])
def test_a_factory_that_raises_ends_the_job_whatever_the_policy(on_error: str) -> None:
    handle = per_worker(refuse)
    with pytest.raises(OperatorError, match=r"step 'map': per_worker: the factory refuse at .* raised Conn") as caught:
        run(lambda _: handle().name, on_error=on_error)
    assert "secret" in str(caught.value)
    assert (caught.value.step, caught.value.rule) == ("map", "per_worker")
    assert isinstance(caught.value.__cause__, OperatorError)
    assert isinstance(caught.value.__cause__.__cause__, ConnectionError)


def test_a_function_may_do_without_it_and_try_again() -> None:
    attempts: list[int] = []

    def make() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError
        return "connected"

    handle = per_worker(make)

    def use(_: int) -> str:
        try:
            return handle()
        except OperatorError:
            return "without"

    assert run(use, 4) == ["without", "without", "connected", "connected"]


def test_what_is_no_error_passes_through() -> None:
    def leave() -> Client:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        run(lambda _: per_worker(leave)().name)


# Elsewhere.


def test_a_step_under_test_has_a_worker_too() -> None:
    journal: list[str] = []
    handle = client(journal)
    with OperatorTester(lambda stream: stream.map("map", lambda value: (value, handle().name))) as tester:
        messages: list[Any] = tester.send_local([1, 2]).step().receive_local()
        assert [message.value for message in messages] == [(1, "client"), (2, "client")]
    assert journal == ["client made", "client closed"]


def test_coroutines_see_the_thing_of_their_worker() -> None:
    journal: list[str] = []
    handle = client(journal)

    async def look(key: int) -> int:
        await asyncio.sleep(0)
        return id(handle())

    job, out = mp.Job("enriched"), sinks.Memory()
    keyed = job.source("in", sources.Memory(range(100), parts=2)).key_by("key", lambda number: number)
    keyed.map("own", lambda number: id(handle())).enrich("looked", look).sink("out", out)
    mp.run(job, workers=3)
    assert {own == looked for own, looked in out.items} == {True}
    assert len({own for own, _ in out.items}) == 3
    assert journal == ["client made"] * 3 + ["client closed"] * 3


async def later() -> Client:
    return Client([])


@pytest.mark.parametrize("factory", [None, "client", 3, later])
def test_a_factory_is_an_ordinary_function(factory: Any) -> None:
    with pytest.raises(PlanError, match="per_worker takes an ordinary function"):
        per_worker(factory)


def test_a_close_is_a_function() -> None:
    with pytest.raises(PlanError, match="close must be a function"):
        per_worker(list, "close")  # type: ignore[arg-type]


# Closing


# Closing.


async def close_later(thing: Client) -> None:
    await asyncio.sleep(0)
    thing.journal.append(f"closed in {threading.current_thread().name}")


@pytest.mark.parametrize(
    ("make", "close", "reported"),
    [
        (Client, None, "client closed"),
        (Client, lambda thing: thing.journal.append("by hand"), "by hand"),
        (AsyncClient, None, "client closed in malstrom-worker-0"),
        (Client, close_later, "closed in malstrom-worker-0"),
        (AsyncClient, lambda thing: thing.aclose(), "client closed in malstrom-worker-0"),
    ],
    ids=["close()", "close function", "aclose()", "coroutine function", "function of a coroutine"],
)
def test_it_is_closed_at_the_workers_end(make: Any, close: Any, reported: str) -> None:
    journal: list[str] = []
    handle = per_worker(lambda: make(journal), close)
    run(lambda _: handle().name)
    assert journal == ["client made", reported]
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("malstrom-worker-")] == []


@pytest.mark.parametrize("thing", [object(), None, threading, Client, {"close": 1}], ids=shown)
def test_what_has_nothing_to_close_is_left_alone(thing: Any) -> None:
    handle = per_worker(lambda: thing)
    assert run(lambda _: handle() is thing, 1) == [True]


def test_a_column_called_close_is_no_way_to_close() -> None:
    class Prices:
        close = (1.0, 2.0)

    handle = per_worker(Prices)
    assert run(lambda _: handle().close[0], 1) == [1.0]


def test_it_is_closed_behind_the_sinks_that_use_it() -> None:
    journal: list[str] = []
    handle = client(journal)

    class Writer:
        def build(self, worker: WorkerInfo) -> Writer:
            handle()
            return self

        def write(self, batch: Any) -> None:
            handle()

        def close(self) -> None:
            journal.append(f"sink closed with the {handle().name}")

    job = mp.Job("sink")
    job.source("in", sources.Memory([1])).sink("out", Writer())
    mp.run(job)
    assert journal == ["client made", "sink closed with the client", "client closed"]


def test_a_source_may_use_it_to_list_its_parts() -> None:
    journal: list[str] = []
    handle = client(journal)

    class Listed(sources.Memory[int]):
        def list_parts(self) -> Any:
            journal.append(f"listed by the {handle().name}")
            return super().list_parts()

    assert mp.collect(mp.Job("j").source("in", Listed([1, 2]))) == [1, 2]
    assert journal == ["client made", "listed by the client", "client closed"]


def test_a_job_that_fails_closes_what_it_has_made() -> None:
    journal: list[str] = []
    handle = client(journal)
    with pytest.raises(OperatorError, match="ZeroDivisionError"):
        run(lambda number: (handle(), 1 / (number - 1)), workers=2)
    assert 1 <= journal.count("client made") == journal.count("client closed")


def test_errors_of_closing_are_told_once_everything_is_closed() -> None:
    journal: list[str] = []

    def fail(thing: Client) -> None:
        journal.append(f"{thing.name} failed")
        raise ValueError("secret")

    first = per_worker(lambda: Client(journal, "first"), fail)
    second = per_worker(lambda: Client(journal, "second"), fail)
    with pytest.raises(OperatorError, match=r"made a resource whose closing raised ValueError") as caught:
        run(lambda _: (first().name, second().name), 1)
    assert "secret" in str(caught.value)
    assert journal == ["first made", "second made", "second failed", "first failed"]


def test_an_error_of_closing_is_a_note_on_the_error_that_ended_the_job() -> None:
    def fail(thing: Client) -> None:
        raise ValueError

    handle = per_worker(lambda: Client([]), fail)
    with pytest.raises(OperatorError, match="ZeroDivisionError") as caught:
        run(lambda number: (handle(), 1 / number), 1)
    assert any("whose closing raised ValueError" in note for note in caught.value.__notes__)


def test_closing_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_CLOSE_S", 0.01)

    async def never(thing: Client) -> None:
        await asyncio.Event().wait()

    handle = per_worker(lambda: Client([]), never)
    with pytest.raises(DeadlineError, match=r"closing what per_worker\(.*\) made took longer than 0\.01 s"):
        run(lambda _: handle().name, 1)


def test_closing_again_closes_nothing_again() -> None:
    journal: list[str] = []
    handle = client(journal)
    with Resources() as made:
        handle()
    made.close()
    made.close()
    assert journal == ["client made", "client closed"]
