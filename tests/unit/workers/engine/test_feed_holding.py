"""A region is fed only while neither an output nor a step that holds records back has a backlog (F2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from malstrom_py.rescale.moves.receiving_machine import ReceivingMachine
from malstrom_py.testing import VirtualClock
from malstrom_py.workers.engine.region_input import RegionInput
from malstrom_py.workers.engine.state_transfer import StateTransfer


@dataclass
class Limit:
    backlogged: bool = False


def feed(exits: list[Any], holding: list[Any]) -> RegionInput:
    graph: Any = None

    def pass_barrier(message: object, frontiers: object, let_in: object) -> None:
        raise AssertionError

    machine = ReceivingMachine("R", 0, exchanges=(), feeds_exchanges=bool(exits), members=(0,), table=(0,))
    shipping = StateTransfer("R", 0, graph, [])
    return RegionInput(
        graph,
        [],
        [0],
        exits,
        pass_barrier,
        holding,
        machine=machine,
        shipping=shipping,
        letters=[],
        clock=VirtualClock(),
    )


@pytest.mark.parametrize(
    ("full_exit", "full_step", "is_open", "outputs_open"),
    [
        (False, False, True, True),
        (False, True, False, True),
        (True, False, False, False),
        (True, True, False, False),
    ],
)
def test_f2_what_is_held_back_may_leave_where_nothing_may_come_in(
    full_exit: bool, full_step: bool, is_open: bool, outputs_open: bool
) -> None:
    region = feed([Limit(), Limit(full_exit)], [Limit(full_step), Limit()])
    assert (region.open, region.sources_open, region.outputs_open) == (is_open, is_open, outputs_open)


def test_f2_a_region_opens_again_when_there_is_room() -> None:
    step = Limit(True)
    region = feed([], [step])
    assert not region.open
    step.backlogged = False
    assert region.open
