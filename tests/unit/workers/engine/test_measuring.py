"""The figures of a worker: heavy keys within the bounds of the algorithm, and the time of each step once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch, ColumnBatch
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

    version = 0

    def __init__(self) -> None:
        self.calls = 0
        self.remote = {1: "another worker"}

    def owns(self, slot: int) -> bool:
        return True

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


class Switched:
    """An exchange of which slots move away and come back. The slot of a key is its number."""

    def __init__(self) -> None:
        self.version = 0
        self.owned = set(range(100))

    def slots_of(self, keys: list[int]) -> list[int]:
        return keys

    def owns(self, slot: int) -> bool:
        return slot in self.owned

    def switch(self, owned: set[int]) -> None:
        self.version, self.owned = self.version + 1, owned


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is sampled."""
    monkeypatch.setattr("malstrom_py.workers.engine.measuring._SAMPLE_NS", 0)
    monkeypatch.setattr("malstrom_py.workers.engine.measuring._SAMPLE_COST", 0)
    monkeypatch.setattr("malstrom_py.workers.engine.measuring._SAMPLE_WAIT", 0)


def saw(sampler: KeySampler, key: int, times: int) -> None:
    for _ in range(times // 32):
        sampler.saw(Batch([1] * 32, keys=[key] * 32))


def test_a_key_that_has_moved_away_has_no_share_of_its_former_owner(always: None) -> None:
    exchange: Any = Switched()
    sampler = KeySampler(exchange)
    saw(sampler, 7, 6_400)
    saw(sampler, 1, 1_600)
    assert sampler.sketch.heaviest(2) == [(7, 0.8), (1, 0.2)]
    exchange.switch({1, 2})
    sampler.keep_owned()
    assert sampler.sketch.heaviest(2) == [(1, 1.0)]
    assert sampler.sketch.heaviest_slots(2) == [(1, 1.0)]
    saw(sampler, 7, 640)  # sent by the table before
    assert [key for key, _ in sampler.sketch.heaviest(2)] == [1]


def test_keys_of_a_column_are_one_key_as_in_the_steps(always: None) -> None:
    exchange: Any = Switched()
    exchange.slots_of = lambda keys: [1] * len(keys)
    sampler = KeySampler(exchange)
    utc = [datetime(2024, 10, 27, hour, 30, tzinfo=UTC) for hour in (0, 1)] * 16
    column = pa.array(utc).cast(pa.timestamp("us", "Europe/Berlin"))
    for _ in range(10):
        sampler.saw(ColumnBatch(pa.RecordBatch.from_pydict({"n": [1] * 32}), key_column=column))
    assert {(key.astimezone(UTC), share) for key, share in sampler.sketch.heaviest(2)} == {(utc[0], 0.5), (utc[1], 0.5)}


def test_a_key_that_has_come_has_its_share_soon(always: None) -> None:
    exchange: Any = Switched()
    sampler = KeySampler(exchange)
    exchange.switch({1, 2})
    saw(sampler, 1, 64_000)
    exchange.switch({1, 2, 7})
    saw(sampler, 7, 3_200)
    key, share = sampler.sketch.heaviest(1)[0]
    assert (key, share > 0.9) == (7, True), share


def test_a_partitioner_that_fails_costs_the_figures_no_more_than_themselves(always: None) -> None:
    exchange: Any = Switched()
    sampler = KeySampler(exchange)
    saw(sampler, 7, 640)
    exchange.switch({7})
    exchange.slots_of = None
    sampler.keep_owned()
    assert sampler.sketch.heaviest(1) == []
