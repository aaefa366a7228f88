"""The queue of records that are held back: how it is stored, and how the queues of several workers become one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import Epoch
from malstrom_py.errors import CodecError
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.enrich.queue import Gathered, Held, encoded, merged

CONTEXT = StepContext("test", "under-test")


def test_a_value_that_cannot_be_stored_is_told_with_its_key() -> None:
    with pytest.raises(CodecError, match="'under-test' for key 'b'"):
        encoded([Held("a", 1, 1), Held("b", object(), 2)], CONTEXT)


@st.composite
def queues(draw: st.DrawFn) -> list[list[Held | Epoch]]:
    """Queues of several workers that have had the same epochs: each holds those after the last that has left it."""
    times = sorted(draw(st.sets(st.integers(1, 20), max_size=4)))
    made: list[list[Held | Epoch]] = []
    for worker in range(draw(st.integers(1, 3))):
        passed = draw(st.integers(0, len(times)))
        queue: list[Held | Epoch] = []
        reached = times[passed - 1] if passed else 0
        for time in [*times[passed:], None]:
            for number in range(draw(st.integers(0, 2))):
                timestamp = reached + draw(st.integers(1, 10))
                queue.append(Held(f"{worker}-{draw(st.integers(0, 1))}", (len(queue), number), timestamp))
            if time is not None:
                queue.append(Epoch(time))
                reached = time
        made.append(queue)
    return made


@given(pieces=queues())
def test_merged_queues_lose_nothing_keep_their_order_and_let_no_record_come_behind_its_epoch(
    pieces: list[list[Held | Epoch]],
) -> None:
    whole: list[Held | Epoch] = []
    for piece in pieces:
        whole = merged(whole, piece)
    records = [entry for entry in whole if isinstance(entry, Held)]
    for piece in pieces:
        own = [entry for entry in piece if isinstance(entry, Held)]
        assert [entry for entry in records if entry in own] == own
    assert len(records) == sum(isinstance(entry, Held) for piece in pieces for entry in piece)
    epochs = [entry.time for entry in whole if isinstance(entry, Epoch)]
    assert epochs == sorted({entry.time for piece in pieces for entry in piece if isinstance(entry, Epoch)})
    reached = 0
    for entry in whole:
        if isinstance(entry, Epoch):
            reached = entry.time
        else:
            assert entry.timestamp is not None
            assert entry.timestamp > reached


class Sent:
    """An outlet that keeps batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def send(self, message: Any, port: int = 0) -> None:
        self.batches.append(message)


def test_rows_leave_as_one_batch_that_is_timed_as_a_whole() -> None:
    sent: Any = Sent()
    rows = Gathered(sent)
    for timestamp in (1, 2, None, 3):
        rows.add(Held("a", None, timestamp), "value")
    rows.send()
    rows.send()
    assert [(len(batch), batch.timestamps) for batch in sent.batches] == [(2, [1, 2]), (1, None), (1, [3])]
