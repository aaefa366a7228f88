"""What a rescale waits for, in words and in order: reports that have not come."""

from __future__ import annotations

from typing import Final

from malstrom_py.rescale.protocol import (
    BarrierPassed,
    ByeTaken,
    MarkersIn,
    PartsPolled,
    RegionDone,
    Report,
    ShippedIn,
    Switched,
)

_ORDER: Final = (BarrierPassed, Switched, MarkersIn, ShippedIn, RegionDone, PartsPolled, ByeTaken)
"""Each waits for those before it, or for nothing."""


def in_order(report: Report) -> tuple[int, int, str]:
    """By which those that others wait for come first."""
    return _ORDER.index(type(report)), report.worker, as_awaited(report)


def as_awaited(report: Report) -> str:
    """What ``report`` will tell of, when it comes."""
    match report:
        case BarrierPassed():
            return f"the barrier of snapshot {report.snapshot} to pass worker {report.worker}"
        case Switched():
            return f"worker {report.worker} to switch to version {report.version}"
        case MarkersIn():
            return f"all markers on exchange {report.exchange!r} at worker {report.worker}"
        case ShippedIn():
            return f"Shipped of everyone on exchange {report.exchange!r} at worker {report.worker}"
        case RegionDone():
            return f"region {report.region!r} on worker {report.worker}"
        case PartsPolled():
            return f"worker {report.worker} to read on the parts of {report.source!r} that it gains"
        case ByeTaken():
            return f"Bye of worker {report.leaver} on exchange {report.exchange!r} at worker {report.worker}"
