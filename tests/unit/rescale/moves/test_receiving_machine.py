"""The receiving side of a region, two workers, 0 and 1; slot 1 moves from 0 to 1 unless said.

Each rule has a wrong machine that a run of tests/simulation/protocol_model shows; here is what these runs do not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves import receiving_machine as re
from malstrom_py.rescale.moves.protocol import (
    Bye,
    ByesTaken,
    InBand,
    Marker,
    RescaleMove,
    SendReport,
    Shipped,
    StateChunk,
)
from malstrom_py.rescale.moves.receiving_machine import TRANSITIONS, ReceivingMachine, ReceivingPhase

MOVE = RescaleMove(1, (0, 1), (0, 1), (0, 1))
LEAVE = RescaleMove(1, (0, 1), (0,), (0, 0))


class Region:
    """A machine under test, and every machine that a test made: `check()` is called on all of them at its end."""

    made: list[ReceivingMachine]

    def __init__(self) -> None:
        self.made = []

    def __call__(
        self,
        worker: int = 1,
        *,
        exchanges: tuple[str, ...] = ("A",),
        feeds_exchanges: bool = False,
        members: tuple[int, ...] = (0, 1),
        table: tuple[int, ...] = (0, 0),
    ) -> ReceivingMachine:
        machine = ReceivingMachine(
            "R", worker, exchanges=exchanges, feeds_exchanges=feeds_exchanges, members=members, table=table
        )
        self.made.append(machine)
        return machine


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region()
    yield made
    for machine in made.made:
        machine.check()


def take(machine: ReceivingMachine, sender: int, message: InBand, exchange: str = "A") -> list[re.Effect]:
    return machine.handle(re.InBandTaken(exchange, sender, message))


def epoch(
    machine: ReceivingMachine, sender: int, time: int, *, idle: bool = False, exchange: str = "A"
) -> list[re.Effect]:
    return machine.handle(re.EpochTaken(exchange, sender, time, idle))


def marked(machine: ReceivingMachine, move: RescaleMove, **epochs: int) -> list[re.Effect]:
    """All markers of ``move``, in order, each before=after=5 unless said; the effects of the last."""
    effects: list[re.Effect] = []
    for sender in move.everyone:
        before, after = epochs.get(f"before{sender}", 5), epochs.get(f"after{sender}", 5)
        effects = take(machine, sender, Marker(move, before, after))
    return effects


PARCEL = StateChunk("R", 1, 0, (1,), {"1": b"state"})


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(-9, 9) | st.just(MAX_EPOCH), st.booleans()),
        max_size=30,
    )
)
def test_t3_a_receiver_waits_for_every_sender_idle_or_not(epochs: list[tuple[int, int, bool]]) -> None:
    machine = ReceivingMachine("R", 1, exchanges=("A",), feeds_exchanges=False, members=(0, 1, 2), table=(0,))
    reached, idle, merged = [MIN_EPOCH] * 3, [False] * 3, MIN_EPOCH
    for sender, time, at_rest in epochs:
        effects = epoch(machine, sender, time, idle=at_rest)
        machine.check()
        reached[sender], idle[sender] = max(time, reached[sender]), at_rest
        assert effects == ([re.Advance("A", min(reached))] if min(reached) > merged else [])
        merged = max(merged, min(reached))
        assert machine.frontier("A") == merged
        active = [at for at, rests in zip(reached, idle, strict=True) if not rests and at != MAX_EPOCH]
        assert machine.active("A") == min(active, default=None)


def test_r3_rows_are_not_blocked_by_a_marker(region: Region) -> None:
    machine = region(0)
    take(machine, 0, Marker(MOVE, 5, 5))
    assert machine.handle(re.RowsTaken("A", 0, 1, "new")) == [re.Pass("A", "new")]
    assert machine.handle(re.RowsTaken("A", 1, 0, "old")) == [re.Pass("A", "old")]


def test_all_transitions_lead_through_a_whole_move(region: Region) -> None:
    machine = region()
    phases = [machine.phase]
    for step in (Marker(MOVE, 5, 5), Marker(MOVE, 5, 5)):
        take(machine, len(phases) - 1, step)
        phases.append(machine.phase)
    machine.handle(re.StateTaken(PARCEL))
    assert [*phases, machine.phase] == [
        ReceivingPhase.STEADY,
        ReceivingPhase.MARKING,
        ReceivingPhase.MOVING,
        ReceivingPhase.STEADY,
    ]
    assert set(TRANSITIONS.values()) == set(ReceivingPhase)
    assert machine.moving_version == machine.version == 1


def test_r8_the_byes_of_all_leavers_are_one_report(region: Region) -> None:
    machine = region(0, table=(0, 0), members=(0, 1, 2))
    marked(machine, RescaleMove(1, (0, 1, 2), (0,), (0, 0)))
    assert [e for e in take(machine, 2, Bye()) if isinstance(e, SendReport)] == []
    assert SendReport(ByesTaken(1, 0, "A")) in take(machine, 1, Bye())


def marker(sender: int, version: int = 1, table: tuple[int, ...] = (0, 1)) -> re.InBandTaken:
    return re.InBandTaken("A", sender, Marker(RescaleMove(version, (0, 1), (0, 1), table), 5, 5))


MARKERS = (marker(0), marker(1))
STATE_OF_LEAVER = re.StateTaken(StateChunk("R", 1, 1, (1,)))
LEFT = (
    *(re.InBandTaken("A", sender, Marker(LEAVE, 5, 5)) for sender in (0, 1)),
    STATE_OF_LEAVER,
    re.InBandTaken("A", 1, Bye()),
)


@pytest.mark.parametrize(
    ("options", "before", "wrong", "said"),
    [
        (
            {"worker": 0, "members": (0,)},
            (),
            re.EpochTaken("A", 1, 3, False),
            "an epoch of worker 1, which is not a me",
        ),
        ({}, (), re.RowsTaken("A", 0, 1, "rows"), "rows of version 1, expected 0"),
        ({}, MARKERS[:1], re.RowsTaken("A", 0, 0, "rows"), "rows of version 0, expected 1"),
        ({}, MARKERS, re.StateTaken(StateChunk("R", 1, 0, (0,))), "not awaited"),
        ({}, MARKERS, re.StateTaken(StateChunk("R", 2, 0, (1,))), "another move"),
        ({}, (), re.InBandTaken("A", 0, Shipped(1)), "Shipped of version 1 at 0"),
        ({}, MARKERS[:1], marker(1, table=(1, 1)), "another move"),
        ({}, (), marker(0, version=2), "a marker of version 2 at 0"),
        ({}, MARKERS[:1], marker(0), "second marker of worker 0"),
        ({}, (), re.ShippingEnded(1), "nothing is shipped"),
        (
            {"worker": 0, "table": (0, 1)},
            LEFT,
            re.EpochTaken("A", 1, 9, False),
            "an epoch of worker 1, which is not a m",
        ),
    ],
    ids=[
        *("a joiner speaks before its marker", "no marker of this version", "old rows after the marker"),
        *("state of another slot", "state of another move", "Shipped of another version", "a second move"),
        *("a version is left out", "a second marker", "nothing was shipped", "an epoch after Bye"),
    ],
)
def test_r7_what_may_not_come_is_an_internal_error(
    options: dict[str, Any], before: tuple[re.Event, ...], wrong: re.Event, said: str, region: Region
) -> None:
    machine = region(**options)
    for event in before:
        machine.handle(event)
    with pytest.raises(InternalError, match=said):
        machine.handle(wrong)
