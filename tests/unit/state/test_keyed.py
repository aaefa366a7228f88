"""Keyed artefacts, and which keys a barrier writes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.errors import SnapshotError
from malstrom_py.state.artefact import Rows, artefact, by_slot, contents, is_delta, merged, newest, opened_chain
from malstrom_py.state.change_log import Changes, alike

KEYS = st.binary(min_size=1, max_size=3)
CHANGES = st.lists(st.dictionaries(KEYS, st.binary(max_size=4), max_size=6), max_size=4)


def slot_of(key: bytes) -> int:
    return key[0] % 3


def written(entries: dict[bytes, bytes], *, delta: bool, note: bytes = b"") -> bytes:
    keys = list(entries)
    return artefact(by_slot(list(map(slot_of, keys)), keys, list(entries.values())), delta=delta, note=note)


def read(data: bytes, slots: Any = None) -> dict[bytes, bytes]:
    return {key: entry for _, rows in contents(data, slots) for key, entry in zip(*rows, strict=True)}


SMALL = artefact({0: ([b"a", b"bc"], [b"1", b"22"]), 7: ([b"d"], [b"333"])}, delta=False, note=b"x")


def test_what_is_written_comes_back_by_slot() -> None:
    found: list[tuple[int, Rows]] = list(contents(SMALL))
    assert found == [(0, ([b"a", b"bc"], [b"1", b"22"])), (7, ([b"d"], [b"333"]))]
    assert list(contents(SMALL, {7, 9})) == [(7, ([b"d"], [b"333"]))]
    assert (is_delta(SMALL), opened_chain([SMALL])[0].note) == (False, b"x")


def test_an_artefact_may_be_empty() -> None:
    nothing = artefact({}, delta=True)
    assert (is_delta(nothing), list(contents(nothing))) == (True, [])


@given(base=st.dictionaries(KEYS, st.binary(min_size=1, max_size=4), max_size=8), changes=CHANGES)
def test_s2_a_chain_merged_says_what_the_chain_says(
    base: dict[bytes, bytes], changes: list[dict[bytes, bytes]]
) -> None:
    chain = [written(base, delta=False), *(written(change, delta=True) for change in changes)]
    expected = dict(base)
    for change in changes:
        expected = {key: entry for key, entry in {**expected, **change}.items() if entry}
    assert read(merged(chain)) == expected
    assert not is_delta(merged(chain))
    opened = opened_chain(chain)
    assert {key: entry for slot in range(3) for key, entry in newest(opened, slot).items()} == expected
    for cut in range(1, len(chain) + 1):
        assert read(merged([merged(chain[:cut]), *chain[cut:]])) == expected


def test_the_note_of_a_chain_is_its_last() -> None:
    chain = [written({b"a": b"1"}, delta=False, note=b"old"), written({}, delta=True, note=b"new")]
    assert opened_chain([merged(chain)])[0].note == b"new"


@pytest.mark.parametrize("chain", [[], [True], [False, False], [True, False], [False, True, False]])
def test_a_chain_is_one_full_artefact_and_deltas_behind_it(chain: list[bool]) -> None:
    with pytest.raises(SnapshotError, match="one full artefact followed by deltas"):
        merged([artefact({}, delta=delta) for delta in chain])


@given(st.binary(max_size=200))
def test_bytes_that_nobody_wrote_are_refused(data: bytes) -> None:
    for given_bytes in (data, b"mskeyed\x01" + data):
        with pytest.raises(SnapshotError):
            read(given_bytes)


@pytest.mark.parametrize(
    ("rows", "delta"),
    [
        ({1: ([b"a", b"a"], [b"1", b"2"])}, False),
        ({1: ([b"a"], [b""])}, False),
    ],
    ids=["a key twice", "a tombstone in full"],
)
def test_an_artefact_that_contradicts_itself_is_refused_though_its_checksums_are_right(
    rows: dict[int, Rows], delta: bool
) -> None:
    with pytest.raises(SnapshotError, match="holds a key twice, or one without state"):
        read(artefact(rows, delta=delta))


def test_what_a_delta_does_not_touch_is_copied_and_still_checked() -> None:
    base = bytearray(SMALL)
    base[-1] ^= 1  # in slot 7
    with pytest.raises(SnapshotError, match="the checksum of slot 7 is wrong"):
        merged([bytes(base), artefact({0: ([b"a"], [b"9"])}, delta=True)])


def changes(*noted: str) -> Changes:
    """Tracked from the committed snapshot "s1", with what was ``noted`` since."""
    made = Changes(lambda keys: [0] * len(keys))
    made.written("s1", None, None)
    made.note(noted, lambda: 10)
    return made


def test_a_set_that_would_grow_beyond_what_is_held_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malstrom_py.state.change_log.SPARE", 5)
    made = changes()
    made.note(range(9), lambda: 2)
    assert made.due("s1") == set(range(9))
    made.note(range(9, 10), lambda: 2)
    assert made.due("s1") is None
    made.note("a", lambda: 2)  # nothing is noted now
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
