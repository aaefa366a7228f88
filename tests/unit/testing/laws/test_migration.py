"""The law of migration reports its moves where they happen.

The wrong steps of `tests.laws.wrong_movers` show what it plays: each breaks only if keys move in chunks, back and
forth, with slots without keys, and to those who join.
"""

from __future__ import annotations

import pytest

from malstrom_py.data.messages import MAX_EPOCH, Acquire, DataMessage, Epoch, StateMessage
from malstrom_py.operators.aggregate import Count
from malstrom_py.operators.base import Outlet
from malstrom_py.testing import LawError, as_step
from malstrom_py.testing.laws import LAWS, Broken, Scenario, StepUnderTest
from malstrom_py.testing.laws.scenario import SlotMove
from malstrom_py.testing.laws.state_laws import migration


class Deaf(Count):
    """Ignores Acquire."""

    def on_control(self, message: StateMessage, out: Outlet) -> None:
        if isinstance(message, Acquire):
            out.forward(message)
        else:
            super().on_control(message, out)


def test_the_moves_are_told_where_they_happen() -> None:
    rows = [DataMessage(name[0], name) for name in ("c1", "d1", "b1", "c2")]
    moves = (SlotMove(0, 0, (None, None, None, 1)), SlotMove(2, 3, (None, None, 1, None), chunk=1))
    scenario = Scenario((*rows, Epoch(MAX_EPOCH)), moves=moves, slots={"a": 0, "b": 1, "c": 2, "d": 2})
    subject = StepUnderTest(as_step(Deaf), keyed=True)
    law = next(law for law in LAWS if law.check is migration)
    with pytest.raises(LawError) as caught:
        migration(subject, scenario, Broken(law.name, law.promise, subject, scenario))
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
