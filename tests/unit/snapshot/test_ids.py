"""Ids of snapshots sort by time, grow for any clock, and are never the same."""

from __future__ import annotations

import re

import pytest

from malstrom_py.snapshot.ids import fresh_snapshot_id, is_snapshot_id, made_at_s, next_snapshot_id

NEWEST = "20261122T042242999999Z-ffffffff"


def test_ids_sort_by_time_are_never_the_same_and_fit_file_names() -> None:
    ids = [fresh_snapshot_id(second) for second in (0.0, 0.5, 1e9, 1e9 + 0.000_001, 2e9)]
    assert sorted(ids) == ids
    assert fresh_snapshot_id(7.0) != fresh_snapshot_id(7.0)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", one) for one in ids)


@pytest.mark.parametrize("now_s", [0.0, made_at_s(NEWEST), made_at_s(NEWEST) + 1e-6, made_at_s(NEWEST) + 60])
def test_s3_the_next_id_is_larger_whatever_the_clock_says(now_s: float) -> None:
    following = next_snapshot_id(now_s, NEWEST)
    assert following > NEWEST
    assert following[:22] > NEWEST[:22]
    assert is_snapshot_id(following)


def test_a_clock_that_goes_on_is_what_an_id_tells() -> None:
    assert made_at_s(next_snapshot_id(2e9, NEWEST)) == 2e9
    assert made_at_s(next_snapshot_id(1e9, None)) == 1e9


@pytest.mark.parametrize(
    "text",
    ["", "latest", "20261122T042242123456Z", "20261322T042242123456Z-1a2b3c4d", f"{NEWEST}\n", f"../{NEWEST}", 7, None],
)
def test_what_is_no_id_is_not_taken_for_one(text: object) -> None:
    assert not is_snapshot_id(text)
