"""`sources.Memory`: items dealt round-robin, each part in order, resumed from any position."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.errors import PlanError
from malstrom_py.sources.base import Part


def read(source: sources.Memory[Any], part: str, rows_max: int, state: Any = None) -> list[Any]:
    built = source.build_part(Part(part), state)
    rows: list[Any] = []
    while True:
        polled = built.poll(rows_max)
        assert len(polled) <= rows_max
        rows += polled
        if built.is_finished():
            return rows


@given(items=st.lists(st.integers(), max_size=30), parts=st.integers(1, 5), rows_max=st.integers(1, 7))
def test_items_are_dealt_round_robin_and_keep_their_order(items: list[int], parts: int, rows_max: int) -> None:
    source = sources.Memory(items, parts=parts)
    assert source.list_parts() == [str(n) for n in range(parts)]
    assert [read(source, part, rows_max) for part in source.list_parts()] == [items[n::parts] for n in range(parts)]


@given(items=st.lists(st.integers(), max_size=20), rows_max=st.integers(1, 7), polls=st.integers(0, 5))
def test_a_part_goes_on_where_its_snapshot_says(items: list[int], rows_max: int, polls: int) -> None:
    source = sources.Memory(items)
    part = source.build_part(Part("0"), None)
    before = [row for _ in range(polls) for row in part.poll(rows_max)]
    assert before + read(source, "0", rows_max, part.snapshot()) == items


@pytest.mark.parametrize(
    "items", [range(3), iter([0, 1, 2]), (n for n in range(3)), (0, 1, 2), {0: "a", 1: "b", 2: "c"}]
)
def test_any_iterable_will_do_and_is_taken_once(items: Any) -> None:
    job = mp.Job("a")
    stream = job.source("in", sources.Memory(items))
    assert mp.collect(stream) == mp.collect(stream) == [0, 1, 2]


def test_what_is_polled_is_not_the_list_of_the_user() -> None:
    items = [1, 2, 3]
    sources.Memory(items).build_part(Part("0"), None).poll(10).append(4)
    assert items == [1, 2, 3]


def test_a_source_without_items_ends() -> None:
    assert mp.collect(mp.Job("a").source("in", sources.Memory([], parts=3))) == []


@pytest.mark.parametrize("parts", [0, -1, 1.5, "2", None, True])
def test_parts_are_a_whole_number_above_0(parts: Any) -> None:
    with pytest.raises(PlanError, match=r"sources\.Memory: parts"):
        sources.Memory([1], parts=parts)


@pytest.mark.parametrize("items", [None, 7])
def test_what_is_no_iterable_is_refused(items: Any) -> None:
    with pytest.raises(PlanError, match=r"sources\.Memory takes an iterable of items, got"):
        sources.Memory(items)


def test_the_text_tells_how_many_and_no_item() -> None:
    assert repr(sources.Memory(["secret"] * 3, parts=2)) == "Memory(3 items in 2 parts)"
