"""Taps: samples of the records that a step of a running job emits, as workers send them and clients get them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from malstrom_py.workers.reports.shadows import Compared

LEASE_S: Final = 5.0
"""How long a tap lives after the last request."""

Keys = tuple[bytes, ...] | None
"""The stored forms of the keys whose records are wanted; None: of all records."""


class TapRow(msgspec.Struct, array_like=True, frozen=True):
    """One record as it travels: key and value in their stored form. ``output``: the port by which it has left."""

    worker: int
    output: str
    timestamp: int | None
    key: bytes
    value: bytes

    @property
    def size(self) -> int:
        """The bytes of key and value."""
        return len(self.key) + len(self.value)


class TapPage(msgspec.Struct, frozen=True):
    """Some records of tap ``log`` in the order in which they have come. ``after``: the number with which to ask for the
    next ones; ``passed``: how many have passed since the tap began; ``keyed`` and ``unit``: of the step, as in
    `TappedStep`; ``ended``: none follows, as the job has ended.
    """

    log: str
    after: int
    rows: list[TapRow]
    passed: int
    keyed: bool = False
    unit: str | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class TapStep:
    """The order to sample the records of ``step``, of ``keys``, for ``lease_s`` from now, and to send what is there."""

    step: str
    keys: Keys
    lease_s: float = LEASE_S


@dataclass(frozen=True, slots=True)
class Tapped:
    """What ``worker`` has sampled: ``rows`` of the ``passed`` records since its last message."""

    worker: int
    step: str
    keys: Keys
    rows: tuple[TapRow, ...] = field(repr=False)
    passed: int


@dataclass(frozen=True, slots=True)
class TappedStep:
    """What is known of a step before it runs: whether its records have keys, and the unit of their timestamps."""

    keyed: bool
    unit: str | None


SeenOfStep = Tapped | Compared
"""What workers have seen of the records of a step, for those who look at it."""
