"""Faults of the machines that the model has shown, each with the run that shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves import sending_machine as sm
from malstrom_py.rescale.moves.protocol import PartHandedOver
from tests.simulation.protocol_model.runs import play
from tests.simulation.protocol_model.scenarios import SHRINKS
from tests.simulation.protocol_model.setups import Machines
from tests.simulation.protocol_model.shapes import SHAPES


class FlushesOnceOnly(sm.SendingMachine):
    """As it was: what regions gather while parts are awaited is not sent before the switch."""

    def _part(self, part: PartHandedOver) -> list[sm.Effect]:
        return [effect for effect in super()._part(part) if not isinstance(effect, sm.FlushOutgoing)]


LARGE_BATCHES = replace(SHRINKS, shape=SHAPES["two stages"], batch_rows=4)
SCHEDULE = 11


def test_r2_rows_gathered_while_parts_are_awaited_leave_under_the_old_version() -> None:
    with pytest.raises(InternalError, match=r"rows of version \d, expected \d"):
        play(LARGE_BATCHES, SCHEDULE, Machines(switch=FlushesOnceOnly))
    play(LARGE_BATCHES, SCHEDULE)
