"""docs/protocol.md: its diagrams are those of the code, and its formula counts what is sent."""

from __future__ import annotations

import random

import pytest

from malstrom_py.rescale.moves.protocol import Bye, Marker, OpenSlots, PartHandedOver, Shipped, StartMove, StateChunk
from tests.docs.diagrams import MACHINES, PAGE, diagram, updated
from tests.simulation.protocol_model.runs import play
from tests.simulation.protocol_model.setups import Request, Setup
from tests.simulation.protocol_model.shapes import SHAPES

TEXT = PAGE.read_text()


def test_the_diagrams_are_those_of_the_code() -> None:
    assert updated(TEXT) == TEXT, "run: python -m tests.docs.diagrams"


@pytest.mark.parametrize("name", MACHINES)
def test_a_diagram_has_every_transition(name: str) -> None:
    assert diagram(MACHINES[name]).count(" --> ") == len(MACHINES[name]) + 1


def expected(shape: str, workers: int, after: int, sources_that_move: int) -> tuple[int, int]:
    """The page's formula: letters and in-band messages of one move, without parcels, parts and Byes."""
    job = SHAPES[shape]
    everyone, exchanges = max(workers, after), len(job.exchanges)
    behind_regions = sum(any(feeder in job.regions for feeder in feeders) for feeders in job.exchanges.values())
    feeding = sum(bool(job.fed_by(region)) for region in job.regions)
    letters = everyone * (2 + exchanges + behind_regions + len(job.regions)) + after * feeding + 2 * sources_that_move
    return letters, everyone**2 * (exchanges + behind_regions)


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize(("workers", "after"), [(1, 2), (2, 3), (4, 2), (5, 6)])
def test_the_formula_counts_the_messages_of_a_move(shape: str, workers: int, after: int) -> None:
    parts = {(source, "0"): tuple((key % 8, key) for key in range(6)) for source in SHAPES[shape].sources}
    kept = min(workers, after)
    setup = Setup(SHAPES[shape], parts, workers=workers, keys=8, requests=(Request(after, kept, 5),))
    sent = play(setup, random.Random(shape).randrange(1_000)).messages
    letters, in_band = expected(shape, workers, after, sent["PollParts"])
    assert sent["Marker"] + sent["Shipped"] == in_band
    apart = {kind.__name__ for kind in (Marker, Shipped, Bye, StateChunk, PartHandedOver)}
    apart |= {"Connected", "Leave", "ByesTaken"}
    assert sum(count for kind, count in sent.items() if kind not in apart) == letters
    assert sent[StartMove.__name__] == max(workers, after)
    assert sent[OpenSlots.__name__] == after * sum(bool(SHAPES[shape].fed_by(r)) for r in SHAPES[shape].regions)
