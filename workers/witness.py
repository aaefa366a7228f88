"""Counts the hard cases that a simulated run has met, so that nobody takes an easy run for a proof."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from malstrom_py.rescale.channel import Frame
from malstrom_py.rescale.protocol import Bye, OpenSlots, Parcel, PartHandedOver, PollParts
from malstrom_py.rescale.region_machine import Phase
from malstrom_py.workers.outgoing import Content
from malstrom_py.workers.worker import Worker

if TYPE_CHECKING:
    from malstrom_py.workers.simulated_crew import SimulatedCrew

HARD_CASES: Final = (
    "slot held",
    "epoch held",
    "Shipped waited for",
    "parcel before a marker",
    "empty slots shipped",
    "slot in several parcels",
    "keys moved",
    "part moved",
    "finished part moved",
    "part waiting for release",
    "credit at zero",
    "marker in a backlog",
    "Bye taken",
    "rescale coalesced",
    "request at end of stream",
    "request with nothing flowing",
    "request under back-pressure",
    "worker crash",
    "worker crash inside a rescale",
    "coordinator crash",
    "coordinator crash inside a rescale",
    "stale frame dropped",
    "stale letter dropped",
)
"""What a large number of runs must have met, each at least once."""


class Witness:
    """``hits``: hard case -> how often it was met."""

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()

    def hit(self, case: str) -> None:
        """``case`` was met."""
        self.hits[case] += 1

    def asked(self, crew: SimulatedCrew) -> None:
        """A rescale is asked for."""
        if crew.phase != "steady":
            self.hit("rescale coalesced")
        if crew.quiet:
            self.hit("request with nothing flowing")
        if crew.backlogged:
            self.hit("request under back-pressure")

    def arrives(self, worker: Worker | None, content: Content) -> None:
        """``content`` is about to be given to ``worker``, or to the coordinator."""
        match content:
            case Parcel():
                self._parcel(worker, content)
            case OpenSlots() if worker is not None and worker.feed(content.region).held_rows:
                self.hit("Shipped waited for")
            case PartHandedOver():
                self.hit("finished part moved" if content.position.is_finished else "part moved")
            case PollParts():
                self.hit("part waiting for release")
            case Frame(control=Bye()):
                self.hit("Bye taken")

    def stepped(self, worker: Worker) -> None:
        """``worker`` has been at work."""
        full = worker.backlogged
        if full:
            self.hit("credit at zero")
        for feed in worker.feeds:
            if feed.held_rows:
                self.hit("slot held")
            if feed.machine.holds_epochs:
                self.hit("epoch held")
            if full and feed.machine.phase is Phase.MARKING:
                self.hit("marker in a backlog")

    def _parcel(self, worker: Worker | None, parcel: Parcel) -> None:
        if worker is not None and worker.feed(parcel.region).machine.phase is Phase.STEADY:
            self.hit("parcel before a marker")
        if not parcel.states:
            self.hit("empty slots shipped")
        else:
            self.hit("keys moved")
        if not parcel.slots:
            self.hit("slot in several parcels")
