"""Wrong protocols, and the search for a run in which the oracle sees each.

Run it: ``python -m tests.simulation.protocol_model.mutants``.

Only a `Violation` counts: what the oracle or the end of a run says, never an error of the wrong code itself.

Clauses that no whole job can show, so no wrong protocol of whole jobs breaks them:

- Between hand-over and marker a region is silent too, where a source feeds the same exchange (R2). In a job only dead
  letters are such an exchange, and they carry no epoch but the maximum one. The model has such exchanges with epochs.
- Nothing after ``Bye``, not even epochs (R8). No worker sends an epoch to one that is not a member of the new version.
- Keys that an earlier move of the rescale has brought are looked for in a later one (R4). No plan moves a slot twice in
  one rescale (R10); a test has a planner that does.
- Idle parts are raised before a switch gains parts (T2). A part that wakes later is raised to at most F(v).
- A source sends its epoch at a switch (R2). The marker has it; the next record or poll sends it too.
- Keys whose state is gone are left out of parcels (R4). A step gives no state for such a key.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.protocol_model import scenarios as sc
from tests.simulation.protocol_model import wrong_coordinators as co
from tests.simulation.protocol_model import wrong_copies as cp
from tests.simulation.protocol_model import wrong_regions as rg
from tests.simulation.protocol_model import wrong_senders as se
from tests.simulation.protocol_model import wrong_sources as so
from tests.simulation.protocol_model.oracle import Violation
from tests.simulation.protocol_model.runs import play, run
from tests.simulation.protocol_model.setups import Machines, Setup
from tests.simulation.searching import Found, first_seed, search
from tests.tree import ROOT

SEEDS = 300

RECORDED: dict[str, int] = json.loads((ROOT / "tests/simulation/protocol_model/recorded_seeds.json").read_text())
"""For each wrong protocol a seed at which the oracle sees it; this program has found them."""


@dataclass(frozen=True)
class Mutant:
    """A wrong protocol. ``scenario``: where random setups rarely meet it, seeds are schedules of this one."""

    machines: Machines
    scenario: Setup | None = None
    ahead: bool = False

    def caught(self, seed: int) -> str | None:
        """What the oracle says of this seed."""
        try:
            if self.scenario is None:
                run(seed, self.machines, steps_max=5_000, ahead=self.ahead)
            else:
                play(self.scenario, seed, self.machines, steps_max=5_000)
        except Violation as violation:
            return str(violation)
        except Exception:  # wrong code may raise other errors: the oracle has not found those
            return None
        return None


def _region(made: type[rg.Region], scenario: Setup | None = None) -> Mutant:
    return Mutant(Machines(region=made), scenario)


def _worker(made: Callable[..., object], scenario: Setup | None = None) -> Mutant:
    return Mutant(Machines(region=rg.Region, worker=made, switch=se.Switch), scenario)


def _coordinator(made: type[co.Coordinator], scenario: Setup | None = None) -> Mutant:
    return Mutant(Machines(region=rg.Region, switch=se.Switch, coordinator=made), scenario)


REGIONS = (
    rg.EpochNotHeld,
    rg.EpochHeldUntilMarkersOnly,
    rg.MovedSlotsNotFrozen,
    rg.NoCut,
    rg.CutOfFrontiersAfter,
    rg.CutIsTheMaximum,
    rg.FrontierGoesBack,
    rg.JoinerEmitsBeforeItsCut,
    rg.JoinerOwnsAtOnce,
    rg.OneInputAligned,
    rg.ShipsBeforeDrained,
    rg.RowsNotHeld,
    rg.ParcelInstalledBeforeTheCut,
    rg.EarlyParcelLost,
    rg.OpensBeforeStateIsHere,
    rg.NoWaitForShipped,
    rg.ShippedOfOneSender,
    rg.ShippedTooEarly,
    rg.DoneBeforeOpen,
    rg.LeaverDroppedAtTheCut,
    rg.LeaverNeverDropped,
    rg.FrontierIsTheMaximum,
    rg.IdleSendersLeftOut,
    rg.ReleasedFirst,
)
WORKERS = (
    se.FlushesBehindTheMarker,
    se.NoMarkerOnLoopback,
    se.LoopbackMarkerOvertakes,
    se.JoinerSpeaksFirst,
    se.ExchangesOneByOne,
    se.EmptySlotsNotShipped,
    se.ReleasedBackwards,
    se.PolledAtOnce,
    se.PartWithoutItsFrontier,
    se.ByeBehindTheMarker,
    se.EpochsToOneOnly,
    se.FollowsTheMaximum,
    se.RegionsSpeakBeforeTheMarker,
    se.MarkerOfTheRegion,
    se.MarkerOfTheSource,
)
SWITCHES = (se.PollsWhileAwaiting, se.WaitsBeforeHandingOver)
READINGS = (
    so.LateByBatch,
    so.LateByWorker,
    so.NotRaisedOnWaking,
    so.GainedPartIsRaised,
    so.GainedPartDoesNotCount,
    so.FinishedPartsHoldTimeBack,
    so.FutureLetIn,
)
COPIES = (cp.ChangesMissed, cp.EarlierCopyWins, cp.UsedBeforeTheCut)
CHANNELS = (se.GapAccepted, se.StaleAccepted, se.CreditIgnored, se.EpochsNeedNoCredit)
WORLDS = (se.FedDespiteBacklog, se.StaleLettersAccepted)
COORDINATORS = (
    co.RequestLost,
    co.FirstRequestWins,
    co.OpensAtTheFirstShipped,
    co.ReleasesAfterOneExchange,
    co.ReleasesAfterOneWorker,
    co.UninvolvedNotAsked,
    co.EndsBeforeRegionsAreDone,
    co.EndsBeforePartsAreReleased,
    co.LeavesEarly,
    co.EndsBeforeBye,
    co.ByeOfOneExchange,
    co.ByeOfOneMember,
    co.PartsOfNobody,
)

MUTANTS: dict[str, Mutant] = {
    **{made.__name__: _region(made, sc.OF.get(made.__name__)) for made in REGIONS},
    **{made.__name__: _worker(made, sc.OF.get(made.__name__)) for made in WORKERS},
    **{made.__name__: _coordinator(made, sc.OF.get(made.__name__)) for made in COORDINATORS},
    **{made.__name__: Mutant(Machines(region=rg.Region, switch=made), sc.OF.get(made.__name__)) for made in SWITCHES},
    **{made.__name__: Mutant(Machines(region=rg.Region, reading=made), sc.OF.get(made.__name__)) for made in READINGS},
    **{made.__name__: Mutant(Machines(region=rg.Region, channel=made)) for made in CHANNELS},
    **{
        made.__name__: Mutant(
            Machines(region=rg.Region, switch=se.Switch, coordinator=co.Coordinator, world=made),
            sc.OF.get(made.__name__),
        )
        for made in WORLDS
    },
    **{made.__name__: Mutant(Machines(region=rg.Region, counting=made), ahead=True) for made in COPIES},
    "StaleCopiesAccepted": Mutant(
        Machines(region=rg.Region, world=cp.StaleCopiesAccepted), sc.OF["StaleCopiesAccepted"]
    ),
    "FiresOnTheFirstInput": Mutant(Machines(counting=se.FiresOnTheFirstInput)),
    "dealt_anew": Mutant(Machines(plan=co.dealt_anew)),
    "unbalanced": Mutant(Machines(plan=co.unbalanced)),
}


def found(name: str) -> Found:
    """Search for a seed that shows a wrong protocol."""
    return first_seed(MUTANTS, SEEDS, name)


if __name__ == "__main__":
    sys.exit(search(found, MUTANTS, __doc__))
