"""The outputs of a step and its shadow are put beside each other."""

from __future__ import annotations

import pytest

from malstrom_py.workers.engine.shadowing import Output, aligned


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


def test_long_lists_are_compared_one_by_one() -> None:
    old, new = outputs("a" * 200 + "b" * 300), outputs("a" * 200 + "c" * 10)
    pairs = aligned(old, new)
    assert len(pairs) == 500
    assert [one == other for one, other in pairs] == [True] * 200 + [False] * 300


def test_what_only_begins_alike() -> None:
    old = outputs("a" * 250)
    assert [one == other for one, other in aligned(old, old[:100])] == [True] * 100 + [False] * 150
