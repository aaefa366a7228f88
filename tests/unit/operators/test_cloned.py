"""`cloned`: every stream gets every record, as it came."""

from __future__ import annotations

from functools import partial

import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Epoch, PartFinished, PartOpened
from malstrom_py.operators.branching import Cloned
from tests.unit.operators.stepping import Stepped


@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_stream_gets_the_same_batch_and_all_control_messages_once(n: int) -> None:
    step = Stepped(partial(Cloned, n=n), ports=n, timed=True)
    batch = Batch([1, 2], keys=["a", "b"], timestamps=[7, 8], part="p")
    step.push(PartOpened("p"), batch, Epoch(8), PartFinished("p"), Epoch(MAX_EPOCH))
    for port in range(n):
        assert step.messages(port) == [PartOpened("p"), batch, Epoch(8), PartFinished("p"), Epoch(MAX_EPOCH)]
        assert step.batches(port)[0] is batch
    assert step.counters.rows_out == [2] * n
