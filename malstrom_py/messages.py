"""What moves through operators besides batches. Everything here is immutable and small.

`Epoch` is a promise in event time: nothing with a timestamp at or below it follows (other systems call it a
watermark). `PartOpened` and `PartFinished` travel inside a source region only, so that event time is tracked
per part (T2). `DataMessage` is the form in which `StatefulLogic.on_data` sees one record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_EPOCH: Final = 2**63 - 1
"""What a finished bounded job emits last, on untimed streams too (T5)."""

MIN_EPOCH: Final = -(2**63)
"""The frontier of an operator that has seen no epoch yet."""


@dataclass(slots=True, unsafe_hash=True)
class DataMessage(Generic[K, V]):
    """One record, never to be changed. ``timestamp`` is an int64 in the stream's unit, None on an untimed stream."""

    # Not a frozen dataclass, for those take three times as long to make, and this is made for every record.

    key: K
    value: V
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """Nothing with a timestamp at or below ``time`` follows. `MAX_EPOCH`: nothing follows at all."""

    time: int


@dataclass(frozen=True, slots=True)
class PartOpened:
    """A part of a source is about to be read here. ``epoch_state`` is what a former reader left behind."""

    part: str
    epoch_state: Any = None


@dataclass(frozen=True, slots=True)
class PartFinished:
    """A part has no more records: it no longer holds back event time."""

    part: str


Control = Epoch | PartOpened | PartFinished


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that a step could not take, on the stream of ``job.dead_letters(step)``.

    ``error`` is the text of the exception; ``key`` and ``timestamp`` are None where the stream had none.
    """

    step: str
    key: Any
    value: Any
    timestamp: int | None
    error: str
