"""The order in which a worker packs the states of its steps ahead of a barrier, and when it reports (S2)."""

from __future__ import annotations

from malstrom_py.codec import Codec
from malstrom_py.data.messages import AbsBarrier
from malstrom_py.operators.keyed import StatefulOperator
from malstrom_py.rescale.moves.protocol import PackAhead, PackedAhead
from malstrom_py.state.keyed_state import KeyedState
from malstrom_py.testing import CapturingPersistenceBackend, VirtualClock
from malstrom_py.workers.engine.snapshot_capture import PackingAhead


class Step(StatefulOperator):
    """A step with this state, and nothing else."""

    def __init__(self, state: KeyedState) -> None:
        self.state = state


def state_of(keys: int) -> KeyedState:
    state = KeyedState("count", Codec())
    state.track(lambda keys: [key % 4 for key in keys])
    state.values = dict.fromkeys(range(keys), 1)
    return state


def change(state: KeyedState, first: int, keys: int) -> None:
    changed = [key % len(state.values) for key in range(first, first + keys)]
    state.note(changed)
    state.values.update(dict.fromkeys(changed, first))


def packing(**states: KeyedState) -> PackingAhead:
    return PackingAhead(PackAhead("s0", None), {name: Step(state) for name, state in states.items()}, 10)


def turns(ahead: PackingAhead, hot: KeyedState, keys: int) -> int:
    """Change ``keys`` of ``hot`` between the turns of ``ahead`` until that reports; return how many turns it took."""
    report, count = None, 0
    while report is None:
        if not ahead.comes_first():
            change(hot, keys * count, keys)
        report = ahead.next(3) if ahead.under_way else None
        count += 1
    assert report == PackedAhead("s0", 3)
    return count


def test_s2_what_changes_while_a_larger_state_is_packed_is_packed_before_the_report() -> None:
    hot, large = state_of(200), state_of(5000)
    ahead = packing(hot=hot, large=large)
    assert turns(ahead, hot, 4) > 500
    assert hot.changes.count <= 20
    assert large.changes.count == 0


def test_s2_little_is_left_while_other_workers_are_waited_for_and_batches_are_not_kept_from_their_turns() -> None:
    hot = state_of(2000)
    ahead = packing(hot=hot)
    turns(ahead, hot, 4)
    for number in range(300):
        assert not ahead.comes_first()
        change(hot, 8 * number, 8)
        if ahead.under_way:
            assert ahead.next(3) is None, "it has reported"
        assert hot.changes.count <= 80


def test_s2_a_step_whose_barrier_has_passed_is_not_packed_while_the_barrier_passes_others() -> None:
    first, second = state_of(200), state_of(200)
    ahead = packing(first=first, second=second)
    turns(ahead, first, 0)
    first.artefact(AbsBarrier("s0", CapturingPersistenceBackend(), None))
    for number in range(100):
        ahead.comes_first()
        change(first, 8 * number, 8)
        change(second, 8 * number, 8)
        if ahead.under_way:
            ahead.next(3)
    assert first.changes.count == 200, "all belong to the next snapshot"
    assert second.changes.count <= 80


def test_s2_a_turn_packs_as_long_as_the_rest_of_it_took_but_not_long() -> None:
    class Step(VirtualClock):
        """Every look at it takes a millisecond."""

        def monotonic_s(self) -> float:
            self.advance(0.001)
            return super().monotonic_s()

    def packed_in(turn_s: float) -> int:
        state, clock = state_of(5000), Step()
        ahead = packing(state=state)
        ahead.next(3)  # lists them
        clock.advance(10.0)
        before = clock.monotonic_s()
        ahead.take_turn(3, clock, before - turn_s)
        return round(1e3 * (clock.monotonic_s() - before)) - 2

    assert packed_in(0.0) <= 2
    assert 5 <= packed_in(0.006) <= 8
    assert 19 <= packed_in(5.0) <= 22
