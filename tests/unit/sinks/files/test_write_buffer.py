"""Pieces wait in order, per folder, within their bounds."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.sinks.files.encoding import BUFFER_BYTES_MAX, GROUP_ROWS, EncodedRows, WriteBuffer


def piece(folder: str, content: str, *, rows: int = 1, bytes: int = 10) -> EncodedRows[str]:
    return EncodedRows(folder, content, rows, bytes)


def merged(folder: str, contents: Sequence[str]) -> EncodedRows[str]:
    return EncodedRows(folder, "".join(contents), len(contents), len("".join(contents)))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=300), st.integers(1, 2000))
def test_what_is_taken_is_what_was_held_in_order(pieces: list[tuple[str, int]], group_bytes: int) -> None:
    held, written = WriteBuffer(merged), dict.fromkeys("ab", "")
    for folder, number in pieces:
        due = held.add(piece(folder, str(number)), group_bytes=group_bytes)
        if due is not None:
            written[due] += "".join(held.take(due))
    for folder in held:
        written[folder] += "".join(held.take(folder))
    assert written == {folder: "".join(str(n) for name, n in pieces if name == folder) for folder in "ab"}
    assert list(held) == []


def test_a_folder_is_due_by_its_bytes_or_its_rows() -> None:
    held = WriteBuffer(merged)
    assert held.add(piece("a", "x", bytes=99), group_bytes=100) is None
    assert held.add(piece("b", "x", bytes=99), group_bytes=100) is None
    assert held.add(piece("a", "x", bytes=1), group_bytes=100) == "a"
    assert held.take("a") == ["x", "x"]
    assert held.add(piece("b", "x", rows=GROUP_ROWS, bytes=0), group_bytes=100) == "b"


def test_beyond_the_bound_of_all_the_largest_is_due() -> None:
    held = WriteBuffer(merged)
    half = BUFFER_BYTES_MAX // 2
    assert held.add(piece("a", "x", bytes=half), group_bytes=BUFFER_BYTES_MAX) is None
    assert held.add(piece("b", "x", bytes=half - 1), group_bytes=BUFFER_BYTES_MAX) is None
    assert held.add(piece("c", "x", bytes=2), group_bytes=BUFFER_BYTES_MAX) == "a"
    held.take("a")
    assert held.add(piece("c", "x", bytes=2), group_bytes=BUFFER_BYTES_MAX) is None
    held.clear()
    assert held.add(piece("c", "x", bytes=BUFFER_BYTES_MAX - 1), group_bytes=BUFFER_BYTES_MAX) is None


def test_many_small_pieces_become_few() -> None:
    held = WriteBuffer(merged)
    for _ in range(10_000):
        held.add(piece("a", "x"), group_bytes=BUFFER_BYTES_MAX)
    assert len(held.take("a")) < 128
