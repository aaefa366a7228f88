"""The hard cases that runs must have met: a case nobody met is a case nobody tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HARD_CASES: Final = (
    "slot held",
    "epoch held",
    "Shipped waited for",
    "parcel before a marker",
    "empty slot shipped",
    "slots shipped in chunks",
    "several moves",
    "part moved",
    "parts handed over both ways",
    "part waiting for release",
    "part finished in a move",
    "part idle in a move",
    "part woken in a move",
    "idle part moved",
    "idle worker follows",
    "late behind a wake",
    "late record",
    "future record",
    "empty part",
    "joiner without part",
    "join and leave at once",
    "leaver's epoch behind its marker",
    "region held back by a gained part",
    "region's epoch waits for the marker",
    "credit at zero",
    "spill",
    "marker in a backlog",
    "rescale coalesced",
    "request at end of stream",
    "request with nothing flowing",
    "request under back-pressure",
    "worker crash",
    "worker crash inside a move",
    "coordinator crash",
    "coordinator crash inside a move",
    "stale frame dropped",
    "stale letter dropped",
    "gap detected",
    "repeat detected",
)


def table(hits: Mapping[str, int]) -> str:
    """How often each was met, for people."""
    return "\n".join(f"{hits.get(case, 0):>10,}  {case}" for case in HARD_CASES)


def never_met(hits: Mapping[str, int]) -> list[str]:
    """Those with a zero."""
    return [case for case in HARD_CASES if not hits.get(case)]
