"""Which keys a barrier has to write: relative to its parent, sure only of what was committed, and bounded."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from malstrom_py.state.change_log import Changes, alike


def changes(*noted: str) -> Changes:
    """Tracked from the committed snapshot "s1", with what was ``noted`` since."""
    made = Changes(lambda keys: [0] * len(keys))
    made.written("s1", None, None)
    made.note(noted, 10)
    return made


def test_s2_everything_is_written_until_a_snapshot_of_this_start_is_committed() -> None:
    made = Changes(lambda keys: [0] * len(keys))
    assert made.due(None) is None
    made.note("a", 10)
    made.written("s1", None, None)
    assert made.due(None) is None


def test_s2_a_delta_holds_what_was_noted_since_its_parent() -> None:
    made = changes("a", "b")
    assert made.due("s1") == {"a", "b"}
    made.written("s2", "s1", {"a", "b"})
    made.note("c", 10)
    assert made.due("s2") == {"c"}


def test_s2_what_was_written_and_never_committed_is_written_again() -> None:
    made = changes("a")
    made.written("s2", "s1", {"a"})
    made.note("b", 10)
    assert made.due("s1") == {"a", "b"}
    made.written("s3", "s1", {"a", "b"})
    made.note("c", 10)
    assert (made.due("s1"), made.due("s3")) == ({"a", "b", "c"}, {"c"})


@pytest.mark.parametrize("parent", ["s0", "another", None])
def test_s2_another_parent_than_what_is_tracked_from_takes_all(parent: str | None) -> None:
    assert changes("a").due(parent) is None


def test_what_was_written_in_full_and_not_committed_is_written_in_full_again() -> None:
    made = changes("a")
    made.written("s2", None, None)
    assert made.due("s1") is None


def test_a_set_that_would_grow_beyond_what_is_held_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malstrom_py.state.change_log.SPARE", 5)
    made = changes()
    made.note(range(9), 2)
    assert made.due("s1") == set(range(9))
    made.note(range(9, 10), 2)
    assert made.due("s1") is None
    made.note("a", 2)  # nothing is noted now
    made.written("s2", "s1", None)
    assert made.due("s2") == set()


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([1, "a", b"b", None], True),
        ([(1, ("a", None)), (2, ())], True),
        ([1, 1.0], False),
        ([True], False),
        ([Decimal(1)], False),
        ([("a", (True,))], False),
        ([datetime(2026, 1, 1, tzinfo=UTC)], False),
        ([], True),
    ],
)
def test_keys_that_are_equal_are_alike_unless_there_are_types_that_equal_others(
    keys: list[Any], expected: bool
) -> None:
    assert alike(keys) is expected


def test_a_key_is_written_in_one_way_along_a_chain() -> None:
    made = changes()
    assert made.names([1, "a"], 2, full=True) == [1, "a"]
    assert made.names([2], 2, full=False) == [2]
    assert made.names([1.0], 2, full=False) is None  # the chain may have 1: it starts again
    assert made.names([1.0, True, 2], 2, full=True) == [1.0, 1.0, 2]
    found = made.names([1, 2.0, Decimal(3)], 2, full=False)
    assert found is not None
    assert list(map(type, found)) == [float, int, Decimal]


def test_names_that_would_outgrow_the_state_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malstrom_py.state.change_log.SPARE", 2)
    made = changes()
    made.names([1.5, 2.5, 3.5], 1, full=True)
    assert made.names([4.5, 5.5], 1, full=False) == [4.5, 5.5]
    assert made.names([6.5], 1, full=False) is None
    assert made.names([6.5], 1, full=True) == [6.5]
    assert made.names([7.5], 1, full=False) == [7.5]
