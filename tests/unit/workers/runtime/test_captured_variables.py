"""What a function holds on to and other processes cannot be given: found by name, at the start, and cheaply."""

from __future__ import annotations

import copyreg
import logging
import re
import socket
import threading
import tracemalloc
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl
import pytest

import malstrom_py as mp
from malstrom_py import agg, sinks, sources
from malstrom_py.builder.plan import Plan
from malstrom_py.workers.runtime.captured_variables import captured

LOCK = threading.Lock()


class Guarded(mp.KeyedLogic[Any, Any, Any, Any]):
    def __init__(self, lock: Any = None) -> None:
        self.lock = lock

    def on_data(self, message: Any, key_state: Any, output: Any) -> None:
        output.send(message)

    def take(self, value: Any) -> Any:
        return value


def plan_of(step: Any) -> Plan:
    job = mp.Job("captured")
    step(job.source("in", sources.Memory([1]))).sink("out", sinks.Memory())
    return job.plan()


def found_in(step: Any, name: str = "step") -> str | None:
    plan = plan_of(step)
    return captured(plan.steps[plan.rank(name)])


def holding(lock: Any) -> dict[str, Any]:
    """Steps that hold on to ``lock``, each in its way."""

    def inner(value: Any) -> Any:
        return lock, value

    def around(value: Any, of: Any = inner) -> Any:
        return of(value)

    def by_default(value: Any, *, guard: Any = lock) -> Any:
        return guard, value

    def guarded(value: Any, guard: Any) -> Any:
        return guard, value

    def upgrade(key: Any, state: Any) -> Any:
        return lock, state

    async def ask(value: Any) -> Any:
        return lock, value

    key = lambda value: value  # noqa: E731
    return {
        "a variable": (lambda s: s.map("step", inner), r"variable 'lock' of .*inner at .*py:\d+ is a value of type"),
        "a variable of a function's variable": (lambda s: s.map("step", around), "variable 'lock' of .*inner at"),
        "a default": (lambda s: s.filter("step", by_default), "variable 'guard' of .*by_default"),
        "a global": (lambda s: s.map("step", lambda value: (LOCK, value)), "variable 'LOCK' of .*<lambda>"),
        "an argument": (lambda s: s.map("step", partial(guarded, guard=lock)), "argument 'guard' of .*guarded"),
        "a method": (lambda s: s.map("step", Guarded(lock).take), "attribute 'lock' of Guarded"),
        "a logic": (lambda s: s.key_by("k", key).stateful_op("step", Guarded(lock)), "attribute 'lock' of Guarded"),
        "an aggregation": (
            lambda s: s.key_by("k", key).aggregate("step", one=agg.sum(inner)),
            "variable 'lock' of .*inner",
        ),
        "a call": (lambda s: s.key_by("k", key).enrich("step", ask), "variable 'lock' of .*ask"),
        "a partitioner": (
            lambda s: s.key_by("step", key, partitioner=lambda key: int(lock is None)).count("n"),
            "variable 'lock' of .*<lambda>",
        ),
        "a migration": (
            lambda s: s.key_by("k", key).count("step", migrate=upgrade),
            "variable 'lock' of .*upgrade",
        ),
        "a key": (lambda s: s.key_by("step", inner).count("n"), "variable 'lock' of .*inner"),
    }


@pytest.mark.parametrize("name", holding(None))
def test_a_variable_that_cannot_be_pickled_is_named(name: str) -> None:
    step, said = holding(threading.Lock())[name]
    found = found_in(step)
    assert found is not None
    assert re.search(said, found)
    assert found.endswith("is a value of type _thread.lock, which cannot be pickled")


@pytest.mark.parametrize("name", sorted(holding(None).keys() - {"a global"}))
def test_what_can_be_pickled_is_left_alone(name: str) -> None:
    assert found_in(holding({"some": "thing"})[name][0]) is None


def test_the_functions_of_sources_and_sinks_are_looked_at_and_nothing_else_of_them() -> None:
    lock = threading.Lock()
    job = mp.Job("ends")
    job.source("in", sources.Generator(lambda part, start: iter([lock]))).sink("out", sinks.Callable(lambda _: lock))
    plan = job.plan()
    assert [captured(step) is not None for step in plan.steps] == [True, True]
    job = mp.Job("ends")
    job.source("in", sources.Memory([lock])).sink("out", sinks.Memory())
    assert [captured(step) for step in job.plan().steps] == [None, None]


