"""Setups that are made for some wrong protocols, where random ones rarely meet them; the seed is the schedule."""

from __future__ import annotations

from tests.simulation.protocol_model.records import ChannelKey, PartName
from tests.simulation.protocol_model.setups import Fault, Request, Setup
from tests.simulation.protocol_model.shapes import SHAPES


def _parts(sources: str, parts: int, rows: int, keys: int) -> dict[PartName, tuple[tuple[int, int], ...]]:
    """Rows that go round the keys, in order of time."""
    return {
        (source, str(part)): tuple(((number + part) % keys, number + 1) for number in range(rows))
        for source in sources
        for part in range(parts)
    }


BEHIND_A_REGION = Setup(
    SHAPES["two stages"], _parts("S", 2, 16, 2), workers=2, keys=2, requests=(Request(3, 1, 20), Request(2, 1, 60))
)
"""Rows of one key go through two stages while their slots move, and a worker leaves."""

BOTH_WAYS = Setup(
    SHAPES["join"],
    _parts("ST", 3, 10, 3),
    workers=2,
    keys=3,
    owners={(source, str(part)): int(source == "T") for source in "ST" for part in range(3)},
    requests=(Request(3, 2, 20),),
)
"""One worker has all parts of S, the other all of T: in one move each gives to the other."""

DIAMOND = Setup(
    SHAPES["diamond"], _parts("S", 3, 14, 2), workers=1, keys=2, requests=(Request(3, 1, 12), Request(2, 2, 80))
)
"""Two exchanges are fed by one source whose parts move."""

LATE_ROWS = Setup(
    SHAPES["chain"],
    {("S", str(part)): tuple((0, 9 if number % 2 else 20 + number) for number in range(12)) for part in range(4)},
    workers=1,
    keys=2,
    requests=(Request(2, 1, 6), Request(3, 2, 40)),
)
"""Every other record is late by its own part's epoch, also after a move of the part."""

SHRINKS = Setup(
    SHAPES["diamond"],
    _parts("S", 4, 12, 3),
    workers=4,
    keys=3,
    batch_rows=2,
    requests=(Request(3, 3, 12), Request(2, 2, 60)),
)
"""No worker joins: slots and parts go to workers that are in a move themselves."""

SMALL_MOVES = Setup(
    SHAPES["two stages"],
    _parts("S", 2, 12, 6),
    workers=4,
    keys=6,
    slots_max=1,
    requests=(Request(3, 3, 12), Request(2, 2, 60)),
)
"""Each move takes one slot: most workers neither gain nor lose."""

MANY_MOVES = Setup(
    SHAPES["chain"],
    _parts("S", 2, 12, 24),
    workers=5,
    keys=24,
    slots_max=1,
    requests=(Request(2, 2, 6), Request(6, 2, 60)),
)
"""Many moves of one slot each, one after the other."""

LOST_COPIES = Setup(
    SHAPES["chain"],
    _parts("S", 3, 20, 6),
    workers=1,
    keys=6,
    requests=(Request(2, 1, 12), Request(2, 1, 80)),
    faults=(Fault("worker", 60, moving=True),),
    slow=frozenset({"stale", "ship"}),
    ahead=True,
)
"""The job is lost while state goes ahead, and does it again; what was in flight comes late."""

MIXED = Setup(
    SHAPES["mixed"], _parts("ST", 3, 12, 3), workers=2, keys=3, naps=4, requests=(Request(3, 1, 20), Request(2, 2, 80))
)
"""A region and a source feed one exchange, and both change hands."""

ASLEEP = Setup(
    SHAPES["mixed"],
    {
        **{("S", str(part)): tuple(((number + part) % 2, 3 * number + 3) for number in range(8)) for part in range(4)},
        **{("T", str(part)): tuple(((number + part) % 2, number + 1) for number in range(3)) for part in range(2)},
    },
    workers=2,
    keys=2,
    owners={(source, str(part)): int(source == "T") for source in "ST" for part in range(4)},
    naps=30,
    requests=(Request(3, 2, 40),),
    slow=frozenset([(0,), (ChannelKey("A", 0, 2),), (ChannelKey("A", 1, 2),)]),
)
"""A sleeping part is handed over by a worker whose regions continue, and waits for a part of the slow worker 0."""

OF: dict[str, Setup] = {
    "StaleCopiesAccepted": LOST_COPIES,
    "RegionsSpeakBeforeTheMarker": ASLEEP,
    "MarkerOfTheRegion": MIXED,
    "MarkerOfTheSource": MIXED,
    "NoWaitForShipped": BEHIND_A_REGION,
    "ShippedOfOneSender": BEHIND_A_REGION,
    "ShippedTooEarly": BEHIND_A_REGION,
    "OpensAtTheFirstShipped": BEHIND_A_REGION,
    "LeaverDroppedAtTheCut": BEHIND_A_REGION,
    "WaitsBeforeHandingOver": BOTH_WAYS,
    "PollsWhileAwaiting": BOTH_WAYS,
    "ExchangesOneByOne": SMALL_MOVES,
    "LoopbackMarkerOvertakes": SHRINKS,
    "FlushesBehindTheMarker": SHRINKS,
    "GainedPartIsRaised": SHRINKS,
    "UninvolvedNotAsked": MANY_MOVES,
    "ReleasesAfterOneExchange": DIAMOND,
    "ReleasesAfterOneWorker": DIAMOND,
    "PolledAtOnce": DIAMOND,
    "PartWithoutItsFrontier": LATE_ROWS,
}
