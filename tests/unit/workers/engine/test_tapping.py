"""What a worker samples of a step: bounded, evenly, in order, without a change to the batches or a cost afterwards."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.codec import Codec
from malstrom_py.codec.job_codec import without_classes
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.engine.executor import _Node
from malstrom_py.workers.engine.flow_limits import Batching
from malstrom_py.workers.engine.graph_builder import Membership
from malstrom_py.workers.engine.tapping import BYTES_MAX, ROWS_MAX, VALUE_MAX
from malstrom_py.workers.engine.worker import Worker
from malstrom_py.workers.reports.taps import Tapped, TapStep

LEASE_S = 5.0


class Tapping:
    """A worker with a step of each kind, to which a test sends batches."""

    def __init__(self, job: mp.Job | None = None) -> None:
        self.clock = VirtualClock(0.0)
        job = job or mp.Job("docs")
        even, odd = job.source("in", sources.Memory([1])).split("halves", 2, lambda row: [row % 2])
        self.got = sinks.Memory()
        even.key_by("key", lambda row: row).sink("out", self.got)
        odd.sink("odd", sinks.Memory())
        plan = job.plan()
        member = Membership(3, (3,), (3,) * plan.slots)
        self.worker = Worker(plan, member, batching=Batching(), clock=self.clock, codec=Codec(plan.types))
        self.graph = self.worker._graph

    def send(self, step: str, batch: Batch, port: int = 0) -> None:
        self.graph.executor.outlet(self.graph.nodes[step]).send(batch, port)
        for node in self.graph.executor._nodes:
            node.queue.clear()
        self.graph.executor._ready.clear()

    def tap(self, step: str, *keys: Any, lease_s: float = LEASE_S) -> list[Tapped]:
        stored = tuple(Codec().encode_at_rest(key, step="tap") for key in keys) or None
        return self.read(self.worker.tapping.obey(TapStep(step, stored, lease_s)))

    def sent(self) -> list[Tapped]:
        messages = list(self.graph.messages)
        self.graph.messages.clear()
        return self.read(messages)

    def read(self, messages: list[Any]) -> list[Tapped]:
        return [message for _, message in messages]


def values(tapped: Tapped) -> list[Any]:
    return [without_classes().decode_at_rest(row.value) for row in tapped.rows]


def test_a_node_is_as_before_once_its_tap_has_ended() -> None:
    tapping = Tapping()
    node = tapping.graph.executor._nodes[tapping.graph.nodes["in"]]
    assert type(node) is _Node
    assert tapping.tap("in") == []
    assert type(node) is not _Node
    tapping.clock.sleep_s(LEASE_S)
    tapping.send("in", Batch([1]))
    assert type(node) is _Node
    assert node.taps == ()
    assert tapping.sent() == []
    tapping.tap("in")
    tapping.send("in", Batch([2]))
    assert [values(tapped) for tapped in tapping.sent()] == [[2]]


def test_few_records_are_all_shown_with_their_key_and_time() -> None:
    tapping = Tapping()
    tapping.tap("in")
    tapping.send("in", Batch([{"n": 1}, (2, "b")], keys=["a", "b"], timestamps=[5, 6]))
    (tapped,) = tapping.sent()
    assert values(tapped) == [{"n": 1}, (2, "b")]
    assert [(row.worker, row.output, row.timestamp) for row in tapped.rows] == [(3, "out", 5), (3, "out", 6)]
    assert [without_classes().decode_at_rest(row.key) for row in tapped.rows] == ["a", "b"]
    assert tapped.passed == 2


def test_of_many_records_some_are_shown_evenly_and_in_order_and_all_are_counted() -> None:
    tapping = Tapping()
    tapping.tap("in")
    tapping.send("in", Batch(list(range(10 * ROWS_MAX))))
    (tapped,) = tapping.sent()
    shown = values(tapped)
    assert (len(shown), tapped.passed) == (ROWS_MAX, 10 * ROWS_MAX)
    assert {after - before for before, after in pairwise(shown)} == {10}
    for _ in range(5):
        tapping.send("in", Batch(list(range(100))))
    assert tapping.sent() == []  # the next message is due half a second later
    (tapped,) = tapping.tap("in")
    assert (len(tapped.rows), tapped.passed) == (ROWS_MAX, 500)
    assert tapping.tap("in") == []


def test_columns_are_read_for_the_shown_records_only_and_the_batch_is_unchanged() -> None:
    tapping = Tapping()
    tapping.tap("in", 7)
    keys = pa.array([7, 8] * 1_000)
    batch = ColumnBatch(pa.RecordBatch.from_pydict({"n": list(range(2_000))}), key_column=keys)
    tapping.send("in", batch)
    (tapped,) = tapping.sent()
    assert (tapped.passed, len(tapped.rows)) == (1_000, ROWS_MAX)
    assert all(value["n"] % 2 == 0 for value in values(tapped))
    assert not batch.rows_made
    assert batch._keys is None


def test_only_records_of_the_key_are_counted_and_shown() -> None:
    tapping = Tapping()
    tapping.tap("in", "17", 17)
    tapping.send("in", Batch([1, 2, 3, 4], keys=["17", 17, 18, "x"]))
    (tapped,) = tapping.sent()
    assert (values(tapped), tapped.passed) == ([1, 2], 2)
    tapping.send("in", Batch([1], keys=["x"]))
    assert tapping.tap("in", "17", 17) == []


def test_two_taps_of_a_step_do_not_know_of_each_other() -> None:
    tapping = Tapping()
    tapping.tap("in")
    tapping.tap("in", 1, lease_s=0.0)
    tapping.send("in", Batch([10, 20], keys=[1, 2]))
    assert [(values(tapped), tapped.keys) for tapped in tapping.sent()] == [([10, 20], None)]


def test_outputs_have_their_names_and_a_sink_shows_what_it_gets() -> None:
    tapping = Tapping()
    tapping.tap("halves")
    tapping.tap("odd")
    tapping.send("halves", Batch(["x"]), port=0)
    tapping.send("halves", Batch(["y"]), port=1)
    shown = [(tapped.step, row.output, *values(tapped)) for tapped in tapping.sent() for row in tapped.rows]
    left = [(tapped.step, row.output, *values(tapped)) for tapped in tapping.tap("halves") for row in tapped.rows]
    assert sorted(shown + left) == [("halves", "0", "x"), ("halves", "1", "y"), ("odd", "", "y")]


class Awkward:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = object.__hash__


def test_values_that_cannot_be_stored_or_are_large_become_texts() -> None:
    tapping = Tapping()
    tapping.tap("in")
    tapping.send("in", Batch([len, b"x" * VALUE_MAX, [[b"x" * 100] * 1_000], Awkward(), "fine"]))
    (tapped,) = tapping.sent()
    large = "too large to show>"
    assert values(tapped) == [repr(len), f"<bytes: {large}", f"<list: {large}", "<Awkward>", "fine"]


def test_bytes_are_bounded() -> None:
    tapping = Tapping()
    tapping.tap("in")
    tapping.send("in", Batch([b"x" * (VALUE_MAX - 1_000)] * ROWS_MAX))
    (tapped,) = tapping.sent()
    assert sum(row.size for row in tapped.rows) <= BYTES_MAX + VALUE_MAX
    assert tapped.passed == ROWS_MAX


def test_keys_that_raise_cost_no_more_than_their_records() -> None:
    tapping = Tapping()
    tapping.tap("in", 1)
    tapping.send("in", Batch([1, 2], keys=[Awkward(), 1]))
    tapping.send("in", Batch([3], keys=[1]))
    assert [values(tapped) for tapped in tapping.sent()] in ([[3]], [[2]])


@pytest.mark.parametrize("step", ["in", "halves", "key", "out", "odd"])
def test_a_closed_worker_forgets_its_taps(step: str) -> None:
    tapping = Tapping()
    tapping.tap(step)
    tapping.worker.close()
    assert not any(node.taps for node in tapping.graph.executor._nodes)
