"""The outputs of a step and its shadow are put beside each other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from malstrom_py.clock import SystemClock
from malstrom_py.codec.job_codec import Codec
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.workers.engine.shadowing import NEW, OLD, Output, Shadow, aligned


def outputs(text: str) -> list[Output]:
    return [Output(b"key", None, letter.encode()) for letter in text]


@pytest.mark.parametrize(
    ("old", "new", "pairs"),
    [
        ("abc", "abd", "aa bb cd"),
        ("abc", "bca", "ab bc ca"),  # as many, so one by one
        ("abcde", "ace", "aa b- cc d- ee"),
        ("ace", "abcde", "aa -b cc -d ee"),
        ("ab", "x", "ax b-"),
        ("", "ab", "-a -b"),
    ],
)
def test_outputs_in_pairs(old: str, new: str, pairs: str) -> None:
    made = aligned(outputs(old), outputs(new))
    shown = ["".join("-" if one is None else one.value.decode() for one in pair) for pair in made]
    assert shown == pairs.split()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_missing_in_a_long_list_is_all_that_differs(seed: int) -> None:
    draw = random.Random(seed)
    old = [Output(b"key", None, str(number).encode()) for number in range(draw.randrange(1, 3_000))]
    new = [output for output in old if draw.random() > 0.05]
    for one, other in ((old, new), (new, old)):
        pairs = aligned(one, other)
        assert [before for before, _ in pairs if before is not None] == one
        assert [now for _, now in pairs if now is not None] == other
        assert sum(before != now for before, now in pairs) == len(old) - len(new)


@pytest.mark.parametrize("seed", range(20))
def test_pairs_have_all_outputs_in_order(seed: int) -> None:
    draw = random.Random(seed)
    old, new = (outputs("".join(draw.choices("abc", k=draw.randrange(600)))) for _ in range(2))
    pairs = aligned(old, new)
    assert [before for before, _ in pairs if before is not None] == old
    assert [now for _, now in pairs if now is not None] == new


def test_long_lists_with_a_long_end_that_differs() -> None:
    old, new = outputs("a" * 200 + "b" * 300), outputs("a" * 200 + "c" * 10)
    pairs = aligned(old, new)
    assert len(pairs) == 500
    assert [one == other for one, other in pairs] == [True] * 200 + [False] * 300


def test_what_only_begins_alike() -> None:
    old = outputs("a" * 250)
    assert [one == other for one, other in aligned(old, old[:100])] == [True] * 100 + [False] * 150


class Plain:
    """An object that cannot be stored, whose text has its address."""

    def __init__(self, n: Any) -> None:
        self.n = n


class Slotted:
    """One without a dict of its attributes."""

    __slots__ = ("n",)

    def __init__(self, n: int) -> None:
        self.n = n


def column(values: Sequence[Any], kind: str | pa.DataType) -> ColumnBatch:
    return ColumnBatch(pa.RecordBatch.from_pydict({"x": pa.array(values, kind)}))


FLOATS, LISTS = ("float16", "float32", "float64"), pa.list_(pa.float32())
NAN = float("nan")


@pytest.mark.parametrize(
    ("old", "new", "different"),
    [
        (Batch([{0, 8}]), Batch([{8, 0}]), 0),
        (Batch([[{("x", frozenset([0, 8]))}]]), Batch([[{("x", frozenset([8, 0]))}]]), 0),
        (Batch([{0, 8}]), Batch([{8, 1}]), 1),
        (Batch([{1}]), Batch([{1.0}]), 1),
        (Batch([{1}]), Batch([frozenset([1])]), 1),
        (Batch([Plain(1)]), Batch([Plain(1)]), 0),
        (Batch([Plain(1)]), Batch([Plain(2)]), 1),
        (Batch([(Plain(1), 1)]), Batch([(Plain(1), 2)]), 1),
        (Batch([{"x": [Plain(1)]}]), Batch([{"x": [Plain(1)]}]), 0),
        (Batch([{"x": [Plain(1)]}]), Batch([{"x": [Plain(2)]}]), 1),
        (Batch([Plain(Plain(1))]), Batch([Plain(Plain(2))]), 1),
        (Batch([Plain({0, 8})]), Batch([Plain({8, 0})]), 0),
        (Batch([Plain("x" * 2_000 + "1")]), Batch([Plain("x" * 2_000 + "2")]), 1),
        (Batch([Slotted(1)]), Batch([Slotted(1)]), 0),
        (Batch([Slotted(1)]), Batch([Slotted(2)]), 1),
        (Batch([(print, "<a at 0x1>")]), Batch([(print, "<a at 0x2>")]), 1),
        *((column([0.0, NAN], kind), column([0.0, NAN], kind), 0) for kind in FLOATS),
        *((column([0.0, 1.0], kind), column([-0.0, 1.0], kind), 1) for kind in FLOATS),
        (column([[0.0], [NAN]], LISTS), column([[0.0], [NAN]], LISTS), 0),
        (column([[0.0], [1.0]], LISTS), column([[-0.0], [1.0]], LISTS), 1),
        (column([[0.0], [1.0]], LISTS), column([[0.0], [1.0]], LISTS), 0),
    ],
)
def test_what_is_equal_is_no_difference_and_what_is_not_is_one(old: Batch, new: Batch, different: int) -> None:
    messages: list[Any] = []
    operators: Any = [SimpleNamespace(counters=SimpleNamespace(calls=0), context=SimpleNamespace(codec=Codec()))] * 2
    shadow = Shadow(0, "step", (operators[0], operators[1]), ["out"], SystemClock(), messages)
    for side, batch in ((OLD, old), (NEW, new)):
        shadow.saw(side, batch, 0)
    shadow.compare(idle=True)
    ((_, found),) = messages
    assert (found.compared, found.different, found.failure) == (len(old), different, "")
