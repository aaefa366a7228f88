"""The keys that leave are found ahead of the cut, once in a rescale, and are those of the cut (R4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import AnyOf, Interrogate, every_key
from malstrom_py.workers.engine import state_transfer as shipping
from malstrom_py.workers.engine.state_transfer import KeyedSteps
from tests.unit.workers.shipped import SLOTS, Heard, Kept, Region, keys_in, slots_of

if TYPE_CHECKING:
    import pytest


def seen(region: Region, keys: Sequence[Any], values: Iterable[Any]) -> None:
    """Records arrive on an exchange during a rescale."""
    values = list(values)
    region.shipping.saw("in", Batch(values, keys=list(keys)))
    region.push(keys, values)


def asked(region: Region) -> list[Interrogate]:
    heard = [operator.heard for operator in region.operators if isinstance(operator, Heard)]
    return [message for message in heard[0] if isinstance(message, Interrogate)]


def test_r4_keys_that_come_and_go_between_the_order_and_the_cut_are_as_they_are_at_the_cut() -> None:
    region = Region(Kept).push([1, 9, 2, 17], "abcd")
    region.shipping.prepare()
    assert (region.shipping.watching, region.shipping.indexing) == (True, True)
    seen(region, [25, 1, 10], "efg")
    region.shipping.index()
    assert not region.shipping.indexing
    seen(region, [33, 25], "hi")
    del region.values()[9]
    region.values()[17] = None
    ((_, parcel),) = region.ship({1: 1})
    assert keys_in(parcel) == {1, 25, 33}
    assert {key for key, value in region.values().items() if value is not None} == {2, 10}
    assert region.shipping.keys_moved == 3


def test_r4_the_moves_of_a_rescale_ask_for_all_keys_once_and_then_for_those_that_may_leave() -> None:
    region = Region(Kept, Heard).push(range(40), ["x"] * 40)
    region.shipping.prepare()
    first = region.ship({1: 1})
    region.shipping.prepare()
    seen(region, [42], "y")
    second = region.ship({2: 1, 3: 1}, version=2)
    assert [keys_in(parcel) for _, parcel in first + second] == [
        set(range(1, 40, 8)),
        {*range(2, 40, 8), *range(3, 40, 8), 42},
    ]
    everything, *others = asked(region)
    assert everything.predicate is every_key
    assert [sorted(other.predicate.keys) for other in others if isinstance(other.predicate, AnyOf)] == [
        [*range(1, 40, 8)],
        [*range(2, 40, 8), 42],
        [*range(3, 40, 8)],
    ]
    region.shipping.forget()
    assert not region.shipping.watching
    region.push([4], "z").ship({4: 1}, version=3)
    assert asked(region)[-1].predicate is every_key


def test_r4_keys_are_put_into_the_index_in_portions_and_the_rest_when_it_is_needed() -> None:
    portions: list[int] = []

    def counted(keys: Sequence[Any]) -> list[int]:
        portions.append(len(keys))
        return slots_of(keys)

    region = Region(Kept, keys_indexed=10).push(range(32), ["x"] * 32)
    region.shipping._keyed = [KeyedSteps([0], counted, ("in",))]
    region.shipping.prepare()
    region.shipping.index()
    seen(region, [5, 100], "yz")
    parcels = region.ship({5: 1, 4: 1})
    assert portions == [10, 1, 10, 10, 2]
    assert [keys_in(parcel) for _, parcel in parcels] == [{4, 12, 20, 28, 5, 13, 21, 29, 100}]


def test_r4_a_slot_that_came_and_leaves_again_in_one_rescale_has_the_keys_that_came() -> None:
    giver, region = Region(Kept, worker=1).push([1, 9], "ab"), Region(Kept).push([2], "c")
    region.shipping.prepare()
    region.ship({2: 1})
    ((_, parcel),) = giver.ship({1: 0})
    region.shipping.install(parcel)
    ((_, back),) = region.ship({1: 1}, version=2)
    assert keys_in(back) == {1, 9}


def test_an_index_that_keys_without_state_have_made_large_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "_INDEX_SPARE", 10)
    region = Region(Kept, Heard).push([1, 2], "ab")
    region.shipping.prepare()
    region.shipping.saw("in", Batch(["x"] * 12, keys=list(range(100, 112))))
    region.shipping.prepare()
    assert len(asked(region)) == 1
    region.shipping.saw("in", Batch(["x"] * 12, keys=list(range(200, 212))))
    region.shipping.prepare()
    assert len(asked(region)) == 2
    assert [keys_in(parcel) for _, parcel in region.ship({1: 1})] == [{1}]


@given(st.data())
def test_r4_an_index_brought_up_to_date_finds_what_asking_for_all_would(data: st.DataObject) -> None:
    keys = st.lists(st.integers(0, 40), max_size=20)
    first = data.draw(keys)
    region = Region(Kept, keys_first=3, keys_indexed=data.draw(st.integers(1, 9))).push(first, map(str, first))
    region.shipping.prepare()
    left = set(range(SLOTS))
    version = 0
    while left:
        for _ in range(data.draw(st.integers(0, 3))):
            region.shipping.index()
            come = [key for key in data.draw(keys) if key % SLOTS in left]
            seen(region, come, map(str, come))
            for gone in data.draw(keys):
                region.values().pop(gone, None)
        slots = set(data.draw(st.lists(st.sampled_from(sorted(left)), min_size=1)))
        expected = {key for key in region.values() if key % SLOTS in slots}
        version += 1
        parcels = region.ship(dict.fromkeys(slots, 1), version=version)
        assert set().union(*(keys_in(parcel) for _, parcel in parcels)) == expected
        assert sorted(slot for _, parcel in parcels for slot in parcel.slots) == sorted(slots)
        left -= slots
        region.shipping.prepare()
    assert region.values() == {}
