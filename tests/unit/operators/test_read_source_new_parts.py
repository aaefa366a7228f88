"""R13: new parts of a source that reads, and of one that stops."""

from __future__ import annotations

from functools import partial

import pytest

from malstrom_py import sources
from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.sources.base import Part
from tests.unit.operators.one_worker import OneWorker, positions, values_of


class ListedAgain(sources.Memory[int]):
    lists_again_every_s = 1.0


def add(worker: OneWorker, part: str) -> None:
    worker.call(partial(worker.source.add, parts=[(Part(part), None)]))


def test_r13_a_new_part_is_read_by_a_worker_without_parts() -> None:
    worker = OneWorker(ListedAgain([1, 2], parts=2)).open()
    assert not worker.source.finished
    add(worker, "1")
    worker.poll(10)
    worker.call(worker.source.stop)
    assert (values_of(worker.on_time), worker.epoch(), worker.source.finished) == ([2], MAX_EPOCH, True)


@pytest.mark.parametrize("parts", [(), ("0",)], ids=["joined and has nothing", "still reads"])
def test_r13_a_new_part_after_a_planned_stop_is_not_opened(parts: tuple[str, ...]) -> None:
    worker = OneWorker(ListedAgain([1, 2], parts=2))
    worker.source.will_stop()
    worker.open(*parts)
    has_finished = worker.source.finished
    assert has_finished is (not parts)
    add(worker, "1")
    assert worker.source.finished is has_finished, "nothing is open after the maximum epoch"
    assert worker.source.parts_left == list(parts)
    assert positions(worker)["1"] == [None, True]
    worker.call(worker.source.stop)
    assert (values_of(worker.on_time), worker.epoch()) == ([], MAX_EPOCH)
