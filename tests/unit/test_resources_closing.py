"""``per_worker``: when things are closed, how, and what becomes of errors."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py import worker_context as resources
from malstrom_py.errors import DeadlineError, OperatorError
from malstrom_py.worker_context import Resources, WorkerInfo, per_worker
from tests.ids import shown
from tests.unit.clients import AsyncClient, Client, client, run

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
