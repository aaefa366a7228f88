"""The law of migration moves keys as a rescale does: a spy records the messages to each instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, Acquire, Collect, DataMessage, Epoch, StateMessage
from malstrom_py.operators.aggregate import Count
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.testing import LawError, as_step
from malstrom_py.testing.laws import LAWS, Broken, Scenario, StepUnderTest
from malstrom_py.testing.laws.scenario import SlotMove
from malstrom_py.testing.laws.state_laws import migration

Seen = list[Any]


class Spy(Count):
    """Counts, and records its messages: rows as their values, epochs as numbers, state as sets of keys."""

    seen: Seen

    def on_batch(self, batch: Batch, out: Outlet) -> None:
        self.seen += batch.values
        super().on_batch(batch, out)

    def on_epoch(self, epoch: Epoch, out: Outlet) -> None:
        self.seen.append(epoch.time)
        super().on_epoch(epoch, out)

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        before = self.state.keys()
        super().on_control(message, out)
        match message:
            case Collect():
                self.seen.append(("collect", "".join(message.keys)))
            case Acquire():
                self.seen.append(("acquire", "".join(sorted(self.state.keys() - before))))


def played(scenario: Scenario, *, factory: Callable[[StepContext], Spy] = Spy) -> tuple[bool, list[Seen]]:
    """Return whether state moved, and the messages to each instance. The first instance runs without moves."""
    seen: list[Seen] = []

    def build(context: StepContext) -> Spy:
        spy = factory(context)
        seen.append([])
        spy.seen = seen[-1]
        return spy

    subject = StepUnderTest(as_step(build), keyed=True)
    subject.kinds  # noqa: B018  builds one that is sent nothing
    seen.clear()
    return migration(subject, scenario, broken(subject, scenario)), seen


def broken(subject: StepUnderTest, scenario: Scenario) -> Broken:
    law = next(law for law in LAWS if law.check is migration)
    return Broken(law.name, law.promise, subject, scenario)


def row(name: str) -> DataMessage[str, str]:
    """Return a row with a unique value: the key and a number."""
    return DataMessage(name[0], name)


def moves(seen: Seen) -> Seen:
    """Return the relevant messages: without the last epoch, and without the queries after the last arrival."""
    return [what for what in seen if what != MAX_EPOCH][:-1]


END = Epoch(MAX_EPOCH)
SLOTS = {"a": 0, "b": 1, "c": 2, "d": 2}


def test_r5_rows_of_slots_under_way_wait_in_order_while_the_others_go_on() -> None:
    atoms = (row("a1"), row("b1"), row("a2"), row("b2"), row("a3"), row("b3"), END)
    held, (_, here, there) = played(Scenario(atoms, moves=(SlotMove(2, 5, (1, None, None, None)),), slots=SLOTS))
    assert held
    assert here[:5] == ["a1", "b1", ("collect", "a"), "b2", ("collect", "a")]
    assert there == [("acquire", "a"), "a2", "a3", MAX_EPOCH]


def test_r4_keys_leave_in_chunks_in_order_and_are_under_way_for_a_while() -> None:
    atoms = (row("a1"), row("c1"), row("d1"), row("b1"), row("b2"), row("b3"), row("d2"), END)
    move = SlotMove(3, 7, (1, None, 1, None), chunk=1, lag=2)
    _, (_, here, there) = played(Scenario(atoms, moves=(move,), slots=SLOTS))
    assert here[3:9] == [("collect", "a"), "b1", ("collect", "c"), "b2", ("collect", "d"), "b3"]
    assert there == [("acquire", "a"), ("acquire", "c"), ("acquire", "d"), "d2", MAX_EPOCH]


def test_r4_what_arrives_arrives_at_the_end_of_the_move_at_the_latest() -> None:
    atoms = (row("a1"), row("c1"), row("d1"), row("b1"), END)
    move = SlotMove(3, 4, (1, None, 1, None), chunk=1, lag=2)
    _, (_, here, there) = played(Scenario(atoms, moves=(move,), slots=SLOTS))
    assert here[3:7] == [("collect", "a"), "b1", ("collect", "c"), ("collect", "d")]
    assert there[:3] == [("acquire", "a"), ("acquire", "c"), ("acquire", "d")]


def test_r3_who_joins_has_passed_the_epoch_of_the_cut_alone() -> None:
    atoms = (row("a1"), Epoch(3), Epoch(5), row("a2"), Epoch(8), END)
    scenario = Scenario(atoms, owners=(0, 1, 0, 0), moves=(SlotMove(3, 3, (2, None, None, None)),), slots=SLOTS)
    _, (_, here, other, joiner) = played(scenario)
    assert joiner == [5, ("acquire", "a"), "a2", 8, MAX_EPOCH]
    assert other == [3, 5, 8, MAX_EPOCH]
    assert here == ["a1", 3, 5, ("collect", "a"), ("collect", "a"), 8, MAX_EPOCH]


def test_a_key_goes_back_to_where_it_was_and_a_joiner_is_gone_with_its_last_slot() -> None:
    atoms = (row("a1"), row("a2"), row("a3"), row("a4"), END)
    to = [SlotMove(place, place, (owner, None, None, None)) for place, owner in ((1, 1), (2, 0), (3, 1))]
    _, (_, here, first, second) = played(Scenario(atoms, moves=tuple(to), slots=SLOTS))
    assert [what for what in here if isinstance(what, str)] == ["a1", "a3"]
    assert moves(first) == [("acquire", "a"), "a2", ("collect", "a")]
    assert second == [("acquire", "a"), "a4", MAX_EPOCH]


def test_slots_begin_where_the_scenario_says_and_change_places_in_one_move() -> None:
    atoms = (row("a1"), row("b1"), row("a2"), row("b2"), END)
    scenario = Scenario(atoms, owners=(0, 1, 0, 0), moves=(SlotMove(2, 2, (1, 0, None, None)),), slots=SLOTS)
    _, (_, here, there) = played(scenario)
    assert [what for what in here if isinstance(what, str)] == ["a1", "b2"]
    assert [what for what in there if isinstance(what, str)] == ["b1", "a2"]


class Deaf(Spy):
    """Ignores Acquire."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if isinstance(message, Acquire):
            out.forward(message)
        else:
            super().on_control(message, out)


def test_the_moves_are_told_where_they_happen() -> None:
    atoms = (row("c1"), row("d1"), row("b1"), row("c2"), END)
    to = (SlotMove(0, 0, (None, None, None, 1)), SlotMove(2, 3, (None, None, 1, None), chunk=1))
    with pytest.raises(LawError) as caught:
        played(Scenario(atoms, moves=to, slots=SLOTS), factory=Deaf)
    assert caught.value.case.splitlines()[:9] == [
        "  input (key, value):",
        "       -- slots without keys move from instance 0 to 1",
        "     0  ('c', 'c1')",
        "     1  ('d', 'd1')",
        "       -- the keys ['c', 'd'] leave instance 0 for 1, 1 at a time",
        "     2  ('b', 'b1')",
        "       -- the keys ['c', 'd'] have arrived at instance 1, which processes the held rows",
        "     3  ('c', 'c2')",
        "     4  watermark MAX",
    ]
