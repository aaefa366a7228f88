"""Sources in memory and from a generator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.errors import PlanError, SourceError
from malstrom_py.sources.base import Part
from malstrom_py.sources.generator import Generator
from tests.unit.sources.reading import read_source


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
    with pytest.raises(PlanError, match=r"sources\.Generator: parts"):
        Generator(breaks_at_five, parts=parts)


@pytest.mark.parametrize("items", [None, 7])
def test_what_is_no_iterable_is_refused(items: Any) -> None:
    with pytest.raises(PlanError, match=r"sources\.Memory takes an iterable of items, got"):
        sources.Memory(items)


def test_the_text_tells_how_many_and_no_item() -> None:
    assert repr(sources.Memory(["secret"] * 3, parts=2)) == "Memory(3 items in 2 partitions)"


FIRST = Part("0")


def breaks_at_five(part: int, start: int) -> Iterator[int]:
    yield from range(start, 5)
    raise ValueError("broken pipe of the user")


def test_every_part_is_read_by_its_number() -> None:
    source = Generator(lambda part, start: iter([(part, start)]), parts=3)
    assert source.list_parts() == ["0", "1", "2"]
    assert read_source(source) == [(0, 0), (1, 0), (2, 0)]


def test_no_more_items_are_taken_than_are_polled() -> None:
    taken: list[int] = []

    def endless(part: int, start: int) -> Iterator[int]:
        for number in count(start):
            taken.append(number)
            yield number

    part = Generator(endless).build_part(FIRST, None)
    part.poll(3)
    assert taken == [0, 1, 2]
    assert not part.is_finished()


def test_what_came_before_an_error_is_delivered_before_it() -> None:
    part = Generator(breaks_at_five).build_part(FIRST, None)
    assert part.poll(3) == [0, 1, 2]
    assert part.poll(3) == [3, 4]
    assert part.snapshot() == 5
    with pytest.raises(SourceError) as raised:
        part.poll(3)
    assert isinstance(raised.value.__cause__, ValueError)
    message = str(raised.value)
    assert "partition 0 after item 5" in message
    assert f"breaks_at_five at {Path(__file__)}:{breaks_at_five.__code__.co_firstlineno + 2}" in message
    assert not part.is_finished()


def test_an_error_is_raised_again_when_it_is_polled_again() -> None:
    part = Generator(breaks_at_five).build_part(FIRST, 5)
    for _ in range(2):
        with pytest.raises(SourceError, match="after item 5: ValueError"):
            part.poll(1)


def test_a_function_that_gives_no_iterator_is_told_as_such() -> None:
    not_iterable: Any = lambda part, start: 5  # noqa: E731
    with pytest.raises(SourceError, match="TypeError"):
        Generator(not_iterable).build_part(FIRST, None).poll(1)


def test_the_iterator_is_closed_with_the_part() -> None:
    closed = []

    def watched(part: int, start: int) -> Iterator[int]:
        try:
            yield from count(start)
        finally:
            closed.append(part)

    part = Generator(watched).build_part(FIRST, None)
    part.poll(1)
    part.close()
    assert closed == [0]


def test_an_error_while_closing_names_the_function() -> None:
    def stubborn(part: int, start: int) -> Iterator[int]:
        try:
            yield from count(start)
        finally:
            raise KeyError("left open")

    part = Generator(stubborn).build_part(FIRST, None)
    part.poll(1)
    with pytest.raises(SourceError, match="stubborn"):
        part.close()


def test_what_cannot_be_called_is_refused() -> None:
    not_callable: Any = [1, 2, 3]
    with pytest.raises(PlanError, match="list"):
        Generator(not_callable)
