"""Users' objects may fail in repr, hash, text or attribute access: the error names the object as the cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import OperatorError, SourceError, shown
from malstrom_py.errors.text import describe_error, describe_function
from malstrom_py.sources.base import Part, SourcePart


@dataclass(frozen=True)
class WithoutHash:
    number: int

    def __hash__(self) -> int:
        raise ValueError("no hash")


@dataclass(frozen=True)
class WithoutRepr:
    number: int

    def __repr__(self) -> str:
        raise ValueError("no repr")


class WithoutText(OSError):
    def __str__(self) -> str:
        raise ValueError("no text")


class Anything:
    """Has every attribute there is."""

    def __getattr__(self, name: str) -> Any:
        return Anything()

    def __call__(self, value: int) -> int:
        return value


class Nothing:
    """Fails when it is asked for an attribute."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __call__(self, value: int) -> int:
        return value


def failing(*_: object) -> Any:
    raise ValueError("secret-4711")


def numbers(*values: int) -> mp.StreamBuilder[None, int]:
    return mp.Job("broken").source("in", sources.Memory(list(values)))


def test_a_key_whose_hash_raises_is_told_as_a_key_that_cannot_be_hashed() -> None:
    keyed = numbers(1).key_by("key", WithoutHash)
    with pytest.raises(OperatorError, match=r"'count': a key of type WithoutHash .*its __hash__ raised ValueError"):
        mp.collect(keyed.count("count"))
    with pytest.raises(OperatorError, match="'distinct': a key of type WithoutHash"):
        mp.collect(keyed.distinct("distinct"))


@pytest.mark.parametrize(
    ("key", "text"),
    [(WithoutRepr(1), "<WithoutRepr>"), (10**5000, "<int>"), ("x" * 1_000_000, f"'{'x' * 76}...")],
    ids=["no repr", "too long for a repr", "long"],
)
def test_a_key_is_shown_in_80_characters_whatever_it_is(key: object, text: str) -> None:
    assert shown(key) == text
    assert len(shown(key)) <= 80
    with pytest.raises(OperatorError) as caught:
        mp.collect(numbers(1).key_by("key", lambda _: key).stateful_map("map", failing))
    assert f"for key {text}: ValueError" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_an_error_without_text_is_told_by_its_type_and_goes_the_way_of_on_error() -> None:
    def mute(number: int) -> int:
        raise WithoutText

    assert describe_error(WithoutText()) == "WithoutText"
    stream = numbers(1).map("map", mute, on_error="dead-letter")
    assert mp.collect(stream) == []
    assert [letter.error for letter in mp.collect(stream.job.dead_letters("map"))] == ["WithoutText"]


@pytest.mark.parametrize("function", [Anything(), Nothing()], ids=["has all attributes", "raises for attributes"])
def test_a_callable_with_odd_attributes_can_be_a_step(function: Callable[[int], int]) -> None:
    assert describe_function(function) == type(function).__qualname__
    assert mp.collect(numbers(1, 2).map("map", function)) == [1, 2]


class OddSource:
    """Lists ``parts``, and cannot be shown."""

    def __init__(self, parts: object) -> None:
        self.parts = parts

    def __repr__(self) -> str:
        raise ValueError("no repr")

    def list_parts(self) -> list[Part]:
        return cast("list[Part]", self.parts)

    def build_part(self, part: Part, state: Any) -> SourcePart[int]:
        raise AssertionError("no part of it is opened")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[1]], "'in' lists a part of type list: .* must be a str.*OddSource.list_parts"),
        ([1], "'in' lists a part of type int"),
        (None, "'in' could not list its parts: TypeError"),
    ],
)
def test_parts_that_are_no_names_are_refused(parts: object, message: str) -> None:
    stream = mp.Job("odd").source("in", OddSource(parts))
    with pytest.raises(SourceError, match=message):
        mp.collect(stream)


def test_a_source_without_repr_is_explained_by_its_type() -> None:
    job = mp.Job("odd")
    job.source("in", OddSource([])).sink("out", sinks.Memory())
    assert "[OddSource]" in job.explain()


class Tracker:
    """An epoch tracker, and the generator that makes it, which finds the rows ``late`` late."""

    def __init__(self, late: object, epoch: object = 0) -> None:
        self.late = late
        self.epoch = cast("int", epoch)

    def tracker(self, unit: str) -> Tracker:
        return self

    def observe(self, timestamps: list[int]) -> list[int]:
        return cast("list[int]", self.late)

    def raise_to(self, epoch: int) -> None:
        """It does not judge by epochs."""

    def snapshot(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        """It keeps nothing."""


@pytest.mark.parametrize(
    "late", [[2], [-1], [1, 0], [0, 0], iter([0]), None, (0,), ["0"], [True]], ids=lambda late: repr(late)[:10]
)
def test_late_rows_that_are_none_are_refused(late: object) -> None:
    timed = numbers(1, 2).assign_timestamps("at", int)
    with pytest.raises(OperatorError, match=r"'epochs': observe did not return .*Tracker.observe at .*ascending"):
        mp.collect(timed.generate_epochs("epochs", Tracker(late))[0])


def test_late_rows_of_a_tracker_of_ones_own_are_parted_and_its_epoch_is_an_int() -> None:
    timed = numbers(1, 2, 3).assign_timestamps("at", int)
    on_time, late = timed.generate_epochs("epochs", Tracker([0, 2]))
    assert (mp.collect(on_time), mp.collect(late)) == ([2], [1, 3])
    with pytest.raises(OperatorError, match="'other': the tracker's epoch is not an int"):
        mp.collect(timed.generate_epochs("other", Tracker([], "1"))[0])


def test_the_text_of_a_partitioners_error_is_shown() -> None:
    keyed = numbers(1).key_by("key", str, partitioner=failing)
    keyed.count("count").sink("out", sinks.Memory())
    with pytest.raises(OperatorError, match=r"the partitioner failing .* failed: ValueError") as caught:
        mp.run(keyed.job, workers=2)
    assert "secret-4711" in str(caught.value)
