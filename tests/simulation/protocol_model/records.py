"""What is in the model's channels, and the parts that its records are read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.rescale.moves.protocol import InBand

WINDOW: Final = 4
"""Windows are this wide in event time."""

AHEAD: Final = 1_000
"""T4: a time beyond this is too far in the future."""


class Record(NamedTuple):
    """A record: where it was read, its number there, its key and time; ``path`` are the keys it had before."""

    source: str
    part: str
    number: int
    key: int
    time: int
    path: tuple[int, ...] = ()


class Rows(NamedTuple):
    """A batch, routed by the table of ``version``."""

    version: int
    records: tuple[Record, ...]


class EpochItem(NamedTuple):
    """An epoch; ``idle`` says that its sender follows (T2)."""

    time: int
    idle: bool


Item = Rows | EpochItem | InBand


class ChannelKey(NamedTuple):
    """Which channel."""

    exchange: str
    sender: int
    receiver: int


PartName = tuple[str, str]
"""(source, part)."""


@dataclass
class Part:
    """A part of a source: its rows as (key, time), how far it has been read, its epoch."""

    rows: tuple[tuple[int, int], ...]
    position: int = 0
    epoch: int = MIN_EPOCH
    polled: bool = True
    idle: bool = False

    @property
    def finished(self) -> bool:
        """Whether all of it has been read."""
        return self.position == len(self.rows)


def frontier(parts: list[Part], last: int) -> tuple[int, bool]:
    """T2: what a worker with ``parts`` promises, and whether it is idle; ``last`` is its last broadcast."""
    active = [part.epoch for part in parts if not part.finished and not part.idle]
    if active:
        return min(active), False
    if all(part.finished for part in parts):
        return MAX_EPOCH, False
    return last, True
