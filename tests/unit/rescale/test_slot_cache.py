"""The cache of slots: it answers right, asks once, and stays within its bounds."""

from __future__ import annotations

from malstrom_py.rescale.slots import KEY_BYTES_MAX, SlotCache


class Asked:
    """Finds a slot by counting the questions."""

    def __init__(self, size: int = 50) -> None:
        self.keys: list[object] = []
        self._size = size

    def __call__(self, key: object) -> tuple[int, int]:
        self.keys.append(key)
        return len(self.keys), self._size


def test_a_key_is_asked_about_once() -> None:
    asked = Asked()
    cache = SlotCache(asked)
    assert cache.slots_of(["a", "b", "a"]) == [1, 2, 1]
    assert cache.slots_of(["b", "a"]) == [2, 1]
    assert (cache.slot_of("a"), cache.slot_of("c")) == (1, 3)
    assert asked.keys == ["a", "b", "c"]


def test_equal_keys_of_different_types_are_one() -> None:
    asked = Asked()
    assert SlotCache(asked).slots_of([1, True, 1.0]) == [1, 1, 1]
    assert asked.keys == [1]


def test_a_full_cache_starts_anew() -> None:
    asked = Asked()
    cache = SlotCache(asked, keys_max=3)
    for key in range(10):
        cache.slot_of(key)
        assert 1 <= len(cache) <= 3
    assert asked.keys == list(range(10))
    assert cache.slot_of(9) == 10


def test_a_batch_of_more_keys_than_fit_is_answered_in_full() -> None:
    asked = Asked()
    cache = SlotCache(asked, keys_max=3)
    assert cache.slots_of(range(20)) == list(range(1, 21))
    assert len(cache) <= 3


def test_the_bytes_of_the_keys_are_bounded() -> None:
    cache = SlotCache(Asked(size=100), bytes_max=1000)
    for key in range(50):
        cache.slot_of(key)
        assert len(cache) <= 10


def test_a_huge_key_is_not_kept() -> None:
    asked = Asked(size=KEY_BYTES_MAX + 1)
    cache = SlotCache(asked)
    assert cache.slots_of(["huge", "huge"]) == [1, 2]
    assert len(cache) == 0
