"""What `key_by` takes as a partitioner: something that can be bound to a number of slots, or a function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import partitioners, sinks, sources
from malstrom_py.builder.plan import Bindable, PartitionerLike


class Bound:
    """Puts every key into the slot of its length."""

    def __init__(self, slots: int, step: str) -> None:
        self.slots, self.step = slots, step

    def slots_of(self, keys: Sequence[Any]) -> list[int]:
        return [len(key) % self.slots for key in keys]


class ByLength:
    """A partitioner of a user's, as the protocol says and no more."""

    def __init__(self) -> None:
        self.bound: list[Bound] = []

    def bind(self, slots: int, *, step: str = "") -> Bound:
        self.bound.append(Bound(slots, step))
        return self.bound[-1]


def slot_of(key: str) -> int:
    return len(key)


WORDS = ["ant", "bee", "cat", "wasp", "deer", "horse"] * 20


def counted(partitioner: PartitionerLike | None, workers: int) -> dict[str, int]:
    job, out = mp.Job("a", slots=16), sinks.Memory()
    keyed = job.source("in", sources.Memory(WORDS, parts=2)).key_by("word", str, partitioner=partitioner)
    keyed.count("count").sink("out", out)
    mp.run(job, workers)
    return {key: counts[-1] for key, counts in out.by_key.items()}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("partitioner", [None, partitioners.stable_hash, slot_of, ByLength()])
def test_each_kind_brings_the_records_of_a_key_together(partitioner: PartitionerLike | None, workers: int) -> None:
    assert counted(partitioner, workers) == Counter(WORDS)


def test_it_is_bound_once_per_worker_to_the_slots_of_the_job_and_told_its_step() -> None:
    partitioner: Bindable = ByLength()
    assert isinstance(partitioner, ByLength)
    counted(partitioner, 3)
    assert [(bound.slots, bound.step) for bound in partitioner.bound] == [(16, "word")] * 3


@pytest.mark.parametrize("wrong", [lambda key: -1, lambda key: 16, lambda key: "1", lambda key: None, len("x").__add__])
def test_a_function_that_gives_no_slot_is_refused_where_it_is_used(wrong: Callable[[Any], int]) -> None:
    with pytest.raises(mp.MalstromError, match="'word'"):
        counted(wrong, 2)
