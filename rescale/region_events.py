"""What a region's rescale machine is told, and what it answers: its events and effects. Immutable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from malstrom_py.rescale.protocol import InBand, OpenSlots, Parcel, Report

# Events.


@dataclass(frozen=True, slots=True)
class RowsTaken:
    """Rows have come, routed by the table of ``version``. Nothing here looks into them."""

    exchange: str
    sender: int
    version: int
    rows: Any


@dataclass(frozen=True, slots=True)
class EpochTaken:
    """An epoch has come. ``idle``: its sender has nothing to read now, and follows the others (T2)."""

    exchange: str
    sender: int
    time: int
    idle: bool = False


@dataclass(frozen=True, slots=True)
class InBandTaken:
    """A marker, Shipped or Bye has come."""

    exchange: str
    sender: int
    message: InBand


@dataclass(frozen=True, slots=True)
class ParcelTaken:
    """State has come from another worker."""

    parcel: Parcel


@dataclass(frozen=True, slots=True)
class OpenTaken:
    """The coordinator says that gained slots may be opened."""

    order: OpenSlots


@dataclass(frozen=True, slots=True)
class ShippingEnded:
    """All that `Ship` asked for has been taken out and sent."""

    version: int


Event = RowsTaken | EpochTaken | InBandTaken | ParcelTaken | OpenTaken | ShippingEnded


# Effects.


@dataclass(frozen=True, slots=True)
class Pass:
    """Let rows into the region at ``exchange``; while slots are pending, only those whose slots are not in ``held``.

    The others are to be kept, in order, until `Release`.
    """

    exchange: str
    rows: Any
    held: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Advance:
    """Let an epoch into the region at ``exchange``."""

    exchange: str
    time: int


@dataclass(frozen=True, slots=True)
class Ship:
    """Take the state of ``slots`` (slot -> new owner) out and send it, in parcels; then tell `ShippingEnded`."""

    version: int
    slots: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Install:
    """Put the state of a parcel into the region."""

    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Release:
    """Let in all rows that have been held, in order."""


@dataclass(frozen=True, slots=True)
class SendShipped:
    """Put Shipped on every channel of every exchange that the region feeds."""

    version: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Report to the coordinator."""

    report: Report


Effect = Pass | Advance | Ship | Install | Release | SendShipped | Tell
