"""The queue of records that are held back: how a record is stored, and how rows leave."""

from __future__ import annotations

from typing import Any

import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.errors import CodecError
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.enrich.calls import Gathered, Held, encoded

CONTEXT = StepContext("test", "under-test")


def test_a_value_that_cannot_be_stored_is_told_with_its_key() -> None:
    with pytest.raises(CodecError, match="'under-test' for key 'b'"):
        encoded(Held("b", object(), 2), CONTEXT)


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
