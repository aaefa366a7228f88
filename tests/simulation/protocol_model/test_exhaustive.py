"""Every interleaving of tiny instances ends as it should; `make exhaustive` searches larger ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malstrom_py.errors import InternalError
from malstrom_py.rescale.moves import sending_machine as sm
from malstrom_py.rescale.moves.protocol import Bye, PartHandedOver
from tests.simulation.protocol_model import exhaustive
from tests.simulation.protocol_model.exhaustive import INSTANCES, Broken, Instance, search
from tests.simulation.protocol_model.forking import ForkingWorld, cloned
from tests.simulation.protocol_model.runs import play
from tests.simulation.protocol_model.scenarios import SHRINKS
from tests.simulation.protocol_model.setups import Machines
from tests.simulation.protocol_model.shapes import SHAPES

SMALL = [instance for instance in INSTANCES if instance.small]


@pytest.mark.long(but=("chain 1 -> 2, one record",))
@pytest.mark.timeout(300)
@pytest.mark.parametrize("instance", SMALL, ids=lambda instance: instance.name)
def test_every_interleaving_ends_as_it_should(instance: Instance, capsys: pytest.CaptureFixture[str]) -> None:
    found = search(instance)
    with capsys.disabled():
        print(f"\n{instance.name}: {found.states:,} states, {found.ends} ends, complete: {found.complete}")
    assert found.complete
    assert found.ends >= 1


@pytest.mark.long
def test_a_wrong_schedule_is_told_action_by_action(monkeypatch: pytest.MonkeyPatch) -> None:
    class ForgetfulWorld(ForkingWorld):
        """A world that drops every Bye."""

        def put(self, key: object, item: object) -> None:
            if not isinstance(item, Bye):
                super().put(key, item)  # type: ignore[arg-type]

    monkeypatch.setattr(exhaustive, "ForkingWorld", ForgetfulWorld)
    shrinks = next(instance for instance in SMALL if instance.wanted == (0,))
    with pytest.raises(Broken, match=r"(?s)Violation: .*'request'.*the end"):
        search(shrinks)


def test_a_search_that_runs_out_of_time_says_so() -> None:
    assert not search(INSTANCES[-1], deadline=0.0).complete


def test_a_fork_leaves_what_it_came_from_as_it_was() -> None:
    world = ForkingWorld(SMALL[0].setup, SMALL[0].wanted, {})
    before = world.key()
    for action in world.actions():
        world.fork().act(action)
    for thing in (*world.workers.values(), *world.channels.values(), world.oracle, world.coordinator):
        vars(thing).pop("interned", None)
    assert world.key() == before
    assert cloned(world.workers[0]) is not world.workers[0]


# Seeds that found something.


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
