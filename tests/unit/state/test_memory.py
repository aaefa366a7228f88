"""How much state is in memory: what is counted, and what goes to disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from malstrom_py.codec import Codec
from malstrom_py.data.messages import AbsBarrier, AnyInMemory, InMemory
from malstrom_py.errors import CodecError, InternalError, PlanError
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.operators.stateful_op import Assigned
from malstrom_py.rescale.keys.key_hash import encode_key
from malstrom_py.state.artefact import entries_in
from malstrom_py.state.join_panes import JoinPanes
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.state.many_values import Defaulting
from malstrom_py.state.memory import State, StateMemory, StepMemory, footprint
from malstrom_py.testing import CapturingPersistenceBackend, OperatorTester
from malstrom_py.testing.disk import MemoryDisk


@pytest.mark.parametrize(
    ("memory", "expected"),
    [("4GB", 4 << 30), ("1.5 MiB", 3 << 19), ("2048k", 2 << 20), (" 3m ", 3 << 20), (1 << 20, 1 << 20)],
)
def test_memory_is_bytes_or_a_text(memory: int | str, expected: int) -> None:
    assert State(memory).memory_bytes == expected


@pytest.mark.parametrize("memory", ["much", "4 GB of it", "-4GB", "", 1000, True, None, 1.5e9])
def test_other_memory_is_refused(memory: Any) -> None:
    with pytest.raises(PlanError, match=r"mp\.State\(memory="):
        State(memory)


def test_a_folder_is_a_path() -> None:
    with pytest.raises(PlanError, match="must be a path"):
        State("4GB", folder=7)  # type: ignore[arg-type]


def test_keys_in_several_panes_of_a_join_count_once() -> None:
    panes, keys = JoinPanes(10), list(range(100))
    for start in range(0, 50, 10):
        panes.add(0, keys, keys, [start] * 100)
        panes.add(1, keys[50:], keys[50:], [start] * 50)
    panes.add(0, others := list(range(1_000, 1_300)), others, [70] * 300)
    assert abs(panes.keys_about - 400) < 40
    assert list(panes) == [*keys, *others]
    assert list(reversed(panes)) == [*others[::-1], *keys[:49:-1], *keys[49::-1]]
    assert panes.lack([7, 1_000, 2_000]) == [False, False, True]


def kept(limit: int) -> tuple[KeyedState, StateMemory]:
    state, memory = KeyedState("step", Codec()), StateMemory(limit, MemoryDisk, encode_key)
    state.memory = memory.keep(state)
    return state, memory


def added(state: KeyedState, keys: Any) -> None:
    """A batch of ``keys``, each of which gets a state."""
    keys = list(keys)
    state.bring(keys)
    for key in keys:
        state.values[key] = ["state of", key]
    state.settle()


def test_states_are_in_memory_while_there_is_room_and_each_is_in_one_place() -> None:
    state, memory = kept(100_000)
    for start in range(0, 4_000, 50):
        added(state, range(start, start + 50))
        assert memory.bytes_in_memory < 102_000 + 50 * 400
    assert state.count == 4_000 > 10 * len(state.values) > 1_000
    assert sorted(state.with_values()) == list(range(4_000))
    assert state.values_of([3_999, 7, 5_000]) == [["state of", 3_999], ["state of", 7], None]
    assert memory.figures["state_on_disk"] > 0
    memory.close()


def test_keys_that_batches_have_stay_in_memory() -> None:
    state, _ = kept(100_000)
    often = list(range(20))
    for start in range(1_000, 9_000, 50):
        added(state, [*often, *range(start, start + 50)])
    assert set(often) <= state.values.keys()


def test_keys_that_come_once_displace_no_key_that_came_again() -> None:
    state, memory = kept(100_000)
    often = list(range(100))
    added(state, range(1_000, 2_000))
    for _ in range(2):
        added(state, often)
    for key in range(2_000, 5_000):
        added(state, [key])
    assert set(often) <= state.values.keys()
    assert len(state.values) > 200
    assert state.count == 4_100
    memory.close()


def test_equal_keys_are_one_key_wherever_it_is() -> None:
    state, _ = kept(0)
    added(state, [1, "1", ("a", 2)])
    assert not state.values
    state.bring([True, ("a", 2.0)])
    assert state.values == {True: ["state of", 1], ("a", 2): ["state of", ("a", 2)]}
    assert {repr(key) for key in state.values} == {"1", "('a', 2)"}  # as in a dict, the first one stays
    assert state.count == 3


@dataclass(frozen=True)
class Own:
    name: str


def test_keys_whose_form_others_may_share_stay_in_memory() -> None:
    state, _ = kept(0)
    keys = [Own("a"), 1 << 70, 0.5, ("b", 1 << 64)]
    added(state, keys)
    assert list(state.values) == keys


def test_keys_that_cannot_be_on_disk_are_not_looked_at_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = kept(1_000)
    looked: list[Any] = []

    def can_be_cold(key: Any) -> bool:
        looked.append(key)
        return False

    monkeypatch.setattr("malstrom_py.state.memory.can_be_cold", can_be_cold)
    for number in range(1_000):
        added(state, [number + 0.5])
    assert len(looked) < 10 * 1_000


def test_a_state_that_cannot_be_stored_is_an_error_while_there_is_room() -> None:
    tester = OperatorTester(
        lambda stream: stream.stateful_map("keep", lambda key, n, state: (n, object())), keyed=True, checks=False
    )
    (operator,) = (one for one in tester._runner.operators.values() if isinstance(one, StatefulOperator))
    operator.keep_within(StateMemory(1 << 30, MemoryDisk, encode_key))
    with pytest.raises(CodecError, match="step 'keep'"):
        tester.send_local([("a", 1)]).step()


def test_a_state_that_is_dropped_is_dropped_on_disk() -> None:
    state, memory = kept(0)
    added(state, range(10))
    state.drop_values([3, 4])
    state.bring([5])
    del state.values[5]
    assert (state.count, state.values_of([3, 4, 5, 6])) == (7, [None, None, None, ["state of", 6]])
    state.drop_values(list(range(10)))
    assert (state.count, memory.figures["state_on_disk"], state.cold) == (0, 0, None)


def test_all_values_are_one_mapping() -> None:
    state, _ = kept(0)
    added(state, range(3))
    state.values["new"] = "in memory"
    whole: Any = state.whole()
    assert len(whole) == 4
    expected: dict[Any, Any] = {"new": "in memory", **{n: ["state of", n] for n in range(3)}}
    assert dict(whole.items()) == expected
    whole[1] = "changed"
    del whole[2]
    assert sorted(whole, key=str) == [0, 1, "new"]
    assert whole.get(2) is None
    assert whole[1] == "changed"
    state.settle()
    assert state.values_of([0, 1, 2, "new"]) == [["state of", 0], "changed", None, "in memory"]


def test_a_loop_over_all_values_sees_what_it_has_changed() -> None:
    state, _ = kept(0)
    added(state, range(3_000))
    state.bring(range(500))
    whole: Any = state.whole()
    for key, value in whole.items():
        whole[key] = [*value, "seen"]
        other = (7 * key + 1) % 3_000
        whole[other] = [*whole[other], "changed"]
    assert {len(value) for value in whole.values()} == {4}


def test_values_of_a_default_have_the_keys_that_they_have() -> None:
    state, _ = kept(0)
    state.values = Defaulting(list)
    added(state, "ab")
    whole = state.whole()
    assert ("a" in whole, "c" in whole, whole.get("b"), whole.get("c", "none")) == (
        True,
        False,
        ["state of", "b"],
        "none",
    )
    assert whole["c"] == []


@pytest.mark.parametrize("by", ["clear", "popitem"])
def test_all_values_are_dropped_with_few_scans(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[bytes] = []
    scan = MemoryDisk.scan

    def counted(disk: MemoryDisk, prefix: bytes, first: bytes = b"") -> Any:
        scans.append(prefix)
        return scan(disk, prefix, first)

    monkeypatch.setattr(MemoryDisk, "scan", counted)
    state, _ = kept(0)
    added(state, range(5_000))
    whole = Assigned(state.whole())
    if by == "clear":
        whole.clear()
    else:
        popped = dict(whole.popitem() for _ in range(5_000))
        assert popped == {key: ["state of", key] for key in range(5_000)}
    assert (state.count, len(whole), len(whole.changed)) == (0, 0, 5_000)
    assert len(scans) < 20


def test_each_key_comes_once_although_states_go_to_disk_meanwhile() -> None:
    state, _ = kept(0)
    added(state, range(2_000))
    state.bring(range(1_000))
    seen = []
    for key in state.whole():
        seen.append(key)
        if len(seen) % 300 == 0:
            state.settle()
    assert sorted(seen) == list(range(2_000))


def test_what_a_value_holds_is_counted() -> None:
    small, large = {"a": [1.5, "x"]}, {"a": [1.5, "x" * 10_000]}
    assert footprint(large) - footprint(small) == 9_999
    assert footprint(Own("x" * 500)) > 500
    assert footprint(dict.fromkeys(range(1000), "x" * 100)) > 150_000


def on_disk_of(state: KeyedState) -> StepMemory:
    assert state.memory is not None
    return state.memory


def asked(state: KeyedState, predicate: Any) -> set[Any]:
    found: set[Any] = set()
    state.interrogate(predicate, found)
    return found


def test_a_move_finds_the_keys_in_memory_and_takes_those_on_disk_by_their_slot() -> None:
    state, _ = kept(30_000)
    state.track(lambda keys: [key % 8 for key in keys])
    added(state, range(400))
    listed = InMemory()
    in_memory = asked(state, listed)
    assert in_memory == set(state.values) == asked(state, AnyInMemory(set(range(500))))
    state.bring([1, 2, 3])
    assert listed.brought == {1, 2, 3} - in_memory
    on_disk = set(range(400)).difference(state.values)
    taker, _ = kept(30_000)
    taker.track(lambda keys: [key % 8 for key in keys])
    for slot in range(8):
        while (piece := on_disk_of(state).collect_stored(slot, 100))[0]:
            on_disk_of(taker).acquire_stored(piece[1])
    assert (state.cold, set(taker.keys()), taker.values) == (None, on_disk, {})
    assert taker.values_of([max(on_disk)]) == [["state of", max(on_disk)]]


def test_what_moves_in_stored_form_is_noted_by_slot() -> None:
    (giver, _), (taker, _) = kept(0), kept(0)
    for state in (giver, taker):
        state.track(lambda keys: [key % 8 for key in keys])
    added(giver, range(40))
    chains = {state: [state.artefact(AbsBarrier("s1", CapturingPersistenceBackend()))] for state in (giver, taker)}
    for slot in range(4):
        on_disk_of(taker).acquire_stored(on_disk_of(giver).collect_stored(slot, 1 << 20)[1])
    assert (giver.changes.due("s1"), giver.changes.kept, giver.changes.count) == (set(), 0, 20)
    taker.bring([1, 2])
    assert taker.changes.due("s1") == {1, 2}, "what is not on disk is noted"
    for state, left in ((giver, range(4, 8)), (taker, range(4))):
        chains[state].append(state.artefact(AbsBarrier("s2", CapturingPersistenceBackend(), "s1")))
        assert len(chains[state][1]) < len(chains[giver][0]) / 1.5
        found = {entry.key for entry in entries_in(chains[state], Codec())}
        assert found == {key for key in range(40) if key % 8 in left}


def test_state_that_is_acquired_onto_other_state_is_our_bug() -> None:
    for limit in (0, 1 << 20):
        (giver, _), (taker, _) = kept(0), kept(limit)
        added(giver, [1, 5, 9])
        added(taker, [5])
        with pytest.raises(InternalError, match="state of key 5 was acquired, but is already here"):
            on_disk_of(taker).acquire_stored(on_disk_of(giver).collect_stored(0, 1 << 20)[1])


def test_the_keys_of_a_slot_are_taken_from_disk_without_a_look_at_the_others() -> None:
    looked = list[bytes]()

    class Watched(MemoryDisk):
        def scan(self, *prefixes: bytes, first: bytes = b"") -> Any:
            for entry in super().scan(*prefixes, first=first):
                looked.append(entry[0])
                yield entry

    state, memory = KeyedState("step", Codec()), StateMemory(0, Watched, encode_key)
    state.memory = memory.keep(state)
    state.track(lambda keys: [key % 50 for key in keys])
    added(state, range(1_000))
    assert on_disk_of(state).collect_stored(7, 1 << 20)[0] == 20
    assert len(looked) == 20


def test_nothing_goes_to_disk_while_a_batch_of_an_earlier_step_is_under_way() -> None:
    state, memory = kept(0)

    def batch() -> None:
        state.set_values(["a"], [1])
        state.expect(1)
        memory.during(lambda: None)  # of a later step
        state.settle()
        assert state.values == {"a": 1}

    memory.during(batch)
    state.settle()
    assert state.values == {}
