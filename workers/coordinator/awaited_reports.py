"""The reports that a coordinator waits for, in words (R7)."""

from __future__ import annotations

from typing import Final

from malstrom_py.rescale.moves.protocol import (
    BarrierPassed,
    ByesTaken,
    MarkersIn,
    PackedAhead,
    PartsPolled,
    RegionDone,
    Report,
    SentAhead,
    ShippedIn,
    Switched,
)

_ORDER: Final = (
    PackedAhead,
    BarrierPassed,
    SentAhead,
    Switched,
    MarkersIn,
    ShippedIn,
    RegionDone,
    PartsPolled,
    ByesTaken,
)
"""The types of reports in causal order."""


def in_order(report: Report) -> tuple[int, int, str]:
    """Return the sort key of a missing report: the reports that others wait for come first."""
    return _ORDER.index(type(report)), report.worker, as_awaited(report)


def as_awaited(report: Report) -> str:
    """Return a description of the missing ``report``."""
    match report:
        case PackedAhead():
            return f"worker {report.worker} to pack state ahead of snapshot {report.snapshot}"
        case BarrierPassed():
            return f"the barrier of snapshot {report.snapshot} to pass worker {report.worker}"
        case SentAhead():
            return f"worker {report.worker} to send state ahead of version {report.version}"
        case Switched():
            return f"worker {report.worker} to switch to version {report.version}"
        case MarkersIn():
            return f"all markers on exchange {report.exchange!r} at worker {report.worker}"
        case ShippedIn():
            return f"Shipped of all workers on exchange {report.exchange!r} at worker {report.worker}"
        case RegionDone():
            return f"region {report.region!r} on worker {report.worker}"
        case PartsPolled():
            return f"worker {report.worker} to read the partitions of {report.source!r} that it gains"
        case ByesTaken():
            return f"Bye of all leavers on exchange {report.exchange!r} at worker {report.worker}"
