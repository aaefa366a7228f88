"""Hot keys: named when they are too heavy for one worker, and change at a bound once only."""

from __future__ import annotations

from malstrom_py.metrics import HotKey
from malstrom_py.rescale.hot_keys import COOL, HOT_MAX, TARGET_BUSY, HotKeys


def key(share: float, busy: float, *, name: str = "'ann'", worker: int = 0) -> HotKey:
    return HotKey("by-user", name, share, busy, worker)


def test_a_key_is_hot_by_its_share_and_its_work() -> None:
    for share, busy, workers, hot in (
        (0.3, 0.9, 4, True),
        (0.2, 0.9, 4, False),
        (0.3, 0.5, 4, False),
        (0.9, TARGET_BUSY, 2, True),
        (1.0, 1.0, 1, False),
    ):
        begun, ended = HotKeys().update([key(share, busy)], workers=workers)
        assert (len(begun), ended) == (int(hot), []), (share, busy, workers)


def test_a_key_at_the_bound_changes_once() -> None:
    keys, seen = HotKeys(), []
    for share, busy in ((0.49, 0.9), (0.51, 0.9), (0.49, 0.9), (0.51, 0.69), (0.45, 0.6), (0.39, 0.9), (0.49, 0.9)):
        begun, ended = keys.update([key(share, busy)], workers=2)
        seen.append((len(begun), len(ended)))
    assert seen == [(0, 0), (1, 0), (0, 0), (0, 0), (0, 0), (0, 1), (0, 0)]
    assert COOL * 0.5 > 0.39


def test_a_key_that_is_not_measured_any_more_has_cooled_and_workers_count() -> None:
    keys = HotKeys()
    keys.update([key(0.4, 0.9)], workers=4)
    assert keys.update([], workers=4) == ([], [key(0.4, 0.9)])
    keys.update([key(0.4, 0.9)], workers=4)
    assert keys.update([key(0.4, 0.9)], workers=2)[1], "with fewer workers its share is fair"


def test_a_key_that_has_moved_is_the_same_key() -> None:
    keys = HotKeys()
    keys.update([key(0.6, 0.9)], workers=2)
    moved = [key(0.1, 0.1), key(0.5, 0.8, worker=1)]
    assert keys.update(moved, workers=2) == ([], [])
    assert keys.hot == [key(0.5, 0.8, worker=1)]


def test_the_number_of_hot_keys_is_bounded() -> None:
    keys = HotKeys()
    many = [key(0.5, 0.9, name=str(number)) for number in range(2 * HOT_MAX)]
    assert len(keys.update(many, workers=128)[0]) == len(keys.hot) == HOT_MAX
