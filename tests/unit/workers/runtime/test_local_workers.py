"""Several workers in one process: what they give together is what one gives alone."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.rescale.channels.channel import Credit
from malstrom_py.testing import VirtualClock
from tests.unit.part_sink import PartSink
from tests.unit.polled import Polled

WORKERS = (2, 3, 8)
Reading = tuple[str, int, int]


def readings(count: int, *, keys: int = 20, seed: int = 1) -> list[Reading]:
    """(key, time, value), up to 20 out of order."""
    rng = random.Random(seed)
    return [(f"key-{rng.randrange(keys)}", time + rng.randrange(20), rng.randrange(100)) for time in range(count)]


class LatestPerEpoch(mp.KeyedLogic[str, Reading, Any, int]):
    """Says at every epoch what each key has: as sensitive to the place of epochs as a step can be."""

    def on_data(self, message: mp.DataMessage[str, Reading], key_state: int | None, output: mp.Output[str, Any]) -> int:
        return (key_state or 0) + message.value[2]

    def on_epoch(self, epoch: mp.Epoch, state: Any, output: mp.Output[str, Any]) -> None:
        for key, total in state.items():
            output.emit(key, (min(epoch.time, 1 << 40), total), epoch.time if epoch.time < mp.MAX_EPOCH else 1 << 40)


def timed_job(items: list[Reading], step: Any) -> tuple[mp.Job, sinks.Memory, sinks.Memory]:
    job, out, late_out = mp.Job("crew"), sinks.Memory(), sinks.Memory()
    timed = job.source("readings", sources.Memory(items)).assign_timestamps("time", lambda reading: reading[1])
    on_time, late = timed.generate_epochs("epochs", mp.limit_out_of_orderness(10))
    late.sink("late", late_out)
    step(on_time.key_by("key", lambda reading: reading[0])).sink("out", out)
    return job, out, late_out


STEPS = {
    "stateful_op at epochs": lambda keyed: keyed.stateful_op("step", LatestPerEpoch()),
    "ttl_map": lambda keyed: keyed.ttl_map(
        "step", lambda key, reading, seen: ((reading[2], seen + 1), seen + 1), ttl=30, default=int
    ),
    "collect": lambda keyed: keyed.collect("step", size=3),
    "top_n": lambda keyed: keyed.top_n("step", 3, by=lambda reading: reading[2]),
    "distinct": lambda keyed: keyed.distinct("step", by=lambda reading: reading[2]),
    "stateful_flat_map": lambda keyed: keyed.stateful_flat_map(
        "step", lambda key, reading, seen: ([reading[2]] * (seen % 3), seen + 1), default=int
    ),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("workers", WORKERS)
def test_one_part_and_one_exchange_give_the_same_per_key_at_any_number_of_workers(name: str, workers: int) -> None:
    items = readings(1500)
    found = []
    for count in (1, workers):
        job, out, late = timed_job(items, STEPS[name])
        # Epochs come after batches, which are cut by time, too: so the clock does not move.
        mp.run(job, count, batch=mp.Batching(rows_max=37), clock=VirtualClock())
        found.append((out.by_key, late.items))
    assert found[0] == found[1]
    assert len(found[0][0]) == 20


@settings(max_examples=40, deadline=None)
@given(
    items=st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 60), st.integers(0, 9)), max_size=60),
    workers=st.sampled_from(WORKERS),
    rows_max=st.integers(1, 20),
    credit=st.integers(1, 30),
)
def test_f2_no_credit_is_too_small_and_no_cut_changes_the_answer(
    items: list[Reading], workers: int, rows_max: int, credit: int
) -> None:
    found = []
    for count, batching in (
        (1, mp.Batching(rows_max=rows_max)),
        (workers, mp.Batching(rows_max=rows_max, credit=Credit(rows=credit, size=1))),
    ):
        job, out, late = timed_job(items, STEPS["stateful_op at epochs"])
        # As above: on a busy machine a batch that takes long is followed by smaller ones.
        mp.run(job, count, batch=batching, clock=VirtualClock())
        found.append((out.by_key, late.items))
    assert found[0] == found[1]


def test_t5_workers_without_a_part_do_not_hold_back_event_time() -> None:
    job, out, _ = timed_job(readings(10), STEPS["stateful_op at epochs"])
    mp.run(job, 8)
    assert {values[-1][0] for values in out.by_key.values()} == {1 << 40}


class PerWorker:
    """A source without parts: every worker opens it."""

    def build(self, worker: sinks.WorkerInfo) -> Any:
        return sources.Memory([(worker.worker, number) for number in range(10)]).build_part(sources.Part("0"), None)


def test_a_stateless_source_is_read_by_every_worker() -> None:
    job, out = mp.Job("stateless"), sinks.Memory()
    job.source("in", PerWorker()).sink("out", out)
    mp.run(job, 3)
    assert Counter(worker for worker, _ in out.items) == {0: 10, 1: 10, 2: 10}


@pytest.mark.parametrize("workers", [1, 3])
def test_each_part_of_a_partitioned_sink_is_written_in_one_place_and_rows_keep_their_keys(workers: int) -> None:
    job, ledger = mp.Job("ledger"), PartSink(lambda message: f"part-{message.value % 4}")
    job.source("in", sources.Memory(range(100), parts=3)).key_by("k", lambda n: n % 10).sink("out", ledger)
    result = mp.run(job, workers)
    assert sorted(ledger.log) == sorted(
        each for part, rows in ledger.rows.items() for each in (("open", part, 0), ("close", part, len(rows)))
    )
    assert result.written == 100
    for part, rows in ledger.rows.items():
        assert sorted(rows) == sorted((n % 10, n) for n in range(100) if f"part-{n % 4}" == part)


def test_collect_every_runs_on_the_runtimes_clock() -> None:
    clock = VirtualClock()

    slow = Polled(
        lambda part, at, rows_max: [at + 1] if clock.monotonic_s() >= 10 * at else None,
        ended=lambda part, at: at == 2,
    )
    job = mp.Job("every")
    keyed = job.source("slow", slow).key_by("all", lambda n: "all")
    assert mp.collect(keyed.collect("lists", every=timedelta(seconds=3)), clock=clock) == [[1], [2]]


def test_f4_an_illegal_key_is_refused_with_one_worker_too() -> None:
    for bad, name in ((float("nan"), "float"), (frozenset({1}), "frozenset"), (object(), "object")):
        job = mp.Job("keys")
        keyed = job.source("in", sources.Memory([bad])).key_by("step-k", lambda value: value)
        with pytest.raises(mp.CodecError, match=rf"step-k.*{name}"):
            mp.collect(keyed)


def test_f4_an_illegal_key_goes_the_way_of_on_error() -> None:
    job = mp.Job("keys")
    numbers = job.source("in", sources.Memory([1.0, float("nan"), 2.0]))
    keyed = numbers.key_by("k", lambda value: value, on_error="dead-letter")
    keyed.sink("out", out := sinks.Memory())
    job.dead_letters("k").sink("dead", dead := sinks.Memory())
    result = mp.run(job)
    assert (out.items, result.dead_letters) == ([1.0, 2.0], 1)
    assert "CodecError" in dead.items[0].error


def test_time_passes_on_a_virtual_clock_however_short_the_linger_is() -> None:
    clock = VirtualClock()

    silent = Polled(lambda part, at, rows_max: None if at else [1, 2], ended=lambda part, at: clock.monotonic_s() > 10)
    job, out = mp.Job("silent"), sinks.Memory()
    lists = job.source("in", silent).key_by("one", lambda n: 1).collect("lists", every=timedelta(seconds=1))
    lists.sink("out", out)
    mp.run(job, clock=clock, batch=mp.Batching(linger_s=0))
    assert out.items == [[1, 2]]
