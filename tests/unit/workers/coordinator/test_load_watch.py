"""The loads of a run: weights once rows are counted, and an event for each key that becomes hot or cools."""

from __future__ import annotations

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.events import AnyEvent, HotKeyBegun, HotKeyEnded
from malstrom_py.metrics import HotKey
from malstrom_py.workers.coordinator.load_watch import LoadWatch
from malstrom_py.workers.reports.figures import WorkerFigures


def watch() -> tuple[LoadWatch, list[AnyEvent]]:
    job = mp.Job("docs", slots=4)
    job.source("in", sources.Memory([1])).key_by("key", lambda n: n).count("n").sink("out", sinks.Memory())
    seen: list[AnyEvent] = []
    return LoadWatch(job.plan(), seen.append), seen


def test_weights_are_of_the_rows_that_all_workers_count() -> None:
    loads, _ = watch()
    assert loads.weights is None
    assert loads.imbalance((0, 1, 0, 1), (0, 1)) is None
    for second in range(4):
        figures = {
            0: WorkerFigures(slot_loads={0: 3_000 * second}, sampled=1_000 * second, sampled_squares=9_000.0 * second),
            1: WorkerFigures(slot_loads={1: 1_000 * second}),
        }
        loads.sample(float(second), figures, [], (0, 1))
    weights = loads.weights
    assert weights is not None
    assert weights[0] > 2.5 * weights[1] > weights[2] == weights[3]
    found = loads.imbalance((0, 1, 0, 1), (0, 1))
    assert found is not None
    assert 1.4 < found < 1.5


def test_a_key_becomes_hot_and_cools_once_each_and_the_end_of_the_run_ends_it() -> None:
    loads, seen = watch()
    hot = HotKey("key", "7", share=0.6, busy=0.9, worker=1)
    for second, keys in enumerate([[hot], [hot], [], [hot]]):
        loads.sample(float(second), {}, keys, (0, 1))
    assert loads.hot_keys == [hot]
    loads.close()
    begun, ended = HotKeyBegun("key", "7", 1, 0.6, 0.9), HotKeyEnded("key", "7")
    assert seen == [begun, ended, begun, ended]
    assert loads.hot_keys == []