def nested(lock: Any) -> dict[str, Any]:
    """Values with ``lock`` deep inside, and where it is then said to be."""
    thread = threading.Thread()
    return {
        "dicts": ({"x": {"a": lock}}, "an item of a dict in an item of a dict"),
        "a list": ([1, [lock]], "an item of a list in an item of a list"),
        "a thread": (thread, "attribute '_lock' of Condition in attribute '_cond' of Event in attribute '_started' of"),
        "an object": ([Guarded({"lock": lock})], "an item of a dict in attribute 'lock' of Guarded in an item of a li"),
        "after a long text": ({"text": "x" * 1_000_000, "lock": lock}, "an item of a dict"),
        "after long bytes": ({"text": b"x" * 1_000_000, "lock": lock}, "an item of a dict"),
    }


@pytest.mark.parametrize("name", nested(None))
def test_the_variable_of_the_user_is_named_however_deep_the_fault_is(name: str) -> None:
    held, where = nested(threading.Lock())[name]
    found = found_in(lambda s: s.map("step", lambda value: held))
    assert found is not None
    assert re.match(r"variable 'held' of .*<lambda> at .*py:\d+ holds a value of type _thread.lock, as ", found)
    assert f"as {where}" in found
    assert found.endswith(", which cannot be pickled")


def test_a_long_text_is_not_encoded_to_find_out() -> None:
    text = "\u00e9" * 5_000_000
    deep = {"text": [text]}
    tracemalloc.start()
    try:
        assert found_in(lambda s: s.map("step", lambda value: (text, deep))) is None
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_large_things_are_not_copied_to_find_out() -> None:
    read: list[int] = []

    class Item:
        pass

    def reduced(item: Item) -> Any:
        read.append(1)
        return int, (len(read),)

    copyreg.pickle(Item, reduced)
    items = [Item() for _ in range(1_000_000)]
    try:
        assert found_in(lambda s: s.map("step", lambda value: items[value])) is None
    finally:
        del copyreg.dispatch_table[Item]
    assert 0 < len(read) < 50_000

    class Frame(pl.DataFrame):
        def __getstate__(self) -> Any:
            raise AssertionError("it was copied")

    Frame.__module__ = "polars.dataframe"
    frame = Frame({"number": [1]})
    assert found_in(lambda s: s.map("step", lambda value: frame)) is None


def test_what_users_say_of_how_their_things_are_pickled_is_believed_and_not_run() -> None:
    class Reduced:
        def __reduce__(self) -> Any:
            raise AssertionError("it was pickled")

    class Stated:
        lock = threading.Lock()

        def __getstate__(self) -> Any:
            raise AssertionError("it was asked for its state")

    class Inherited(Stated):
        def __init__(self) -> None:
            self.guard = threading.Lock()

    held = [Reduced(), Stated(), Inherited()]
    assert found_in(lambda s: s.map("step", lambda value: held)) is None


def test_hooks_of_python_and_of_libraries_do_not_hide_a_fault() -> None:
    @dataclass(frozen=True, slots=True)
    class Config:
        """It has a ``__getstate__`` that `dataclass` has made."""

        lock: Any

    config = Config(threading.Lock())
    found = found_in(lambda s: s.map("step", lambda value: config))
    assert found is not None
    assert "_thread.lock, as attribute 'lock' of " in found
    unopened = socket.socket.__new__(socket.socket)
    assert "variable 'unopened' of" in str(found_in(lambda s: s.map("step", lambda value: unopened)))


def test_a_run_in_this_process_warns_once_for_each_step_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    lock, out, job = threading.Lock(), sinks.Memory(), mp.Job("guarded")
    read = job.source("in", sources.Memory([1, 2, 3]))
    read.map("step", lambda value: (lock, value)[1]).map("fine", lambda value: value).sink("out", out)
    with caplog.at_level(logging.WARNING):
        mp.run(job, workers=2)
        (record,) = caplog.records
        assert record.name == "malstrom_py"
        said = record.getMessage()
        assert said.startswith("job guarded: step 'step' (map) cannot be taken to other processes: variable 'lock' of ")
        assert said.endswith(
            "It runs in this one; on Ray it is an error. Make it inside the function, or once per worker with "
            "mp.per_worker(factory)"
        )
        mp.InProcess().start(job, control=False).wait()
        assert len(caplog.records) == 2, "each start says it again"
    assert out.items == [1, 2, 3]
