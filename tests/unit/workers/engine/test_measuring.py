"""The figures of a worker: heavy keys within the bounds of the algorithm, and the time of each step once."""

from __future__ import annotations

from collections import Counter
from time import perf_counter_ns
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Epoch
from malstrom_py.operators.base import Operator, Outlet, StepContext
from malstrom_py.workers.engine.executor import Executor, NodeSpec
from malstrom_py.workers.engine.measuring import SKETCH_KEYS, KeySampler, KeySketch, TimeUse


@given(st.lists(st.integers(0, 300), min_size=1, max_size=2000))
def test_a_key_with_more_than_its_share_of_the_sketch_is_always_found(keys: list[int]) -> None:
    """The law of the algorithm: a key of more than 1/k of the rows is among the k counted, never too low."""
    sketch = KeySketch()
    for start in range(0, len(keys), 32):
        sketch.add(keys[start : start + 32], [])
    found = dict(sketch.heaviest(SKETCH_KEYS))
    assert len(found) <= SKETCH_KEYS
    for key, times in Counter(keys).items():
        if times > len(keys) / SKETCH_KEYS:
            assert found[key] >= times / len(keys) - 1e-9


def test_the_heaviest_keys_are_of_recent_rows() -> None:
    sketch = KeySketch()
    sketch.add(["old"] * 40_000, [1] * 40_000)
    for _ in range(20):
        sketch.add(["new"] * 40_000, [2] * 40_000)
    assert sketch.heaviest(1)[0][0] == "new"
    slot, share = sketch.heaviest_slots(1)[0]
    assert slot == 2
    assert share == pytest.approx(1.0, abs=0.05)


class Spending(Operator):
    """Spends ``ns`` with each batch, and sends it on; ``drains``: directly to the end of the graph."""

    def __init__(self, ns: int, *, drains: bool = False) -> None:
        super().__init__(StepContext(job="docs", step=f"spending-{ns}"))
        self._ns = ns
        self._drains = drains

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        until_ns = perf_counter_ns() + self._ns
        while perf_counter_ns() < until_ns:
            """The time passes."""
        out.send(batch)
        if self._drains:
            out.drain()


@pytest.mark.parametrize("drains", [False, True])
def test_the_time_of_a_step_is_counted_once_also_if_it_drains_its_outlet(*, drains: bool) -> None:
    steps: list[Operator | None] = [None, Spending(2_000_000, drains=drains), Spending(8_000_000)]
    specs = [NodeSpec(str(index), step, ((index - 1, 0),) if index else ()) for index, step in enumerate(steps)]
    executor = Executor(specs, measured=True)
    began_ns = perf_counter_ns()
    for _ in range(3):
        executor.push(0, Batch([1]))
        executor.push(0, Epoch(1))
        executor.run()
    took_ns = perf_counter_ns() - began_ns
    spent = [executor.counters(node).time_ns for node in range(3)]
    assert spent[2] >= 24_000_000
    assert spent[1] >= 6_000_000
    assert sum(spent) <= took_ns


class Backlogged:
    """An exchange that has a backlog, or not."""

    def __init__(self) -> None:
        self.backlogged = False
        self.waiting_ns = 0


def test_time_is_busy_waiting_or_neither() -> None:
    exchange: Any = Backlogged()
    use = TimeUse([exchange])
    began_ns = perf_counter_ns()
    use.stepped(began_ns, busy=False)
    assert (use.busy_ns, use.waiting_ns, exchange.waiting_ns) == (0, 0, 0)
    exchange.backlogged = True
    use.stepped(perf_counter_ns() - 5_000_000, busy=True)
    assert use.busy_ns >= 5_000_000
    before_ns = use.busy_ns
    until_ns = perf_counter_ns() + 3_000_000
    while perf_counter_ns() < until_ns:
        """The worker waits for credit."""
    use.stepped(perf_counter_ns(), busy=False)
    assert use.busy_ns == before_ns
    assert use.waiting_ns >= 3_000_000
    assert exchange.waiting_ns >= 3_000_000
    exchange.backlogged = False


class SlowlyRouted:
    """An exchange with a slow partitioner of the user."""

    def __init__(self) -> None:
        self.calls = 0
        self.remote = {1: "another worker"}

    def slots_of(self, keys: list[int]) -> list[int]:
        self.calls += 1
        until_ns = perf_counter_ns() + 2_000_000
        while perf_counter_ns() < until_ns:
            """The time passes."""
        return [0] * len(keys)


def test_sampling_with_a_slow_partitioner_takes_a_hundredth_of_the_time() -> None:
    exchange: Any = SlowlyRouted()
    sampler = KeySampler(exchange)
    until_ns = perf_counter_ns() + 100_000_000
    while perf_counter_ns() < until_ns:
        sampler.saw(Batch([1], keys=[1]))
    assert exchange.calls == 1
