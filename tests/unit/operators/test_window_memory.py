"""The state of windows that have closed is gone, also what steps keep beside it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import agg, windows
from malstrom_py.data.messages import DataMessage, Epoch
from malstrom_py.testing import OperatorTester

KEYS = 20
LONG = 40
"""How many times the first rounds follow: far more than a leak of one object per window and key could hide in."""

STEPS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.window("w", windows.tumbling(10)).aggregate(n=agg.count(), total=agg.sum()),
    "tumbling, early": lambda s: s.window("w", windows.tumbling(10), emit=3).count(),
    "sliding": lambda s: s.window("w", windows.sliding(30, 10)).sum(),
    "sliding, whole": lambda s: s.window("w", windows.sliding(30, 10)).fold(lambda a, b: a + b, default=int),
    "session": lambda s: s.window("w", windows.session(5)).collect(),
    "session, early": lambda s: s.window("w", windows.session(5), emit=2).count(),
    "ttl": lambda s: s.count("w", ttl=20),
    "ttl, op": lambda s: s.stateful_op("w", lambda message, state, output: (state or 0) + 1, ttl=20),
}


def rounds(first: int, last: int) -> Iterator[Any]:
    """Each round is ten units of time with a record of some keys, which differ in each, and the epoch after it."""
    for number in range(first, last):
        yield [DataMessage(f"{number}-{key}", key, 10 * number + key % 4 + 1) for key in range(KEYS)]
        yield [DataMessage(f"always-{key}", key, 10 * number + 2) for key in range(3)]
        yield Epoch(10 * number + 9)


def weight_of(thing: object) -> int:
    """Return the size of all that a step keeps, in bytes: what is reachable from its state and from itself."""
    seen, left, total = set[int](), [thing], 0
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type) or callable(one):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        left += gc.get_referents(one)
    return total


def held(tester: OperatorTester) -> tuple[int, int]:
    """Return the number of keys with state, and the weight of the state."""
    (state,) = tester.states.values()
    return len(state.keys()), weight_of([state.values, state.timers, state.clock_timers, state.expiry])


@pytest.mark.parametrize("step", STEPS)
def test_what_a_step_keeps_depends_on_what_is_open_and_not_on_the_length_of_the_run(step: str) -> None:
    tester = OperatorTester(STEPS[step], keyed=True, timed=True, checks=False)
    for message in rounds(0, 10):
        tester.send_local(message).step()
    before = held(tester)
    for message in rounds(10, 10 + 10 * LONG):
        tester.send_local(message).step()
    tester.receive_local()
    keys, weight = held(tester)
    assert keys == before[0]
    assert weight <= 1.5 * before[1] + 20_000


def test_memory_of_early_results_goes_with_the_windows() -> None:
    tester = OperatorTester(STEPS["tumbling, early"], keyed=True, timed=True, checks=False)
    for message in rounds(0, 50):
        tester.send_local(message).step()
    operator = _operator_of(tester)
    assert len(operator._changed) <= 1


def _operator_of(tester: OperatorTester) -> Any:
    return tester._runner.operators["w"]


def test_a_job_over_many_windows_ends_with_none() -> None:
    rows = [(f"k{number % 7}-{number // 700}", number) for number in range(7_000)]
    timed = mp.Job("flat").source("rows", mp.sources.Memory(rows)).assign_timestamps("at", lambda row: row[1])
    on_time, _ = timed.generate_epochs("epochs", mp.limit_out_of_orderness(10))
    counted = on_time.key_by("key", lambda row: row[0]).window("tens", windows.tumbling(10)).count()
    seen: list[int] = []
    counted.inspect("peek", lambda window: seen.append(window.start)).sink("out", mp.sinks.Memory())
    result = mp.run(counted.job)
    assert result.steps["tens"].keys == 0
    assert len(set(seen)) == 700
